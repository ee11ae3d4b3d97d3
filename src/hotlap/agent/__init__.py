"""Floor 2, inside the user's process: observes steps and phases, offers levers their seams, ends trials.

Standard library and torch only. Nothing here may raise into the user's code, draw random numbers, synchronise the
device or keep a tensor alive. Reads: `start` (how it starts) → `core` (what it holds) → `hooks/` (what it patches) →
`steps` (what a step is) → `timeline` (phases) → `recorder` (lines on disk).
"""
