"""Answers from the tables, one module each. What each computes is defined in its docstring."""
