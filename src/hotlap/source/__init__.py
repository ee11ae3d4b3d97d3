"""Floor 3: the user's source as a tree, read without running it.

Read in this order: `project` (which files), `tree` (reads one of them), `scopes` (its tree, and what is bound in it),
`names` (what a name stands for), `tensors` (what is surely a tensor), `places` (the
training loop, its model, loader and optimizer).
"""
