"""Forward and backward of a model, recorded for each shape of its inputs and replayed: two launches in place of one for
each kernel, without the Python and the autograd nodes between.

What `_forward_graph` does, with gradients. The forward is recorded, then `torch.autograd.grad` of what it returned, so
that for autograd the whole model is one function, whose inputs are the parameters and those arguments that need a
gradient (as in `torch.cuda.make_graphed_callables`). At the recording both are compared with ordinary ones.

What the forward saves for its backward lies in memory of the recording, so a forward whose predecessor still awaits its
backward is an ordinary one. Gradients lie in memory of their own, always the same, and the parameters' are aliases of
it, which is also what a recorded update wants (`_update_graph`). Where the script still holds those of the last
backward (it accumulates, or keeps them), they are left as they are, and it gets copies.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from ._effects import Effects, storage
from ._forward_graph import Bucket, GraphedForward, Inputs, apart, put, restore_all, unfit, without_cached_casts

ELSEWHERE: Final = 0.02
"""Relative (of norms) difference of two ordinary calls on two streams, in half precision: each stream has a workspace
of its own, by which libraries choose their kernels. What has to show is a parameter that was not taken for another."""
STALE: Final = "hotlap's graph-training: a backward came a second time, after another forward"


class Token:
    """Lives as long as a forward awaits its backward."""


@dataclass
class TrainingBucket(Bucket):
    """cotangents: where the record reads the gradients of what it returns, None of what has none; gradients: where it
    leaves those of its inputs, in their order, None of those that it does not need; reach: of each output, whether it
    depends on each of the inputs; storages, unheld: of each gradient its storage, and how many refer to that where only
    the record does."""

    backward: Callable[[], None] | None = None
    cotangents: list[Any] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)
    reach: list[list[bool]] = field(default_factory=list)
    storages: list[int] = field(default_factory=list)
    unheld: list[int] = field(default_factory=list)

    def tensors(self) -> list[Any]:
        """What the record returns."""
        return [slot.tensor for slot in self.slots if slot.tensor is not None]

    def recorded(self, outputs: Any) -> None:
        """What the recording of the forward returned."""
        self.keep(outputs)
        self.slots = [
            slot if slot.tensor is None else slot._replace(tensor=slot.tensor.detach()) for slot in self.slots
        ]
        self.storages = [storage(g) for g in self.gradients if g is not None]
        self.unheld = self._references()

    def _references(self) -> list[int]:
        import torch

        return list(map(torch._C._storage_Use_Count, self.storages))

    def _held(self) -> list[Any]:
        """Gradients of the last backward that the script still has, in its parameters or elsewhere."""
        own = (g for g in self.gradients if g is not None)
        pairs = zip(own, self._references(), self.unheld, strict=True)
        return [g for g, now, alone in pairs if now > alone]

    def differentiate(self, gradients: Sequence[Any]) -> list[Any]:
        """Replay the backward. gradients: of what the forward returned, None of what the script did not use."""
        assert self.backward is not None, "it was recorded"
        held = self._held()
        saved = [own.clone() for own in held]
        for own, given in zip(self.cotangents, gradients, strict=True):
            if own is not None:
                own.zero_() if given is None else own.copy_(given)
        self.backward()
        reached = self._reached(gradients)
        if not held:
            return [own.detach() if own is not None and yes else None for own, yes in reached]
        fresh = [own.clone() if own is not None and yes else None for own, yes in reached]
        restore_all(held, saved)
        return fresh

    def _reached(self, gradients: Sequence[Any]) -> list[tuple[Any, bool]]:
        """Gradients of inputs, and whether anything that the script used depends on them: the others have none, which
        is not the same to an optimizer as zero."""
        rows = [row for row, given in zip(self.reach, gradients, strict=True) if given is not None]
        return list(zip(self.gradients, map(any, zip(*rows, strict=True)), strict=True))


class GraphedTraining(GraphedForward):
    """In place of a forward of `module` that is called with gradients."""

    serial = 0
    """Of the last forward that was replayed."""
    _token: Callable[[], Token | None] = staticmethod(lambda: None)
    _places: Sequence[tuple[dict[str, Any], str]] = ()

    def _concerned(self) -> bool:
        import torch

        return torch.is_grad_enabled() and self._token() is None

    def _more(self, inputs: Inputs) -> Any:
        parameters = self._parameters()
        return tuple(t.requires_grad for t in inputs.tensors), tuple(p.requires_grad for p in parameters)

    def _parameters(self) -> list[Any]:
        """Each once, as they are now."""
        if not self._places:
            module = self._module()
            assert module is not None, "its forward runs"
            parts = module.modules()
            every = {id(p): (part._parameters, n) for part in parts for n, p in part._parameters.items()}
            self._places = list(every.values())
        return [p for of, name in self._places if (p := of.get(name)) is not None]

    def _new_bucket(self) -> TrainingBucket:
        self._places = ()  # they are looked up anew with the model
        return TrainingBucket()

    def _bucket(self, key: Any, inputs: Inputs) -> Bucket | None:
        if any(t.requires_grad and t.is_leaf for t in inputs.tensors):
            return None  # its gradient is mostly wanted to be differentiated again (penalties), which no record can
        return super()._bucket(key, inputs)

    def _unfit(self, effects: Effects, known: Sequence[Any]) -> str:
        if effects.draws_on_host:
            return "it draws random numbers on the host"
        if any(type(p).__name__ != "Parameter" for p in self._parameters()):
            return "its parameters are of a class of their own, as sharded ones are"
        return unfit(effects, known)

    def _look(self, bucket: Bucket, inputs: Inputs, args: Any, kwargs: Any) -> Any:
        output = super()._look(bucket, inputs, args, kwargs)
        if bucket.held:
            self._give_up("it writes to its arguments")
        return output

    def _wanted(self, tensors: Sequence[Any]) -> list[Any]:
        """What gradients are made of: arguments and parameters that require them."""
        return [t for t in [*tensors, *self._parameters()] if t.requires_grad]

    def _replayed(self, bucket: Bucket, inputs: Inputs) -> Any:
        from torch.utils import _pytree

        self.replays += 1
        self.serial += 1
        token = Token()
        self._token = weakref.ref(token)
        made = iter(_function().apply(self, bucket, inputs, token, *self._wanted(inputs.tensors)))
        leaves = [slot.plain if slot.tensor is None else next(made) for slot in bucket.slots]
        return _pytree.tree_unflatten(leaves, bucket.spec)

    def differentiate(self, bucket: TrainingBucket, serial: int, gradients: Sequence[Any]) -> list[Any]:
        """The backward of a forward that was replayed as the `serial`-th. Raises RuntimeError where what it saved is
        gone."""
        with self._lock:
            if serial != self.serial:
                raise RuntimeError(STALE)
            return bucket.differentiate(gradients)

    def _record(self, bucket: Bucket, inputs: Inputs, args: Any, kwargs: Any) -> Any:
        """Record a call, compare replays with ordinary ones, and make the script's own call an ordinary one."""
        assert self._model is not None and isinstance(bucket, TrainingBucket), "it was looked at"
        # All buffers: what a normalization writes to its own is not always told as written.
        state = [t for t in self._model.tensors if storage(t) in bucket.written or not t.requires_grad]
        try:
            with _as_if_once(state) as again, without_cached_casts():
                why = self._recorded_both(bucket, inputs, args, kwargs, again)
        except (RuntimeError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            why = f"it could not be captured: {(str(error) or repr(error)).splitlines()[0][:200]}"
        if why:
            self._give_up(why)
        return self._forward(*args, **kwargs)

    def _recorded_both(
        self, bucket: TrainingBucket, inputs: Inputs, args: Any, kwargs: Any, again: Callable[[], None]
    ) -> str:
        """Record forward and backward; why replays of them are not used, "" if they are."""
        import torch

        bucket.inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs.tensors]
        own_args, own_kwargs = put((args, kwargs), iter(bucket.inputs))

        def forward() -> Any:
            return self._forward(*own_args, **own_kwargs)

        call = Call(forward, self._wanted(bucket.inputs))
        call.make()
        bucket.cotangents = call.cotangents = [_waves(leaf) if leaf.requires_grad else None for leaf in call.leaves()]
        call.differentiate()
        ordinary, used = call.results(), call.used()
        bucket.reach = _reach(call, used, again)
        del call
        again()
        with _aliased(self._module()):
            rehearsal = Call(forward, self._wanted(bucket.inputs), bucket.cotangents)
            self._rehearse(rehearsal.make)
            self._rehearse(rehearsal.differentiate)
            rehearsed, same = rehearsal.results(), rehearsal.used() == used
            bucket.gradients = [None if g is None else torch.empty_like(g) for g in rehearsal.gradients]
            del rehearsal
            again()
            call = Call(forward, self._wanted(bucket.inputs), bucket.cotangents)
            bucket.replay = self._capture(call.make)
            bucket.backward = self._capture(lambda: call.differentiate_into(bucket.gradients))
        if not same or used != call.used():
            return "its gradients are made differently each time"
        bucket.recorded(call.outputs.pop())
        call.gradients = ()
        if len(bucket.tensors()) != len(bucket.cotangents):
            return "it returns one of its arguments"
        again()
        bucket.replay()
        bucket.backward()
        got = [*bucket.tensors(), *(g for g in bucket.gradients if g is not None)]
        return apart([t.clone() for t in got], rehearsed) or apart(rehearsed, ordinary, ELSEWHERE)


