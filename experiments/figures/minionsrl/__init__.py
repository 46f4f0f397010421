"""Figures and tables of MinionsRL (AAAI 2024)."""
