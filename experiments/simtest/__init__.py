"""Deterministic simulation testing: checks invariants of random systems on faulty platforms."""
