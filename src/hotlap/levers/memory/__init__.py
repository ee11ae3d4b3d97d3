"""Levers of the device's memory, and of how tensors lie in it."""
