"""Not a lever: transforms of `torch.func` (grad, vmap and the like), for which some ways to compute have no rule."""

from ._internals import internals


def vmapped() -> bool:
    """Whether one of those that look on is vmap. Not while a compiler captures a graph, which has one of its own."""
    import torch

    if torch.compiler.is_compiling():
        return False
    inner = internals()
    every = inner.interpreters()
    return every is not None and any(one.key() == inner.VMAP for one in every)
