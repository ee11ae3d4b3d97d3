"""Not a lever: transforms of `torch.func` (grad, vmap and the like), for which some ways to compute have no rule."""


def inside() -> bool:
    """Whether one of them looks on."""
    import torch

    return torch._C._functorch.peek_interpreter_stack() is not None


def plainly(but: type | tuple[type, ...] = ()) -> bool:
    """Whether nothing else of torch's stands around a call that a recorded one, or one that is a function of its own to
    autograd, would pass by, or that would be in its way: transforms and forward-mode derivatives, tracing, dispatch
    modes (but of this class), hooks on saved tensors, another backward."""
    import torch
    from torch.autograd import forward_ad

    inner = torch._C
    return (
        inner._current_graph_task_id() == -1
        and inner._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level == -1
        and inner._get_tracing_state() is None
        and not (inner._len_torch_dispatch_stack() and _modes_but(but))
        and inner._autograd._top_saved_tensors_default_hooks(True) is None
    )


def _modes_but(kind: type | tuple[type, ...]) -> bool:
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return not all(isinstance(mode, kind) for mode in _get_current_dispatch_mode_stack())


def vmapped() -> bool:
    """Whether one of those that look on is vmap. Not while a compiler captures a graph, which has one of its own."""
    import torch

    if torch.compiler.is_compiling():
        return False
    functorch = torch._C._functorch
    every = functorch.get_interpreter_stack()
    return every is not None and any(one.key() == functorch.TransformType.Vmap for one in every)
