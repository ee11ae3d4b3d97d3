"""Levers that the host wins time by."""
