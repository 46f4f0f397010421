"""Studies of staleness as compiled programs: a sweep from the command line."""
