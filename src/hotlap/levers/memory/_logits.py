"""Logits that are computed when something asks for them, which cross-entropy does not: it takes what they come from.

What stands for them is a tensor of their shape and type without their memory. Views, casts and `log_softmax` of it stay
so. Everything else in Python gets the real ones, with their graph. Code that is no function of torch's, as of a
`torch.autograd.Function`, sees NaN if it reads the memory itself; its gradients find their way.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from hotlap.agent.torch_internals import is_plain, version_of

from .._nested import each_tensor

SEEN: Final = {
    Tensor.size, Tensor.dim, Tensor.numel, Tensor.nelement, Tensor.element_size, Tensor.is_floating_point,
    Tensor.is_complex, Tensor.__len__, Tensor.untyped_storage, Tensor.get_device, torch.is_floating_point, torch.numel,
    *(getattr(Tensor, name).__get__ for name in (
        "shape", "ndim", "dtype", "device", "layout", "requires_grad", "grad_fn", "is_leaf", "is_cuda", "is_cpu",
        "is_meta", "is_sparse", "is_nested", "is_quantized", "names", "itemsize", "nbytes",
    ) if hasattr(Tensor, name)),
}  # fmt: skip
"""What is the same of what stands for the logits, or of them."""
RESHAPES: Final = {
    Tensor.view, Tensor.reshape, torch.reshape, Tensor.flatten, torch.flatten, Tensor.squeeze, torch.squeeze,
    Tensor.unsqueeze, torch.unsqueeze, Tensor.unflatten, torch.unflatten,
}  # fmt: skip
ORDERS: Final = {
    Tensor.transpose, torch.transpose, Tensor.swapaxes, Tensor.permute, torch.permute, Tensor.movedim, torch.movedim,
    Tensor.mT.__get__,
}  # fmt: skip
SAME: Final = {Tensor.contiguous, Tensor.float, Tensor.to, Tensor.type_as}
SOFTMAX: Final = {functional.log_softmax, torch.log_softmax, Tensor.log_softmax}


class Asking(Protocol):
    """Who asks for logits to be computed later. parts: of the rows, that a loss is computed in; fused: how many losses
    were; guarded: `call(act, *args)`, None after an error."""

    parts: int
    fused: int
    guarded: Callable[..., Any]

    def stale(self) -> None:
        """Logits were asked for after something but an optimizer wrote to the weight: they are of what it is now."""


class Call:
    """A call of a head. rows: its input; half: of the autocast that it ran in; real: the logits, once they were asked
    for; kept: weights are a copy, as an update came first."""

    def __init__(self, heads: Asking, head: Any, rows: Any, half: Any) -> None:
        self.heads, self.rows, self.half = heads, rows, half
        self.weight, self.bias = head.weight, head.bias
        self.version = version_of(head.weight)
        self.real: Any = None
        self.kept = False

    @property
    def open(self) -> bool:
        """Whether nobody asked for them, so that nobody can have changed them, and the weight is what it was."""
        return self.real is None and not self.kept and version_of(self.weight) == self.version

    def autocast(self) -> Any:
        """As around the call."""
        return torch.autocast(self.rows.device.type, self.half, enabled=self.half is not None)

    def logits(self) -> Any:
        """The real ones, with their graph."""
        if self.real is None:
            if not self.kept and version_of(self.weight) != self.version:
                self.heads.stale()
            with torch.enable_grad(), self.autocast():
                self.real = functional.linear(self.rows, self.weight, self.bias)
        return self.real

    def keep(self) -> None:
        """The weight is about to be updated: logits that are asked for later are those of now."""
        if self.real is None and not self.kept:
            self.weight = self.weight.detach().clone()
            self.bias = None if self.bias is None else self.bias.detach().clone()
            self.kept = True


class Logits(Tensor):  # type: ignore[misc]
    """What stands for logits, or their logarithms. rows: the head's input, in the order of the dimensions without the
    classes; at: the dimension of the classes; logarithm: of the softmax; ask: gives the real ones; seen: itself, as a
    plain tensor."""

    call: Call
    rows: Any
    at: int
    logarithm: bool
    ask: Callable[[], Any]
    seen: Any

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in SEEN:
            return func(*each_tensor(args, _seen), **each_tensor(kwargs, _seen))
        if func in TAKEN:
            logits, *more = args or (kwargs.pop("input"),)
            if isinstance(logits, Logits) and torch.is_grad_enabled() and logits.call.open:
                found = logits.call.heads.guarded(TAKEN[func], logits, func, more, kwargs)
                if found is not None:
                    return found
            args = (logits, *more)
        return func(*each_tensor(args, _real), **each_tensor(kwargs, _real))


def _seen(tensor: Any) -> Any:
    return tensor.seen if isinstance(tensor, Logits) else tensor


def _real(tensor: Any) -> Any:
    return tensor.ask() if isinstance(tensor, Logits) else tensor


def later(call: Call, rows: Any, at: int, ask: Callable[[], Any], dtype: Any = None, logarithm: bool = False) -> Logits:
    """What stands for logits. dtype: of the head's own if not given."""
    dtype = dtype or call.half or rows.dtype
    seen = Edge.apply(rows, call.weight, call.bias, call, (at, dtype, logarithm))
    found: Logits = seen.as_subclass(Logits)
    found.call, found.rows, found.at, found.ask, found.seen = call, rows, at, ask, seen
    found.logarithm = logarithm
    return found


