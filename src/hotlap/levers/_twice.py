"""Not a lever: a compiled forward whose gradients can be differentiated again.

"torch.compile with aot_autograd does not currently support double backward" is raised by the second derivative, in a
run that had gone well till then: an update of TRPO, the epoch from which on MAML goes to second order. So where a
script's files name `create_graph`, for autograd the whole forward is one function of the parameters. Its backward is
the compiled one; where that is to be differentiated, it is the backward of the forward as it was written, computed
again in the same autocast, as `torch.utils.checkpoint` does.

A forward that draws random numbers is left as compiled: it drew others than the one as written would. So is one that
depends on more than the model's parameters, or whose parameters have hooks, which both of two backwards would call.
"""

import functools
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final

from . import _transforms
from ._buffers_kept import BuffersKept
from ._nested import each_tensor
from ._training_call import tensors

MOST_NODES: Final = 4096
"""Of a graph that are looked through for what it depends on."""
CHANGED: Final = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: an argument of a "
    "model's forward, which is computed again"
)


class Call:
    """A forward that was made. plain: makes it as it was written; inner: those tensors of what it returned that have
    gradients, which are made of `wanted`."""

    def __init__(self, module: Any, plain: Callable[[], Any], arguments: Sequence[Any]) -> None:
        import torch

        self.module, self.plain = module, plain
        self.inner: list[Any] = []
        self.wanted: list[Any] = []
        self.arguments = [(one, one._version) for one in arguments]
        devices = {p.device for p in module.parameters()}
        self.gpus = [device for device in devices if device.type == "cuda"]
        self.random = self._random()
        kinds = sorted({device.type for device in devices} | {"cpu"})
        self.autocast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]

    def drew(self) -> bool:
        """Whether anything was drawn since."""
        return self._random() != self.random

    def _random(self) -> list[bytes]:
        import torch

        states = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self.gpus)]
        return [bytes(state.numpy()) for state in states]

    def again(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """A backward that can be differentiated. Raises RuntimeError where an argument is not what it was."""
        import torch

        if any(one._version != version for one, version in self.arguments):
            raise RuntimeError(CHANGED)
        with ExitStack() as stack:
            stack.enter_context(BuffersKept(self.module))
            for kind, enabled, dtype in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
            output = self.plain()
        made = _differentiable(output)
        pairs = [(leaf, of) for leaf, of in zip(made, gradients, strict=True) if of is not None]
        outputs, given = [leaf for leaf, _ in pairs], [of for _, of in pairs]
        return torch.autograd.grad(outputs, self.wanted, given, create_graph=True, allow_unused=True)  # type: ignore[no-any-return]

    def once(self, gradients: Sequence[Any], keep: bool) -> Sequence[Any]:
        """The compiled backward. keep: whether there may be another one."""
        import torch

        pairs = [(leaf, of) for leaf, of in zip(self.inner, gradients, strict=True) if of is not None]
        outputs, given = [leaf for leaf, _ in pairs], [of for _, of in pairs]
        return torch.autograd.grad(outputs, self.wanted, given, retain_graph=keep, allow_unused=True)  # type: ignore[no-any-return]


class Twice:
    """Of one model. compiled, plain: its forward."""

    def __init__(self, module: Any, compiled: Callable[..., Any], plain: Callable[..., Any]) -> None:
        self._module, self._compiled, self._plain = weakref.ref(module), compiled, plain
        self._draws = False
        note_backwards()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module()
        if self._draws or module is None or not _plainly() or any(p._backward_hooks for p in module.parameters()):
            return self._compiled(*args, **kwargs)
        call = Call(module, lambda: self._plain(*args, **kwargs), tensors((args, kwargs)))
        since = _number()
        output = self._compiled(*args, **kwargs)
        self._draws = call.drew()
        call.inner = _differentiable(output)
        call.wanted = [p for p in module.parameters() if p.requires_grad]
        if self._draws or not call.inner or not _made_of(call.inner, call.wanted, since):
            return output
        outer = iter(_function().apply(call, *call.wanted))
        return each_tensor(output, lambda tensor: next(outer) if tensor.requires_grad else tensor)


def _plainly() -> bool:
    """Whether nothing stands around the call that would take it apart, such as an export, or the capture of a graph."""
    import torch

    from hotlap.agent.lines import OpMode

    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return False
    return _transforms.plainly(OpMode)


def _differentiable(output: Any) -> list[Any]:
    """Tensors of an output that have gradients, in the order in which `each_tensor` comes to them."""
    found: list[Any] = []

    def note(tensor: Any) -> Any:
        found.append(tensor)
        return tensor

    each_tensor(output, note)
    return [tensor for tensor in found if tensor.requires_grad]


def _number() -> int:
    """Of a node of autograd's that is made now, which are numbered in their order."""
    import torch

    with torch.enable_grad():
        return int(torch.zeros((), requires_grad=True).view(()).grad_fn._sequence_nr())


def _made_of(tensors: Sequence[Any], wanted: Sequence[Any], since: int) -> bool:
    """Whether tensors depend on nothing else that needs a gradient, such as weights that were made before and may be
    used again, whose graph is not the forward's to free. since: the number of its first node. Weights that a functional
    call put in are no leaves; what these are made of is no affair of the forward's."""
    ends = {(p.grad_fn, p.output_nr) for p in wanted if p.grad_fn is not None}
    leaves = {id(p) for p in wanted if p.grad_fn is None}
    seen: set[Any] = set()
    waiting = [(tensor.grad_fn, tensor.output_nr) for tensor in tensors]
    while waiting:
        node, number = waiting.pop()
        if node is None or (node, number) in ends or node in seen:
            continue
        if len(seen) >= MOST_NODES:
            return False
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if id(leaf) not in leaves if leaf is not None else node._sequence_nr() < since:
            return False
        waiting += node.next_functions
    return True


_keeping: Final[list[bool]] = []
"""Whether each backward that runs leaves its graph for another one, the innermost last."""


@functools.cache
def note_backwards() -> None:
    """Note, from here on, what backwards are asked for."""
    import torch
    from torch.compiler import is_dynamo_compiling

    run = torch.autograd._engine_run_backward

    @functools.wraps(run)
    def backward(roots: Any, gradients: Any, keep: Any, create_graph: Any, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return run(roots, gradients, keep, create_graph, *args, **kwargs)
        _keeping.append(bool(keep or create_graph))
        try:
            return run(roots, gradients, keep, create_graph, *args, **kwargs)
        finally:
            _keeping.pop()

    torch.autograd._engine_run_backward = backward


@functools.cache
def _function() -> Any:
    import torch

    class Forward(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, call: Call, *leaves: Any) -> Any:
            ctx.call = call
            ctx.set_materialize_grads(False)
            return tuple(tensor.detach() for tensor in call.inner)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            call: Call = ctx.call
            if torch.is_grad_enabled():
                return None, *call.again(gradients)
            return None, *call.once(gradients, bool(_keeping) and _keeping[-1])

    return Forward
