"""Not a lever: the output of a linear layer that is not computed until something needs it, or not in float32.

It is a tensor with the logits' shape, dtype, device and place in the autograd graph, without storage. `F.cross_entropy`
of it is computed in chunks (`_chunked_loss`), or from the halves that are there (`_losses`); ops that only regroup,
choose or widen rows give another of its kind; everything else computes the logits, once for all that were made of them,
and goes on with those.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

import torch
from torch.nn import functional

from . import _transforms
from ._chunked_loss import Loss, chunked_cross_entropy
from ._effects import checkpointing
from ._forward_graph import relative_error

DESCRIBING: Final = frozenset((
    "shape", "dtype", "device", "ndim", "layout", "requires_grad", "grad_fn", "is_leaf", "is_cuda", "is_sparse",
    "is_quantized", "is_meta", "is_nested", "is_inference", "itemsize", "nbytes", "size", "dim", "ndimension", "numel",
    "nelement", "element_size", "get_device", "is_floating_point", "is_complex", "__len__", "__hash__",
))  # fmt: skip
"""What is known without the values."""
WRITING: Final = frozenset((
    "__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__ifloordiv__", "__imod__",
    "__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__", "data",
))  # fmt: skip
"""Beside methods whose names end with `_`. What is written into `data` is not told by its version."""


@dataclass(frozen=True)
class Watch:
    """Told what becomes of the logits of a head. fused: a loss took them, or some of their rows were computed alone;
    differs: how far some rows that were computed alone lie from those of the whole (relative, of norms), None where
    that is not looked at; late: the weights were others by the time that they were needed."""

    fused: Callable[[], None]
    computed: Callable[[str], None]
    differs: Callable[[Callable[[], float]], None] | None = None
    late: Callable[[], None] = lambda: None


@dataclass(eq=False, slots=True, weakref_slot=True)
class Product:
    """What is needed to compute logits. dtype: of the product itself; swapped: classes are the dimension before the
    last. weight: None where hidden are the logits already, which only have to be widened, or laid out anew. parent,
    replay: the logits that these were made of, and how, for where the values are needed. kept: weight and bias as they
    were, where they have changed since. rows: they were made without gradients, and rows that are chosen of them are
    computed alone; alone: the version of such a value as it was computed; whole: the logits, where rows are only
    compared with them; taken: a loss read the halves."""

    hidden: torch.Tensor
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    dtype: torch.dtype
    watch: Watch
    swapped: bool = False
    rows: bool = False
    parent: "LazyLogits | None" = None
    replay: Callable[[Any], Any] = lambda logits: logits
    value: torch.Tensor | None = None
    made: list[Any] = field(default_factory=list)
    kept: tuple[torch.Tensor, torch.Tensor | None] | None = None
    versions: tuple[int, ...] = ()
    alone: int | None = None
    whole: torch.Tensor | None = None
    taken: bool = False

    def __post_init__(self) -> None:
        if self.weight is not None:
            self.versions = self._versions()

    def _versions(self) -> tuple[int, ...]:
        return tuple(t._version for t in (self.weight, self.bias) if t is not None)

    def changed(self) -> bool:
        """Whether the weights are others by now."""
        return self.kept is None and self._versions() != self.versions

    def compute(self) -> torch.Tensor:
        """The product, differentiable where gradients are on. Raises RuntimeError where the weights are gone."""
        if self.whole is not None:
            if self.changed():
                self.watch.late()
            return self.whole
        if self.changed():
            raise RuntimeError("hotlap: logits are used after something changed the weights")
        weight, bias = self.kept or (self.weight, self.bias)
        return product(self.hidden, weight, bias, self.dtype)


def product(hidden: Any, weight: Any, bias: Any, dtype: torch.dtype) -> torch.Tensor:
    """A linear layer with its inputs in a dtype, as autocast computes it; without weights its inputs, and in the dtype
    that they have without gaps between their rows."""
    if weight is None:
        return hidden.contiguous() if hidden.dtype == dtype else hidden.to(dtype)
    with torch.autocast(hidden.device.type, enabled=False):
        return functional.linear(hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))


class LazyLogits(torch.Tensor):  # type: ignore[misc]
    """See the module. `lazy` holds the Product."""

    lazy: Product

    @classmethod
    @torch.compiler.disable  # type: ignore[untyped-decorator]  # what is compiled around it ends its graph here
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = getattr(func.__self__, "__name__", "")
        if name in DESCRIBING:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if name == "grad" and getattr(func, "__module__", "") == "torch.autograd":
            return _differentiated(func, *args, **kwargs)
        first = args[0] if args else None
        if isinstance(first, LazyLogits):
            if name in WRITING or (name.endswith("_") and not name.endswith("__")):
                _share(first)
            if first.lazy.value is None and (first.lazy.rows or torch.is_grad_enabled()):
                found = _without_values(name, func, first, args, kwargs)
                if found is not None:
                    return found
        return func(*_with_values(args, name), **_with_values(kwargs, name))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What C++ does with it, below autograd."""
        name = str(func)
        if args and isinstance(args[0], LazyLogits) and name.split(".")[1].endswith("_"):
            _share(args[0])
        return func(*_with_values(args, name, detached=True), **_with_values(kwargs or {}, name, detached=True))