class Edge(torch.autograd.Function):  # type: ignore[misc]
    """Where a gradient of what stands for logits goes: what takes it past torch's functions sends one."""

    @staticmethod
    def forward(ctx: Any, rows: Any, weight: Any, bias: Any, call: Call, form: tuple[int, Any, bool]) -> Any:
        ctx.save_for_backward(rows, weight, bias)
        ctx.autocast, ctx.form = call.autocast, form
        shape = [*rows.shape[:-1]]
        shape.insert(form[0], weight.shape[0])
        return rows.new_full((), torch.nan, dtype=form[1]).expand(shape)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        at, dtype, logarithm = ctx.form

        def made(rows: Any, weight: Any, bias: Any) -> Any:
            with ctx.autocast():
                logits = functional.linear(rows, weight, bias).movedim(-1, at).to(dtype)
            return logits.log_softmax(at) if logarithm else logits

        loss, given = _inner(made, ctx.saved_tensors, ctx.needs_input_grad)
        return *_gradients(loss, given, ctx.needs_input_grad, gradient), None, None


def _view(logits: Logits, func: Any, args: Any, kwargs: Any) -> Any:
    """A view of logits, or a cast, as what stands for it; None where it has to be of the real ones."""
    rows, at, dtype, last = logits.rows, logits.at, logits.dtype, logits.dim() - 1
    if func in RESHAPES and at == last and not any(isinstance(one, torch.dtype) for one in args):
        shape = func(torch.empty(logits.shape, device="meta", dtype=dtype), *args, **kwargs).shape
        if shape[-1] != logits.shape[-1]:
            return None
        rows = rows.reshape(*shape[:-1], rows.shape[-1])
        at = len(shape) - 1
    elif func in ORDERS:
        order = [
            size - 2
            for size in func(torch.empty(*range(2, last + 3), device="meta", dtype=dtype), *args, **kwargs).shape
        ]
        rows = rows.permute(*(dim - (dim > at) for dim in order if dim != at), last)
        at = order.index(at)
    elif func in SAME:
        alike = func(torch.empty((), dtype=dtype, device=logits.device), *args, **kwargs)
        if alike.device != logits.device or alike.dtype not in {dtype, torch.float32} or logits.logarithm:
            return None
        if func is not Tensor.contiguous and alike.dtype == dtype and not kwargs.get("copy"):
            return logits
        dtype = alike.dtype
    elif func is Tensor.__getitem__ and at == last and (index := _of_rows(args[0], last)) is not None:
        rows = rows[index]
        at = rows.dim() - 1
    else:
        return None
    ask = logits.ask
    return later(logits.call, rows, at, lambda: func(ask(), *args, **kwargs), dtype, logits.logarithm)


def _of_rows(index: Any, dims: int) -> Any:
    """An index of logits as one of their rows; None where it chooses among classes, or is of another kind."""
    if isinstance(index, Tensor):
        return index if is_plain(index) and index.dtype is torch.bool and index.dim() <= dims else None
    every = list(index) if isinstance(index, tuple) else [index]
    if not all(one is ... or type(one) in {int, slice} for one in every):
        return None
    if ... not in every:
        every.append(...)
    at = every.index(...)
    every[at : at + 1] = [slice(None)] * (dims + 2 - len(every))
    return tuple(every[:-1]) if every[-1] == slice(None) and ... not in every else None


def _log_softmax(logits: Logits, func: Any, args: Any, kwargs: Any) -> Any:
    dim = args[0] if args else kwargs.get("dim")
    if dim not in {logits.at, logits.at - logits.dim()} or logits.logarithm or kwargs.get("dtype") is not None:
        return None
    ask, dtype = logits.ask, torch.float32 if logits.call.half else logits.dtype
    return later(logits.call, logits.rows, logits.at, lambda: func(ask(), *args, **kwargs), dtype, True)


