"""Levers that have the model compiled."""