class Call:
    """A forward with arguments of the record's own, and its backward. cotangents: the gradients of its outputs, None of
    those that have none; wanted: what gradients are made of."""

    def __init__(self, forward: Callable[[], Any], wanted: Sequence[Any], cotangents: Sequence[Any] = ()) -> None:
        self.forward, self.wanted, self.cotangents = forward, wanted, cotangents
        self.outputs: list[Any] = []
        self.gradients: Sequence[Any] = []

    def make(self) -> None:
        """The forward."""
        self.outputs = [self.forward()]

    def leaves(self) -> list[Any]:
        """The tensors of its output."""
        import torch
        from torch.utils import _pytree

        return [leaf for leaf in _pytree.tree_leaves(self.outputs[0]) if isinstance(leaf, torch.Tensor)]

    def differentiate(self, only: int | None = None) -> None:
        """The backward, of all outputs or of one."""
        import torch

        every = enumerate(zip(self.leaves(), self.cotangents, strict=True))
        pairs = [(leaf, of) for at, (leaf, of) in every if of is not None and only in (None, at)]
        leaves, given = [leaf for leaf, _ in pairs], [of for _, of in pairs]
        self.gradients = torch.autograd.grad(leaves, self.wanted, given, allow_unused=True)

    def differentiate_into(self, places: Sequence[Any]) -> None:
        """The backward, whose gradients are copied out of the recording's memory: the next forward uses that again."""
        import torch

        self.differentiate()
        pairs = [(place, g) for place, g in zip(places, self.gradients, strict=True) if place is not None]
        torch._foreach_copy_([place for place, _ in pairs], [g for _, g in pairs])

    def results(self) -> list[Any]:
        """Copies of what it returned, and of the gradients."""
        return [t.detach().clone() for t in [*self.leaves(), *self.gradients] if t is not None]

    def used(self) -> list[bool]:
        """What gradients were made of."""
        return [gradient is not None for gradient in self.gradients]


