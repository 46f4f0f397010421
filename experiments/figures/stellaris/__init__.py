"""Figures and tables of Stellaris (SC 2024)."""
