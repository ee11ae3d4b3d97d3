"""The head over a vocabulary and the cross-entropy of its logits at once, in parts, by torch's own function.

In training the head returns logits that are not computed yet (`_logits.py`). Views of them stay so. Cross-entropy takes
the head's input and weight instead. Whatever else asks for the logits gets them, computed at that moment.
"""

import weakref
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .._base import Applies, Context, Lever, Settings, Unwritten, integer
from .._internals import internals

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Facts

    from ._logits import Call

LEAST_CLASSES: Final = 4096
PARTS: Final = 8
"""Of 4 to 8 steps were shortest. Of 32 they were longer, as each goes through the weight and its gradient once more,
and the peak was elsewhere already."""
SHARE: Final = 0.5
PATIENCE: Final = 8
"""Calls of the head in which one must have gone into a cross-entropy."""
SINCE: Final = (2, 13)


class LinearCrossEntropy(Lever):
    """`torch.nn.functional.linear_cross_entropy` in place of a linear layer and `cross_entropy` of its output."""

    name = "linear-cross-entropy"
    meaning = "logits over a vocabulary are never whole: linear layer and cross-entropy at once, in parts of the rows"
    causes = {"memory": 1}
    risk = "numeric"
    tolerance = 0.005
    settings = {"parts": integer(2, 1024)}
    excludes = ("attention", "graph-training")
    switchable = True
    eager = True
    memory_order = 15
    frees = {"activations": 0.9, "temporaries": 0.9, "request": 0.9}
    takes = "a gradient of the head's weight from the forward on; steps are about as long"
    unwritten = Unwritten(
        "the model has to return the head's input where training needs no logits, and the loss to take the head's "
        "weight; the source does not show who else reads the logits",
        "calls",
    )

    def applies(self, context: Context) -> Applies:
        roots = [root for root in context.facts.roots if root.training]
        if not roots:
            return Applies(False, "no module's forward was seen in training")
        classes = max(root.classes for root in roots)
        if classes < LEAST_CLASSES:
            return Applies(False, f"no linear layer has {LEAST_CLASSES} outputs, so logits are small")
        if any(root.compiled for root in roots):
            return Applies(False, "the script compiles the model, and torch's function does not work in its graphs")
        if any(root.wrapper not in {None, "DistributedDataParallel"} for root in roots):
            return Applies(False, f"{roots[0].wrapper} has the weights elsewhere by the time of the loss")
        if any(root.autocast == "float16" for root in roots):
            return Applies(False, "gradients in float16 come before the loss is scaled, and would be 0")
        if _version(context.facts.torch) < SINCE:
            return Applies(False, f"torch {context.facts.torch} has no linear_cross_entropy in parts; 2.13 has")
        return Applies(True, f"logits of {classes} classes, and as much again for their loss and its gradient")

    def settled(self, facts: "Facts", active: Collection[str]) -> bool:
        return facts.model is not None and (facts.model.compiled or facts.model.classes < LEAST_CLASSES)

    def share(self, context: Context) -> float:
        """On a CPU the fewer passes over memory, and pages of it, made steps of language models half as long. Compilers
        do as much on a GPU, and exclude it."""
        return 0.0 if context.cuda else SHARE * context.share_of("forward", "backward")

    def variants(self, context: Context) -> list[Settings]:
        return [{"parts": PARTS}]

    def install(self, seams: "Seams", settings: Settings) -> None:
        found = Heads(seams, self.name, settings["parts"])
        seams.on_root(found.change, found.leave)
        seams.on_optimizer(found.before_updates, found.leave_updates)

    def source(self, settings: Settings) -> str:
        return (
            "# the model returns x, the head's input, in place of logits\n"
            f"options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=-(-len(x) // {settings['parts']}))\n"
            "loss = F.linear_cross_entropy(x, head.weight, targets, linear_bias=head.bias, options=options)"
        )


def _version(text: str) -> tuple[int, ...]:
    """The first two numbers of torch's version; those of none where it is written otherwise."""
    found = text.split(".")[:2]
    return tuple(map(int, found)) if all(map(str.isdecimal, found)) else ()


