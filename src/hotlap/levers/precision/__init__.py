"""Levers of numbers: which type products are computed in."""
