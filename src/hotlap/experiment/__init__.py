"""Floor 4: sides of one command measured fairly: live switching, turns, statistics, evidence, parity.

A `Side` (`side.py`) is the command running with some levers. It makes steps only when it is its turn. `turns.py` lets
sides take turns, `switching.py` switches levers within one side, `statistics.py` says what came of it, `judge.py`
whether learning is unchanged. `tune/` decides only what to try.
"""
