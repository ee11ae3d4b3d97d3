"""Floor 1: what was measured. Frozen typed records, their files and the error tree.

Imports nothing of hotlap nor torch. `session`, `steady` and `phases` are standard library only, because the agent
imports them inside the user's process.
"""