def _loss(logits: Logits, func: Any, args: Any, kwargs: Any) -> Any:
    """The loss by torch's own function; None where it has no such loss."""
    given = dict(zip(LOSSES[func][1], args, strict=False)) | kwargs
    target, kind = given.pop("target", None), given.get("reduction", "mean")
    usual = not given.get("label_smoothing") and given.get("size_average") is None and given.get("reduce") is None
    if not usual or logits.logarithm is not LOSSES[func][0] or kind not in {"mean", "sum", "none"}:
        return None
    shape = logits.rows.shape[:-1]
    if not isinstance(target, Tensor) or target.dtype is not torch.int64 or target.shape != shape:
        return None
    if logits.at != min(1, logits.dim() - 1) or not logits.rows.numel():
        return None
    call = logits.call
    how = Loss(call, {name: given[name] for name in ("weight", "ignore_index") if name in given} | {"reduction": kind})
    rows = logits.rows.reshape(-1, logits.rows.shape[-1])
    loss = Fused.apply(rows, call.weight, call.bias, target.reshape(-1), how)
    call.heads.fused += 1
    return loss.reshape(shape) if kind == "none" else loss


class Loss(NamedTuple):
    """How a loss is computed. arguments: those that cross-entropy was called with."""

    call: Call
    arguments: dict[str, Any]

    def whole(self, rows: Any, weight: Any, bias: Any, target: Any) -> Any:
        """From logits."""
        with self.call.autocast():
            return functional.cross_entropy(functional.linear(rows, weight, bias), target, **self.arguments)

    def in_parts(self, rows: Any, weight: Any, bias: Any, target: Any) -> Any:
        """By torch's function, which has no logits but those of a part of the rows."""
        half = self.call.half
        if half is not None:
            rows, weight, bias = (None if one is None else one.to(half) for one in (rows, weight, bias))
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=-(-len(rows) // self.call.heads.parts))
        with torch.autocast(rows.device.type, enabled=False):
            loss = functional.linear_cross_entropy(
                rows, weight, target, linear_bias=bias, options=options, **self.arguments
            )
        return loss if half is None else loss.float()


class Fused(torch.autograd.Function):  # type: ignore[misc]
    """The loss in parts. Torch's function has its gradients from the forward on, gives them once, and they can't be
    differentiated. So it is called again for a second backward, and logits are computed for gradients of gradients."""

    @staticmethod
    def forward(ctx: Any, rows: Any, weight: Any, bias: Any, target: Any, how: Loss) -> Any:
        ctx.save_for_backward(rows, weight, bias, target)
        ctx.how = how
        ctx.inner = _inner(how.in_parts, (rows, weight, bias, target), ctx.needs_input_grad)
        return ctx.inner[0].detach()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if torch.is_grad_enabled():
            found = ctx.how.whole(*ctx.saved_tensors), ctx.saved_tensors
        else:
            found = ctx.inner or _inner(ctx.how.in_parts, ctx.saved_tensors, ctx.needs_input_grad)
        ctx.inner, (loss, given) = None, found
        return *_gradients(loss, given, ctx.needs_input_grad, gradient), None


def _gradients(result: Any, given: Any, needs: Any, gradient: Any) -> list[Any]:
    """Of what a result was made of, where they are needed."""
    wanted = [one for one, need in zip(given, needs, strict=False) if need]
    found = iter(torch.autograd.grad(result, wanted, gradient, create_graph=torch.is_grad_enabled()))
    return [next(found) if need else None for _, need in zip(given, needs, strict=False)]


def _inner(loss: Callable[..., Any], given: Any, needs: Any) -> tuple[Any, list[Any]]:
    """A loss in a graph of its own, and what that begins with."""
    with torch.enable_grad():
        alone = [
            None if one is None else one.detach().requires_grad_(need) for one, need in zip(given, needs, strict=False)
        ]
        return loss(*alone), alone


_NAMES: Final = ("target", "weight", "size_average", "ignore_index", "reduce", "reduction")
LOSSES: Final = {
    functional.cross_entropy: (False, (*_NAMES, "label_smoothing")),
    functional.nll_loss: (True, _NAMES),
}
"""Whether of logarithms, and the names of what follows them."""
TAKEN: Final = {
    **dict.fromkeys({*RESHAPES, *ORDERS, *SAME, Tensor.__getitem__}, _view),
    **dict.fromkeys(SOFTMAX, _log_softmax),
    **dict.fromkeys(LOSSES, _loss),
}
