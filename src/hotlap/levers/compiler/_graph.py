"""Not a lever: torch.compile around a forward, whose graphs levers may change before the compiler sees them.

A pass gets each graph as Dynamo captured it (torch's own functions and methods, before autograd) and the inputs of its
first call, which are the module's real parameters and buffers and the script's real tensors.

Inductor has a hook of its own for this, `config.pre_grad_custom_pass`. It is not used: it gets no inputs, so a mask's
values can't be looked at, and it becomes part of the keys of Inductor's caches, which pass over graphs with a pass
that has no stable key.
"""

import os
from collections.abc import Callable
from typing import Any, Final

from .._internals import internals
from ._create_graph import differentiates_parameters, keep_what_is_saved

Pass = Callable[[Any, list[Any]], None]
PASSES: Final[list[Pass]] = []
"""What the levers of this process registered."""


class Compiled:
    """A compiled forward. mode: of the lever `compile`, or None to run the captured graphs eagerly, as changed."""

    def __init__(self, forward: Callable[..., Any], mode: str | None) -> None:
        self._original = forward
        self._mode = mode
        self._forward = self._compile()
        self._worked = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        output = self._forward(*args, **kwargs)
        if not self._worked:
            self._worked = True
            go_on_without()
        return output

    def again(self) -> None:
        """Compile anew at the next call: what was compiled so far is not used any more."""
        self._forward = self._compile()

    def _compile(self) -> Callable[..., Any]:
        import torch

        heed_hooks()
        mode = None if self._mode == "default" else self._mode
        if self._mode is not None and not PASSES:
            return torch.compile(self._original, mode=mode)  # type: ignore[no-any-return]
        # What torch.compile makes of the mode itself.
        compiler = None if self._mode is None else internals().inductor_for(mode, None)
        return torch.compile(self._original, backend=Backend(compiler))  # type: ignore[no-any-return]


def prepare(module: Any) -> None:
    """Before anything of a model is compiled. Raises Refused where that can not be."""
    from hotlap.agent.seams import Refused

    if why := differentiates_parameters():
        raise Refused(why)
    backward_by_dtypes()
    scalars_on_host(module)
    heed_hooks()
    one_order_of_sums()
    keep_what_is_saved()


def go_on_without() -> None:
    """From now on, what the compiler fails on runs as it was written: a first failure is one of the lever, a later one,
    at a branch that comes after hundreds of steps, would end a run that had gone well."""
    internals().dynamo_config().suppress_errors = True


def heed_hooks() -> None:
    """From now on, compiled code looks whether its modules have the hooks with which it was compiled. By torch's own
    default hooks that a script adds or removes later are passed over; to look takes 20 us of 355 (168 modules, CPU)."""
    internals().dynamo_config().skip_nnmodule_hook_guards = False


def backward_by_dtypes() -> None:
    """Let compiled backwards compute in the dtypes that their forwards computed in, as eager ones do that are called
    outside of autocast.

    The compiler would make them under the autocast that is on around the compiled code. With a lever's autocast inside
    of that, it is the script's, which on CUDA may be one to float32 that is enabled: all products of the backward were
    in float32. With one to a half precision, products that a model keeps in float32 had a backward in that.
    """
    config = internals().functorch_config()
    if getattr(config, "backward_pass_autocast", None) == "same_as_forward":  # older torch has no choice
        config.backward_pass_autocast = "off"


def scalars_on_host(module: Any) -> None:
    """Where a model is on a GPU, what Inductor makes for the host is of scalars and small constants. It is made without
    vector instructions then: to see which there are, torch 2.11 builds a library for each kind, and loads it in a
    process of its own that imports torch."""
    config = internals().inductor_config()
    if config.cpp.vec_isa_ok is None and {p.device.type for p in module.parameters()} == {"cuda"}:
        config.cpp.vec_isa_ok = False


def one_order_of_sums() -> None:
    """From now on, unless the environment asks for it, Inductor makes no kernel that sums along rows and columns at
    once. Such a kernel loses the shape of what it sums, as of a norm's gain of (1, 64, 1, 1), and the backward raises
    (pytorch#178080, seen with torch 2.11), or it leaves parts of gradients unwritten (pytorch#193061)."""
    triton = internals().inductor_config().triton
    if hasattr(triton, "mix_order_reduction") and "TORCHINDUCTOR_MIX_ORDER_REDUCTION" not in os.environ:
        triton.mix_order_reduction = False


class Backend:
    """A backend of torch.compile: the passes, then a compiler (None: no compiler, the graph runs as it is).

    Dynamo tells compiled code apart by its backend, so a new backend compiles anew.
    """

    __name__ = "hotlap"

    def __init__(self, compiler: Any) -> None:
        self.compiler = compiler

    def __call__(self, graph: Any, inputs: list[Any]) -> Any:
        for change in PASSES:
            change(graph, inputs)
        return graph.forward if self.compiler is None else self.compiler(graph, inputs)

    def reset(self) -> None:
        """For `torch._dynamo.reset()`: Inductor gives its CUDA graphs back."""
        if self.compiler is not None:
            self.compiler.reset()
