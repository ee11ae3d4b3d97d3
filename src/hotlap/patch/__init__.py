"""Floor 5: writes a recipe into the user's source as a minimal diff, and measures the patched source against it; or
rewrites the lines at which a run waited.

Read in this order: `edits` (small changes of a tree), `rules/` (one file a lever), `patch` (the whole), `verify`; then
`waits/` (one file a rewrite) and `findings` (of a run). `hotlap.source` reads.
"""
