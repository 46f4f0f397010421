"""When queued gradients are applied, and with which weights: pure functions over an explicit state."""
