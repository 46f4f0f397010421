"""Corrections for stale data: ratios, caps, weights, masks, clipping and effective samples, per sample."""
