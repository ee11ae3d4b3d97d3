"""Not a lever: linear layers whose logits are not computed until something needs them, and what becomes of these."""

import weakref
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from hotlap.agent.heads import heads
from hotlap.agent.seams import Forward, Refused

from ._autocast import product_dtype
from ._graph import Compiled
from ._large_head import LEAST_CLASSES, LEAST_LOGITS
from ._lazy_logits import Product, Watch, alone, lazy_logits
from ._padded_head import free

PATIENCE: Final = 4
"""Forwards of a head in which its logits must have reached a loss."""
PATIENCE_FOR_ROWS: Final = 64
"""The same for rows that are chosen: the first forwards of a trial are looked at as a whole."""
COMPARED: Final = 3
ROWS_DIFFER: Final = 0.01
"""Relative, of norms: libraries choose other kernels for fewer rows."""


class Heads:
    """The heads in one process. refuse: told why the logits of all of them turned out to be needed. rows: forwards
    without gradients, of whose logits those rows are computed that are used; else forwards whose logits a loss takes.
    unsteady: called where that is compared with the whole."""

    def __init__(
        self, refuse: Callable[[str], None], rows: bool = False, unsteady: Callable[[], None] = lambda: None
    ) -> None:
        self.refuse, self.rows, self.unsteady = refuse, rows, unsteady
        self.on: list[Head] = []
        self.taken: weakref.WeakKeyDictionary[Any, list[Head]] = weakref.WeakKeyDictionary()
        """By model, once its forward was wrapped."""
        self.made: weakref.WeakSet[Product] = weakref.WeakSet()

    def wrap(self, root: Any, forward: Forward) -> Forward:
        """Take hold of a model's heads; where levers capture its forward, their graphs end before a head.

        Raises Refused where there are none, or where others than the script look at its output.
        """
        distributed = torch.distributed
        ranks = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
        if ranks > 1 or hasattr(root, "module") or any(isinstance(m, torch.nn.DataParallel) for m in root.modules()):
            raise Refused("the model is wrapped or trained by several processes, which look at its output")
        found = self.taken.get(root)
        if found is None:
            fit = (one for one in heads(root, LEAST_CLASSES) if free(one) and not _hooked(one))
            found = [Head(self, module) for module in fit]
            if not found:
                raise Refused(f"no linear layer outside of repeated blocks has {LEAST_CLASSES} outputs or more")
            if not self.on and not self.rows:
                register_optimizer_step_pre_hook(self.before_update)
            self.taken[root] = found
            self.on += found
        if isinstance(getattr(forward, "compiled", forward), Compiled):
            for head in found:
                head.end_graphs()
        return forward

    def put_in(self) -> None:
        """Where the lever was taken out: take hold of the heads that did not leave."""
        for head in self.on:
            head.put_in()

    def take_out(self) -> None:
        """The heads are as they were, until they are put in again. Logits that were made so far stay what they are."""
        for head in self.on:
            head.take_out()

    def before_update(self, *_: Any) -> None:
        """Logits that the script still holds are those of the weights as they are now: one copy of these for all."""
        copies: dict[int, tuple[Any, Any]] = {}
        with torch.no_grad():
            for logits in [logits for logits in self.made if logits.value is None and logits.kept is None]:
                key, weight = id(logits.weight), logits.weight
                if weight is not None and key not in copies:
                    copies[key] = weight.clone(), None if logits.bias is None else logits.bias.clone()
                logits.kept = copies[key]

    def off(self, head: "Head") -> None:
        """A head's logits go elsewhere."""
        self.on.remove(head)
        if not self.on:
            whole = "they are needed as a whole" if self.rows else "no F.cross_entropy takes the logits"
            self.refuse(head.wrong or f"{whole}: {head.last}")


