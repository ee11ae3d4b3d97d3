"""How a history of an older hotlap becomes one of this. Alembic runs `env.py`, and the files of `versions/` in turn.

A migration that was released is never changed: databases stand at each. A new one names the last as the one that it
follows, and `HEAD` in `guard/tables.py` becomes its name.
"""