def _reach(call: Call, used: list[bool], again: Callable[[], None]) -> list[list[bool]]:
    """Of each output, what it depends on. used: of all of them."""
    differentiable = [at for at, of in enumerate(call.cotangents) if of is not None]
    reach = [[False] * len(used) for _ in call.cotangents]
    for at in differentiable:
        if len(differentiable) > 1:  # made anew: compiled code allows one backward of a forward
            again()
            call.make()
            call.differentiate(at)
        reach[at] = call.used()
    return reach


def _waves(leaf: Any) -> Any:
    """A gradient that tells places apart, -1 to 1."""
    import torch

    line = torch.linspace(-1, 1, max(2, leaf.numel()), device=leaf.device)[: leaf.numel()]
    return line.to(leaf.dtype).reshape(leaf.shape)


@contextlib.contextmanager
def _aliased(module: Any) -> Iterator[None]:
    """Every parameter of the module is another one meanwhile, that lies where it lies. The node that adds up a
    parameter's gradient lives as long as any graph that leads to it, such as that of the script's last loss, and
    belongs to the stream of that; it would draw that stream into the capture, which ends it."""
    import torch

    parts = list(module.modules())
    slots = [(part._parameters, name, p) for part in parts for name, p in part._parameters.items() if p is not None]
    lists = [(vars(part), dict(vars(part))) for part in parts if isinstance(part, torch.nn.RNNBase)]
    aliases: dict[int, Any] = {}
    for _, _, p in slots:
        alias = aliases.setdefault(id(p), torch.nn.Parameter(p.detach(), p.requires_grad))
        vars(alias).update(vars(p))
    try:
        for of, name, p in slots:
            of[name] = aliases[id(p)]
        for of, was in lists:  # they hold their weights twice, and move them where they find others
            of["_flat_weights"] = [aliases.get(id(weight), weight) for weight in was["_flat_weights"]]
            of["_flat_weight_refs"] = [None if one is None else weakref.ref(one) for one in of["_flat_weights"]]
        yield
        if any(aliases[id(p)].data_ptr() != p.data_ptr() for _, _, p in slots):
            raise RuntimeError("its forward moves its parameters")
    finally:
        for of, name, p in slots:
            of[name] = p
        for of, was in lists:
            of.update({name: was[name] for name in ("_flat_weights", "_flat_weight_refs")})