class Head:
    """What stands in a head's `_compiled_call_impl`, which pickles and copies do not take along."""

    def __init__(self, every: Heads, module: Any) -> None:
        self.every = every
        self.module: Callable[[], Any] = weakref.ref(module)
        self.made = self.fused = 0
        self.last, self.wrong = "nothing does", ""
        self.ends_graphs = False
        self.watch = Watch(self.count, self.note, self.compare if every.rows else None, self.come_late)
        self.put_in()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self.module()
        rows = self.every.rows
        if kwargs or len(args) != 1 or not _may(module, args[0], rows):
            return module._call_impl(*args, **kwargs)
        self.made += 1
        if (self.made > (PATIENCE_FOR_ROWS if rows else PATIENCE) and not self.fused) or self.wrong:
            self.leave()
            return module(*args)
        logits = (self.of_rows if rows else self.of_loss)(module, args[0])
        self.every.made.add(logits)
        return lazy_logits(logits)

    def of_loss(self, module: Any, hidden: Any) -> Product:
        return Product(hidden, module.weight, module.bias, product_dtype(hidden), self.watch)

    def of_rows(self, module: Any, hidden: Any) -> Product:
        """Of a copy of the layer's input, which may be written over, and of weights that lie where they lie now. Until
        rows were chosen some times, the logits are there as a whole."""
        weight, bias = module.weight.detach(), None if module.bias is None else module.bias.detach()
        with torch.inference_mode(False), torch.no_grad():
            whole = module._call_impl(hidden) if self.fused < COMPARED else None
        return Product(hidden.clone(), weight, bias, product_dtype(hidden), self.watch, rows=True, whole=whole)

    def count(self) -> None:
        """A loss was taken in chunks, or some rows were computed alone."""
        self.fused += 1

    def compare(self, gap: Callable[[], float]) -> None:
        """Whether rows that were computed alone are those of the whole, the first times."""
        if self.fused < COMPARED:
            self.every.unsteady()
            differ = gap()
            if not differ <= ROWS_DIFFER:
                self.wrong = f"rows that are computed alone differ by {differ:.2%} from those of the whole"

    def note(self, name: str) -> None:
        """A function needed the logits."""
        self.last = f"{name} does"

    def come_late(self) -> None:
        """Logits were used after the weights had changed, as scripts do that compare two sets of weights."""
        self.wrong = "its logits are used after its weights have changed"

    def end_graphs(self) -> None:
        """Let torch.compile call this head where it is instead of taking it into its graph."""
        self.ends_graphs = True
        if (module := self.module()) is not None and "forward" not in module.__dict__:
            module.__dict__["forward"] = NotInGraphs(module)

    def put_in(self) -> None:
        """The layer's calls come here."""
        if (module := self.module()) is not None:
            module.__dict__["_compiled_call_impl"] = self
        if self.ends_graphs:
            self.end_graphs()

    def take_out(self) -> None:
        """The layer is as it was."""
        if (module := self.module()) is None:
            return
        if module.__dict__.get("_compiled_call_impl") is self:
            del module.__dict__["_compiled_call_impl"]
        if isinstance(module.__dict__.get("forward"), NotInGraphs):
            del module.__dict__["forward"]

    def leave(self) -> None:
        """Its logits go elsewhere: the layer is as it was for good."""
        self.take_out()
        self.every.off(self)


class NotInGraphs:
    """A linear layer's forward that torch.compile leaves to Python. In a pickle or a copy it is the layer's own."""

    _torchdynamo_disable = True
    _torchdynamo_disable_msg = "hotlap computes what is used of it, from the layer's input"

    def __init__(self, module: Any) -> None:
        self.module: Callable[[], Any] = weakref.ref(module)

    def __call__(self, hidden: Any) -> Any:
        module = self.module()
        return type(module).forward(module, hidden)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.module(), "forward")  # while it is made, a copy has only what its class has


def _may(module: Any, hidden: Any, rows: bool) -> bool:
    """Whether the layer is called as usual, for many logits, and computes what chunks compute."""
    weight = module.weight
    if torch.is_grad_enabled() is rows or type(hidden) is not torch.Tensor or type(weight) is not torch.nn.Parameter:
        return False
    if hidden.dim() < 2 or hidden.numel() // max(1, hidden.shape[-1]) * len(weight) < LEAST_LOGITS:
        return False
    return alone(hidden) and not _hooked(module) and _alike(hidden, weight)


def _hooked(module: Any) -> bool:
    every = torch.nn.modules.module
    own = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(own) or any((every._global_forward_hooks, every._global_forward_pre_hooks, every._global_backward_hooks))


def _alike(hidden: Any, weight: Any) -> bool:
    """Whether chunks compute the same product. Not in float16, whose sums over many rows overflow."""
    if hidden.device != weight.device or product_dtype(hidden) not in {torch.float32, torch.bfloat16, torch.float64}:
        return False
    if torch.is_autocast_enabled(hidden.device.type):
        return torch.float64 not in {hidden.dtype, weight.dtype}
    return bool(hidden.dtype == weight.dtype)
