"""Levers that record what a step issues and replay it."""