@contextlib.contextmanager
def _as_if_once(state: Sequence[Any]) -> Iterator[Callable[[], None]]:
    """What it gives puts these tensors and the device's random numbers back to where they were; so does the end. Those
    that are as they were are not written to: others may look at their version."""
    import torch

    from hotlap.agent.probe import random_state

    saved, drawn = [t.clone() for t in state], random_state()[1]

    def again() -> None:
        changed = [(t, was) for t, was in zip(state, saved, strict=True) if not torch.equal(t, was)]
        with torch.no_grad():
            restore_all([t for t, _ in changed], [was for _, was in changed])
        if drawn is not None:
            torch.cuda.set_rng_state(drawn)

    try:
        yield again
    finally:
        again()


@cache
def _function() -> Any:
    """What autograd sees of a model that is replayed."""
    import torch
    from torch.autograd.function import once_differentiable

    class Replay(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(
            ctx: Any, graphed: GraphedTraining, bucket: TrainingBucket, inputs: Inputs, token: Token, *wanted: Any
        ) -> Any:
            assert bucket.replay is not None, "it was recorded"
            ctx.set_materialize_grads(False)
            ctx.graphed, ctx.bucket, ctx.token, ctx.serial = graphed, bucket, token, graphed.serial
            bucket.bring(inputs)
            bucket.replay()
            made = tuple(tensor.clone() for tensor in bucket.tensors())
            pairs = zip(made, bucket.cotangents, strict=True)
            ctx.mark_non_differentiable(*(tensor for tensor, of in pairs if of is None))
            return made

        @staticmethod
        @once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, *gradients: Any) -> Any:
            made = ctx.graphed.differentiate(ctx.bucket, ctx.serial, gradients)
            ctx.token = None
            return None, None, None, None, *made

    return Replay