class Heads:
    """The heads of a process, and what became of their logits. calls: of them; fused: how many cross-entropies took
    their place; off: heads compute as they did."""

    def __init__(self, seams: "Seams", lever: str, parts: int) -> None:
        self.seams, self.lever, self.parts = seams, lever, parts
        self.calls = self.fused = 0
        self.off = False
        self.guarded = seams.guarded(lever, self.stop)
        self.pending: weakref.WeakSet[Call] = weakref.WeakSet()
        """Calls whose logits somebody still holds."""
        self.hooks: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def stop(self) -> None:
        """From here on heads compute as they did."""
        self.off = True

    def change(self, root: Any) -> None:
        """Have the heads of a model return logits that are not computed yet. Raises Refused."""
        import torch

        from hotlap.agent.facts.blocks import heads
        from hotlap.agent.seams import Refused

        if not hasattr(torch.nn, "LinearCrossEntropyOptions"):
            raise Refused("this torch has no linear_cross_entropy in parts")
        if any(isinstance(module, torch.nn.DataParallel) for module in root.modules()):
            raise Refused("DataParallel copies the modules, and the copies would run the original's head")
        found = [head for head in heads(root) if head is not root and self._fits(head)]
        if not found:
            raise Refused(f"no linear layer of the model has {LEAST_CLASSES} outputs, and weights of its own")
        for head in found:
            head.__dict__[internals().IMPL] = InPlace(_call, self, weakref.ref(head))

    @staticmethod
    def _fits(head: Any) -> bool:
        plain = all(one is None or internals().is_plain(one) for one in (head.weight, head.bias))
        wide = head.out_features >= max(LEAST_CLASSES, head.in_features)
        return plain and wide and getattr(head, internals().IMPL) is None

    def leave(self, root: Any) -> None:
        """Have them return what they compute."""
        for module in root.modules():
            if isinstance(module.__dict__.get(internals().IMPL), InPlace):
                del module.__dict__[internals().IMPL]

    def before_updates(self, optimizer: Any) -> None:
        """What an update is about to change is copied for logits that may be asked for after it."""
        self.hooks[optimizer] = optimizer.register_step_pre_hook(lambda *_: self.guarded(self._keep))

    def leave_updates(self, optimizer: Any) -> None:
        """No more of that, nor for those that are there."""
        if optimizer in self.hooks:
            self.hooks.pop(optimizer).remove()

    def _keep(self) -> None:
        for call in list(self.pending):
            call.keep()

    def stale(self) -> None:
        """Say that logits are not those that the script would have got."""
        self.stop()
        self.seams.refuse(self.lever, "logits were read after the head's weight was written to")

    def counted(self) -> None:
        """A call of the head: whether any went into a cross-entropy shows after some."""
        self.calls += 1
        if self.calls == PATIENCE and not self.fused:
            self.stop()
            self.seams.leave_out(self.lever, "the logits go into no cross-entropy of torch's, or are read before it")

    def later(self, head: Any, rows: Any) -> Any:
        """Logits of a call that are not computed yet; None where they have to be."""
        import torch

        from ._logits import Call, later

        kind, inner = rows.device.type, internals()
        half = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        if half is torch.float16 or not inner.is_plain(rows) or rows.dim() < 2 or not rows.numel():
            return None
        if half is None and rows.dtype is not head.weight.dtype:
            return None
        self.counted()
        call = Call(self, head, rows, half)
        self.pending.add(call)
        return later(call, rows, rows.dim() - 1, call.logits)


class InPlace(partial[Any]):
    """What stands in a head's `_compiled_call_impl`. A pickle or a deep copy of it is None."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def _call(heads: Heads, reference: Any, *args: Any, **kwargs: Any) -> Any:
    """A call of a head."""
    import torch

    head, inner = reference(), internals()
    if not (heads.off or kwargs or len(args) != 1) and torch.is_grad_enabled():
        transformed = inner.interpreter() is not None or inner.tracing_state() is not None
        if not (transformed or inner.is_hooked(head) or torch.compiler.is_compiling()):
            found = heads.guarded(heads.later, head, *args)
            if found is not None:
                return found
    return getattr(head, inner.CALL)(*args, **kwargs)


LEVER = LinearCrossEntropy()
