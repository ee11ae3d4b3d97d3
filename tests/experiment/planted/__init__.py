"""Levers that only the tests put in: frauds that parity must catch, and honest ones that it must let pass."""
