"""The acting side: environments, policies and their networks, normalisation, and an actor's work."""
