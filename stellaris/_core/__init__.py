"""Helpers for every layer: argument checks, eager calls, order statistics, descriptions of settings, extras."""
