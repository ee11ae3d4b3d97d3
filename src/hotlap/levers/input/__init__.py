"""Levers of the loader."""
