"""Deterministic simulation testing: random systems on faulty platforms, and what must always hold."""
