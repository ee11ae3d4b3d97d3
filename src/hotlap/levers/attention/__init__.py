"""Levers of attention."""
