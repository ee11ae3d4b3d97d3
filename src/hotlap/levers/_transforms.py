"""Not a lever: transforms of `torch.func` (grad, vmap and the like), for which some ways to compute have no rule."""


def inside() -> bool:
    """Whether one of them looks on."""
    import torch

    return torch._C._functorch.peek_interpreter_stack() is not None


def vmapped() -> bool:
    """Whether one of those that look on is vmap. Not while a compiler captures a graph, which has one of its own."""
    import torch

    if torch.compiler.is_compiling():
        return False
    functorch = torch._C._functorch
    every = functorch.get_interpreter_stack()
    return every is not None and any(one.key() == functorch.TransformType.Vmap for one in every)