class _Made(torch.autograd.Function):  # type: ignore[misc]
    """Makes lazy logits. Its backward is for gradients that reach them as a tensor, as from a user's own Function."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, bias: Any, like: Any, dtype: torch.dtype) -> Any:
        ctx.save_for_backward(hidden, weight, bias)
        ctx.dtype, ctx.swapped = dtype, like.swapped
        shape = hidden.shape if weight is None else (*hidden.shape[:-1], len(weight))
        if like.swapped:
            shape = (*shape[:-2], shape[-1], shape[-2])
        return torch.Tensor._make_wrapper_subclass(LazyLogits, shape, dtype=like.dtype, device=hidden.device)

    @staticmethod
    def backward(ctx: Any, above: Any) -> tuple[Any, ...]:
        again = torch.is_grad_enabled()
        hidden, weight, bias = (t if again or t is None else t.detach() for t in ctx.saved_tensors)
        inputs, needs = (hidden, weight, bias), ctx.needs_input_grad[:3]
        for tensor, need in zip(inputs, needs, strict=True):
            if need and not again:
                tensor.requires_grad_()
        with torch.enable_grad():
            logits = product(hidden, weight, bias, ctx.dtype)
            above = above.transpose(-1, -2) if ctx.swapped else above
            wanted = [tensor for tensor, need in zip(inputs, needs, strict=True) if need]
            found = iter(torch.autograd.grad(logits, wanted, above.to(logits.dtype), create_graph=again))
        return *(next(found) if need else None for need in needs), None, None


@dataclass(frozen=True)
class _Like:
    """How lazy logits look. dtype: as they are seen, which may be wider than that of the product."""

    dtype: torch.dtype
    swapped: bool = False


def lazy_logits(found: Product, seen_as: torch.dtype | None = None) -> LazyLogits:
    """The logits of a product."""
    like = _Like(seen_as or found.dtype, found.swapped)
    made: LazyLogits = _Made.apply(found.hidden, found.weight, found.bias, like, found.dtype)
    made.lazy = found
    return made


def alone(tensor: torch.Tensor) -> bool:
    """Whether nothing records what is done here, or will do it again."""
    capturing = tensor.is_cuda and torch.cuda.is_current_stream_capturing()
    recorded = capturing or torch._C._get_tracing_state() is not None
    return not _transforms.inside() and not recorded and not checkpointing()


def values(logits: LazyLogits) -> torch.Tensor:
    """The logits themselves, differentiable as those of the layer are, computed at the first call."""
    lazy = logits.lazy
    if lazy.value is None:
        with torch.inference_mode(False), torch.set_grad_enabled(logits.requires_grad):
            if lazy.parent is None:
                lazy.value = lazy.compute()
            elif _of_fewer_rows(lazy, lazy.parent.lazy) and not _written(_first(logits)):
                lazy.value = _rows_alone(logits, lazy.parent)
            else:
                lazy.value = lazy.replay(values(lazy.parent))
        # Views of them show what is written into them from now on; copies do not.
        for other in _made_of(lazy):
            if other.lazy.alone is None and not _of_fewer_rows(other.lazy, lazy):
                values(other)
            else:
                _bring_back(other, lazy.value)
    return lazy.value


def _made_of(lazy: Product) -> "list[LazyLogits]":
    return [other for reference in lazy.made if (other := reference()) is not None]


def _of_fewer_rows(lazy: Product, parent: Product) -> bool:
    return lazy.rows and parent.value is None and lazy.hidden.numel() < parent.hidden.numel()


def _first(logits: LazyLogits) -> LazyLogits:
    """Those that they were made of."""
    while logits.lazy.parent is not None:
        logits = logits.lazy.parent
    return logits


def _written(logits: LazyLogits) -> bool:
    """Whether something was written into rows that were computed alone."""
    return _written_itself(logits.lazy) or any(map(_written, _made_of(logits.lazy)))


def _written_itself(lazy: Product) -> bool:
    return lazy.alone is not None and lazy.value is not None and lazy.value._version != lazy.alone


def _rows_alone(logits: LazyLogits, parent: LazyLogits) -> torch.Tensor:
    """Chosen rows, without the others."""
    lazy, whole = logits.lazy, _first(logits).lazy.whole
    if whole is not None and lazy.changed():
        lazy.watch.late()
        found = lazy.replay(_computed_apart(parent)).clone()
    else:
        found = lazy.compute()
        found = (found.transpose(-1, -2) if lazy.swapped else found).to(logits.dtype)
        if lazy.watch.differs is not None:
            lazy.watch.differs(lambda: relative_error(found, lazy.replay(_computed_apart(parent))))
        found = found if whole is None else lazy.replay(_computed_apart(parent)).clone()
    lazy.alone = found._version
    lazy.watch.fused()
    return found


def _computed_apart(logits: LazyLogits) -> Any:
    """The logits, without keeping them."""
    lazy = logits.lazy
    return lazy.compute() if lazy.parent is None else lazy.replay(_computed_apart(lazy.parent))


def _bring_back(logits: LazyLogits, whole: torch.Tensor) -> None:
    """Into logits that are computed now, what was written into rows of them that were computed alone before."""
    lazy = logits.lazy
    if not _written(logits) or not _same_memory(place := lazy.replay(whole), whole):
        return
    if _written_itself(lazy):
        place.copy_(lazy.value)
    for other in _made_of(lazy):
        _bring_back(other, place)


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())


def _share(logits: LazyLogits) -> None:
    """Before something is written into them: those that are views of one another have the same memory from now on."""
    if logits.lazy.rows:
        logits = _first(logits)
        values(logits)
        _settle(logits)


def _settle(logits: LazyLogits, before: torch.Tensor | None = None) -> None:
    """Those that were made of logits are parts of their value from now on. before: what that was."""
    value = logits.lazy.value
    assert value is not None, "it was computed"
    for other in _made_of(logits.lazy):
        was = other.lazy.value
        apart = was is None or other.lazy.alone is not None or (before is not None and _same_memory(was, before))
        made = other.lazy.replay(value) if apart else None
        if made is not None and (was is None or _same_memory(made, value)):
            other.lazy.value = made
        other.lazy.alone = None
        _settle(other, was)


def _with_values(found: Any, name: str, detached: bool = False) -> Any:
    """Arguments of a function, with logits where lazy ones were."""
    if isinstance(found, LazyLogits):
        if found.lazy.value is None:
            found.lazy.watch.computed(name)
        return values(found).detach() if detached else values(found)
    if isinstance(found, dict):
        return {key: _with_values(item, name, detached) for key, item in found.items()}
    if type(found) in {list, tuple}:
        return type(found)(_with_values(item, name, detached) for item in found)
    return found


def _without_values(name: str, func: Any, logits: LazyLogits, args: Any, kwargs: Any) -> Any:
    """The result of a function that does not need them, None where it does."""
    takes_loss = name == "cross_entropy" and not logits.lazy.rows
    if takes_loss and getattr(func, "__module__", "") == functional.__name__:
        return (_fused if logits.lazy.weight is not None else _of_half)(logits, *args[1:], **kwargs)
    change = CHANGES.get(name)
    return None if change is None or logits.lazy.swapped else change(logits, func, args[1:], kwargs)


def _fused(
    logits: LazyLogits,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """The cross-entropy in chunks; None where it is one that has to see the logits."""
    lazy = logits.lazy
    rows = lazy.hidden.shape[:-1]
    if size_average is not None or reduce is not None or reduction not in {"mean", "sum"}:
        return None
    if len(rows) != 1 + lazy.swapped or type(target) is not torch.Tensor or target.shape != rows:
        return None
    if target.dtype != torch.int64 or target.device != logits.device:
        return None
    if weight is not None and (type(weight) is not torch.Tensor or weight.requires_grad):
        return None
    result = _loss_dtype(logits.dtype, logits.device.type, torch.is_autocast_enabled(logits.device.type))
    loss = Loss(weight, ignore_index, reduction, label_smoothing, lazy.dtype, result)
    hidden = lazy.hidden.flatten(0, -2)
    found = chunked_cross_entropy(hidden, lazy.weight, lazy.bias, target.flatten(), loss)
    lazy.watch.fused()
    return found


def _of_half(logits: LazyLogits, *args: Any, **kwargs: Any) -> Any:
    """The loss of logits that it widens as it reads them, or reads as they are; None where it is not compiled."""
    lazy, loss = logits.lazy, getattr(functional.cross_entropy, "of_half", None)
    if loss is not None and logits.dtype == lazy.hidden.dtype:
        loss = functional.cross_entropy
    if loss is None or any(isinstance(item, LazyLogits) for item in (*args, *kwargs.values())):
        return None
    lazy.watch.fused()
    _first(logits).lazy.taken = True
    return loss(lazy.hidden.transpose(-1, -2) if lazy.swapped else lazy.hidden, *args, **kwargs)


def _differentiated(func: Any, outputs: Any, inputs: Any, **kwargs: Any) -> Any:
    """`torch.autograd.grad`, also of logits whose halves a loss read."""
    halves = [isinstance(one, LazyLogits) and _first(one).lazy.taken and _untouched(one.lazy) for one in inputs]
    asked = tuple(one.lazy.hidden if half else one for one, half in zip(inputs, halves, strict=True))
    found = func(_with_values(outputs, "grad"), _with_values(asked, "grad"), **_with_values(kwargs, "grad"))
    return tuple(
        g if g is None or not half else (g.transpose(-1, -2) if one.lazy.swapped else g).to(one.dtype)
        for g, one, half in zip(found, inputs, halves, strict=True)
    )


def _untouched(lazy: Product) -> bool:
    return lazy.value is None or lazy.value._version == 0


@cache
def _loss_dtype(logits: torch.dtype, device: str, autocast: bool) -> torch.dtype:
    """What torch makes the loss of logits of a dtype."""
    one = functional.cross_entropy(
        torch.zeros(1, 2, dtype=logits, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    )
    return one.dtype


def _another(logits: LazyLogits, replay: Callable[[Any], Any], hidden: Any = None, **changes: Any) -> LazyLogits:
    """Logits made of others."""
    lazy = logits.lazy
    seen_as = changes.pop("seen_as", logits.dtype)
    changes |= {"parent": logits, "replay": replay, "hidden": lazy.hidden if hidden is None else hidden}
    made = lazy_logits(replace(lazy, made=[], whole=None, taken=False, **changes), seen_as)
    lazy.made.append(weakref.ref(made))
    return made


def _as_meta(logits: LazyLogits, func: Any, args: Any, kwargs: Any) -> Any:
    """What a function makes of a tensor without values that is otherwise like the logits."""
    return func(torch.empty(logits.shape, dtype=logits.dtype, device="meta"), *args, **kwargs)


def _regrouped(logits: LazyLogits, func: Any, args: Any, kwargs: Any) -> Any:
    after = _as_meta(logits, func, args, kwargs)
    lazy = logits.lazy
    if after.dtype != logits.dtype or after.dim() == 0 or after.shape[-1] != logits.shape[-1]:
        return None
    hidden = lazy.hidden.reshape(*after.shape[:-1], lazy.hidden.shape[-1])
    return _another(logits, lambda found: func(found, *args, **kwargs), hidden)


def _swapped(logits: LazyLogits, func: Any, args: Any, kwargs: Any) -> Any:
    """(batch, length, classes) to (batch, classes, length), as the loss wants it."""
    if logits.dim() != 3:
        return None
    batch, length, classes = logits.shape
    after = _as_meta(logits, func, args, kwargs)
    if after.shape != (batch, classes, length) or after.stride() != (length * classes, 1, classes):
        return None
    return _another(logits, lambda found: func(found, *args, **kwargs), swapped=True)


def _chosen(logits: LazyLogits, func: Any, args: Any, kwargs: Any) -> Any:
    """Rows of them."""
    (index,) = args
    if not _of_rows(index, logits.dim()):
        return None
    made = _another(logits, lambda found: found[index], logits.lazy.hidden[index])
    if _of_fewer_rows(made.lazy, logits.lazy):
        values(made)  # at once: the weights may be others when they are used
    return made


def _of_rows(index: Any, dims: int) -> bool:
    """Whether an index leaves the last dimension whole."""
    if type(index) is torch.Tensor:
        chooses = index.dtype == torch.int64 or (index.dtype == torch.bool and index.dim() < dims)
        return bool(chooses and index.dim() > 0)  # of one number it is a view
    parts = index if isinstance(index, tuple) else (index,)
    if not all(part is Ellipsis or type(part) in {int, slice} for part in parts) or not parts:
        return False
    reaches_last = Ellipsis in parts or len(parts) == dims
    return not reaches_last or parts[-1] is Ellipsis or parts[-1] == slice(None)


def _copied(logits: LazyLogits, func: Any, args: Any, kwargs: Any) -> Any:
    """Also of the hidden values: those that a CUDA graph returns are written over by its next replay."""
    return None if args or kwargs else _another(logits, func, func(logits.lazy.hidden))


def _detached(logits: LazyLogits, func: Any, args: Any, kwargs: Any) -> Any:
    return _another(logits, func) if logits.lazy.rows else None


def _widened(logits: LazyLogits, func: Any, args: Any, kwargs: Any) -> Any:
    """To float32, from it or from a half."""
    wanted = args[0] if len(args) == 1 and not kwargs else kwargs.get("dtype") if len(kwargs) == 1 else None
    if func.__name__ == "float" and not args and not kwargs:
        wanted = torch.float32
    if wanted == logits.dtype or (isinstance(wanted, torch.device) and wanted == logits.device):
        return logits
    if wanted is not torch.float32 or logits.dtype.itemsize > wanted.itemsize:
        return None
    return _another(logits, lambda found: found.float(), seen_as=wanted)


CHANGES: Final[dict[str, Callable[..., Any]]] = {
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"), _regrouped),
    **dict.fromkeys(("transpose", "permute", "movedim", "swapaxes"), _swapped),
    **dict.fromkeys(("clone", "contiguous"), _copied),
    **dict.fromkeys(("float", "to"), _widened),
    "__getitem__": _chosen,
    "detach": _detached,
}
