"""Checkpoints: which classes can be saved, how they are written, and how a run is resumed."""
