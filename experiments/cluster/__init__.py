"""Experiments on a Ray cluster."""
