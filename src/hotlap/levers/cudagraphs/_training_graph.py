"""Forward and backward of a model, recorded for each shape of its inputs and replayed: two launches in place of one for
each kernel, without the Python and the autograd nodes between.

A shape is run three times by the script's own calls before it is replayed: once watched (`_effects`), once as it is,
and once recorded. Where the watched one waits for the device or leaves something in the model, as a first call may that
makes a mask or a cache, the next one is watched too, twice at most. The forward is recorded, then `torch.autograd.grad`
of what it returned, so that for autograd the whole model is one function, whose inputs are the parameters and those
arguments that need a gradient (as in `torch.cuda.make_graphed_callables`). At the recording both are compared with
ordinary ones. From then on inputs are copied to where the record reads them, and the script gets copies of what it
returned. Tensors of the model are used where they lie. Records of one stream share a pool of memory.

A replay does what was recorded with the same addresses, so each call looks whether the model is as it was: its parts'
parameters, buffers, other tensors, numbers, flags and functions (`_model_state`). Where it is not, all is watched and
recorded anew. Threads take turns, since a record reads its inputs from one place.

What the forward saves for its backward lies in memory of the recording, so a forward whose predecessor still awaits its
backward is an ordinary one. Gradients lie in memory of their own, always the same, and the parameters' are aliases of
it, which is also what a recorded update wants (`_update_graph`). Where the script still holds those of the last
backward (it accumulates, or keeps them), they are left as they are, and it gets copies.
"""

import itertools
import operator
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from operator import attrgetter
from typing import Any, Final

from .._base import Unfit
from .._internals import internals
from .._nested import each_tensor, tensors
from ._call_inputs import ODD, Inputs, Key, read
from ._compared import difference, tried, without_cached_casts
from ._device import Device
from ._effects import PLAIN, Effects, storage, strange, watched
from ._model_state import Model
from ._training_call import Call, Lent, Results, aliased, as_if_once, uses_of, waves

MOST_SHAPES: Final = 8
MOST_CHANGES: Final = 4
MOST_LOOKS: Final = 3
"""Calls that are watched one after another before it is believed that all of them wait, or leave something."""
PATIENCE: Final = 64
"""Calls after which most of them have to be replays, once there are more shapes than are recorded."""
ELSEWHERE: Final = 0.02
"""Relative (of norms) difference of two ordinary calls on two streams, in half precision: each stream has a workspace
of its own, by which libraries choose their kernels. What has to show is a parameter that was not taken for another."""
STALE: Final = "hotlap's graph-training: a backward came a second time, after another forward"
FREED: Final = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Specify retain_graph=True if you need to backward through the graph a second time."
)
TWICE: Final = "the script differentiates its gradients again"
EXCHANGING: Final = ("torch.distributed.", "torch.nn.parallel.", "deepspeed.")
"""Packages of modules that keep account of each forward and backward outside of Python."""


@dataclass(eq=False)
class Awaited:
    """A forward that was replayed, as long as its backward may come. parameters: of which that makes gradients;
    ordinary: the call itself."""

    parameters: Sequence[Any]
    ordinary: Callable[[], Any]


@dataclass
class Bucket:
    """Calls of one form. calls: so far; written: storages that they write to; ready: a replay was found to be the same.

    inputs: where the record reads; leaves, spec: what it returns. forward, backward: what will be replayed; cotangents:
    where the record reads the gradients of what it returns, None of what has none; gradients: where it leaves those of
    its inputs, in order, None of those that it does not need; uses: of each output, whether it depends on each of the
    inputs; lent: aliases of the gradients, which the script has; repeatable: another ordinary forward with the same
    inputs would be the same one."""

    calls: int = 0
    written: set[int] = field(default_factory=set)
    ready: bool = False
    inputs: list[Any] = field(default_factory=list)
    leaves: list[Any] = field(default_factory=list)
    spec: Any = None
    forward: Callable[[], None] | None = None
    backward: Callable[[], None] | None = None
    cotangents: list[Any] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)
    uses: list[list[bool]] = field(default_factory=list)
    lent: Lent | None = None
    repeatable: bool = False
    _by_use: dict[tuple[bool, ...], list[int | None]] = field(default_factory=dict)
    _all: list[int] = field(default_factory=list)

    def recorded(self, output: Any) -> None:
        """What the recording of the forward returned."""
        import torch

        leaves, self.spec = internals().tree_flatten(output)
        self.leaves = [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.lent = Lent([g for g in self.gradients if g is not None])
        self._all = list(range(len(self.gradients)))

    def differentiate(self, gradients: Sequence[Any]) -> list[Any]:
        """Replay the backward. gradients: of what the forward returned, None of what the script did not use."""
        assert self.backward is not None and self.lent is not None, "it was recorded"
        lent_tensors = self.lent.lent_tensors()
        saved = [own.clone() for own in lent_tensors]
        for own, given in zip(self.cotangents, gradients, strict=True):
            if own is not None:
                own.zero_() if given is None else own.copy_(given)
        self.backward()
        reached = self._reached(tuple(given is not None for given in gradients))
        if not lent_tensors:
            aliases = self.lent.aliases()
            return aliases if reached == self._all else [None if at is None else aliases[at] for at in reached]
        fresh = [None if at is None else self.lent.own[at].clone() for at in reached]
        internals().copy_all(lent_tensors, saved)
        return fresh

    def whole(self, used: Sequence[bool]) -> bool:
        """Whether the graph is freed by a backward of these outputs: others may have one of their own, whose backward
        comes later."""
        others = [row for row, yes in zip(self.uses, used, strict=True) if any(row) and not yes]
        reached = self._reaches(used) if others else []
        return all(any(map(operator.and_, row, reached)) for row in others)

    def _reached(self, used: tuple[bool, ...]) -> list[int | None]:
        """Of each input the number of its gradient, None of those that nothing which the script used depends on: that
        is not the same to an optimizer as zero."""
        if used not in self._by_use:
            numbers = itertools.count()
            every = [None if own is None else next(numbers) for own in self.gradients]
            self._by_use[used] = [at if yes else None for at, yes in zip(every, self._reaches(used), strict=True)]
        return self._by_use[used]

    def _reaches(self, used: Sequence[bool]) -> list[bool]:
        """Of each input, whether any of these outputs depends on it."""
        return list(map(any, zip(*(row for row, yes in zip(self.uses, used, strict=True) if yes), strict=True)))


class GraphedTraining:
    """In place of a forward of `module` that is called with gradients. unsteady: called in calls that take longer for
    it; gave_up: called with the reason, once."""

    def __init__(
        self,
        module: Any,
        forward: Callable[..., Any],
        device: Device,
        unsteady: Callable[[], None],
        gave_up: Callable[[str], None],
    ) -> None:
        self.calls = self.replays = self.changes = 0
        self.serial = 0
        """Of the last forward that was replayed."""
        self.buckets: dict[Key, Bucket] = {}
        self.given_up = False
        self._looks = 0
        self._module, self._forward = weakref.ref(module), forward
        self._device, self._unsteady, self._gave_up = device, unsteady, gave_up
        self._model: Model | None = None
        self._awaited: Callable[[], Awaited | None] = lambda: None
        self._places: tuple[Any, ...] = ()
        self._draws = False
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        where = None if self.given_up or not self._concerned() else self._device.where()
        if where is None:
            return self._forward(*args, **kwargs)
        with self._lock:
            self.calls += 1
            try:
                inputs = read(args, kwargs)
                concerned = self._concerned()  # another thread may have come between
                bucket = self._bucket(where, inputs) if concerned else None
            except (Unfit, *ODD) as why:
                self._give_up(str(why))
                bucket = None
            if bucket is not None:
                return (self._replayed if bucket.ready else self._towards)(bucket, inputs, args, kwargs)
        return self._forward(*args, **kwargs)

    def _concerned(self) -> bool:
        """Whether this call is one of those that may be replayed."""
        import torch

        return torch.is_grad_enabled() and self._awaited() is None and internals().nothing_around()

    def _parameters(self) -> list[Any]:
        """Each once, as they are now."""
        if not self._places:
            module = self._module()
            assert module is not None, "its forward runs"
            own = map(internals().own_parameters, module.modules())
            every = {id(p): (of, n) for of in own for n, p in of.items()}
            self._places = tuple(zip(*every.values(), strict=True))
        return [p for p in map(dict.get, *self._places) if p is not None] if self._places else []

    def _bucket(self, where: Any, inputs: Inputs) -> Bucket | None:
        """The bucket of a call; None where there are too many, or it can't be recorded. Raises Unfit where hardly any
        call is replayed."""
        rare = self.calls > PATIENCE and self.replays < self.calls / 2
        if any(t.requires_grad and t.is_leaf for t in inputs.tensors):
            if rare:
                raise Unfit("its inputs are leaf tensors that need a gradient")
            return None  # its gradient is mostly wanted to be differentiated again (penalties), which no record can
        same = self._model is not None and self._model.same()
        requires = attrgetter("requires_grad")
        needs = tuple(map(requires, inputs.tensors)), tuple(map(requires, self._parameters()))
        key = where, inputs.form, needs
        bucket = self.buckets.get(key)
        if bucket is not None and not same:
            self.buckets, self._model, bucket = {}, None, None
            self.changes += 1
        if bucket is None and len(self.buckets) < MOST_SHAPES:
            self._places = ()  # they are looked up anew with the model
            bucket = self.buckets[key] = Bucket()
        if bucket is None and rare:
            raise Unfit(f"its inputs come in more than {MOST_SHAPES} forms (shapes, and numbers that are no tensors)")
        return bucket

    def _towards(self, bucket: Bucket, inputs: Inputs, args: Any, kwargs: Any) -> Any:
        bucket.calls += 1
        self._unsteady()
        if self.changes > MOST_CHANGES:
            self._give_up(f"the model changed {self.changes} times")
        elif bucket.calls == 1:
            return self._look(bucket, inputs, args, kwargs)
        elif bucket.calls > 2:  # between looking and recording, a call that loads and makes what an ordinary one needs
            return self._record(bucket, inputs, args, kwargs)
        return self._forward(*args, **kwargs)

    def _look(self, bucket: Bucket, inputs: Inputs, args: Any, kwargs: Any) -> Any:
        """An ordinary call that is watched."""
        import torch

        from hotlap.agent.probe import random_state

        module = self._module()
        drawn = random_state()
        with without_cached_casts():
            seen, failed = tried(lambda: watched(module, self._forward, args, kwargs))
        if failed:
            self._give_up(f"it could not be watched: {failed}")
            torch.set_rng_state(drawn[0])
            if drawn[1] is not None:
                torch.cuda.set_rng_state(drawn[1])
            return self._forward(*args, **kwargs)
        output, effects = seen
        try:
            self._model = self._model or Model(module)
            why = self._unfit(self._model, effects, output, inputs)
        except ODD as error:
            why = f"it could not be inspected: {error}"
        self._looks = self._looks + 1 if why and (effects.waits or effects.leaves) else 0
        if why and not 0 < self._looks < MOST_LOOKS:
            self._give_up(why)
        elif why:
            bucket.calls = 0  # it may be of a first call only
        bucket.written, self._draws = effects.written, effects.draws
        self._note_backward(output)
        return output

    def _note_backward(self, output: Any) -> None:
        """Give up where the backward of an ordinary forward is to be differentiated again."""
        import torch

        def note(gradients: Any) -> None:
            with self._lock:
                if torch.is_grad_enabled():
                    self._give_up(TWICE)

        for leaf in [] if self.given_up else tensors(output):
            if leaf.grad_fn is not None:
                leaf.grad_fn.register_prehook(note)

    def _unfit(self, model: Model, effects: Effects, output: Any, inputs: Inputs) -> str:
        """Why what was watched can't be recorded, "" if it can."""
        module = self._module()
        assert module is not None, "its forward ran"
        kinds = {kind for part in module.modules() for kind in type(part).__mro__}
        if any(f"{kind.__module__}.".startswith(EXCHANGING) for kind in kinds):
            return "it exchanges gradients with other processes"
        if model.draws:
            return "it holds a generator or an iterator of its own"
        if effects.draws_on_host:
            return "it draws random numbers on the host"
        if any(type(p).__name__ != "Parameter" for p in self._parameters()):
            return "its parameters are of a class of their own, as sharded ones are"
        if effects.waits:
            return f"the host waits for the device in it ({effects.waits})"
        if effects.hooked:
            return "its modules or tensors have hooks, which a replay does not call"
        if effects.odd:
            return f"its tensors can't be inspected: {effects.odd}"
        if effects.leaves:
            return "it leaves new tensors, or changes numbers, in the model or its arguments"
        if effects.read.keys() - {storage(tensor) for tensor in (*model.tensors, *inputs.tensors)}:
            return "it reads tensors that belong neither to the model nor to its arguments"
        if len({tensor.device for tensor in effects.read.values()}) > 1:
            return "it reads tensors on more than one device"
        if why := _unfit_output(output, effects, inputs):
            return why
        return "it writes to its arguments" if any(storage(t) in effects.written for t in inputs.tensors) else ""

    def _give_up(self, why: str) -> None:
        """From here on, every call is an ordinary one."""
        if not self.given_up:
            self.given_up = True
            self.buckets, self._model, self._places = {}, None, ()
            self._gave_up(why)

    def _replayed(self, bucket: Bucket, inputs: Inputs, args: Any, kwargs: Any) -> Any:
        import torch

        assert bucket.forward is not None, "it was recorded"
        self.replays += 1
        self.serial += 1
        if bucket.inputs:
            with torch.no_grad():
                internals().copy_all(bucket.inputs, inputs.tensors)
        bucket.forward()  # the device computes while the host does the rest
        parameters = [p for p in self._parameters() if p.requires_grad]
        call = Awaited(parameters, partial(self._forward, *args, **kwargs))
        self._awaited = weakref.ref(call)
        leaves = [t for t in inputs.tensors if t.requires_grad]
        made = iter(_function().apply(self, bucket, inputs, call, *leaves, *parameters))
        output = [next(made) if isinstance(leaf, torch.Tensor) else leaf for leaf in bucket.leaves]
        return internals().tree_unflatten(output, bucket.spec)

    def differentiate(self, bucket: Bucket, serial: int, gradients: Sequence[Any]) -> list[Any]:
        """The backward of a forward that was replayed as the `serial`-th. Raises RuntimeError where what it saved is
        gone."""
        with self._lock:
            if serial != self.serial:
                raise RuntimeError(STALE)
            return bucket.differentiate(gradients)

    def again(self, ctx: Any, gradients: Sequence[Any]) -> Sequence[Any] | None:
        """A backward that can be differentiated, of an ordinary forward; None where that would be another one."""
        import torch

        with self._lock:
            self._give_up(TWICE)
        if not ctx.bucket.repeatable:
            return None
        made = zip(tensors(ctx.call.ordinary()), gradients, strict=True)
        pairs = [(leaf, of) for leaf, of in made if of is not None]
        outputs, given = [leaf for leaf, _ in pairs], [of for _, of in pairs]
        wanted = [*(t for t in ctx.inputs if t.requires_grad), *ctx.call.parameters]
        return torch.autograd.grad(outputs, wanted, given, create_graph=True, allow_unused=True)  # type: ignore[no-any-return]

    def _record(self, bucket: Bucket, inputs: Inputs, args: Any, kwargs: Any) -> Any:
        """Record a call, compare replays with ordinary ones, and make the script's own call an ordinary one."""
        assert self._model is not None, "it was looked at"
        # All buffers: what a normalization writes to its own is not always told as written. Parameters may be large.
        owned = {storage(p) for p in self._parameters()} - bucket.written
        state = [t for t in self._model.tensors if storage(t) not in owned]

        def record() -> str:
            with as_if_once(state) as again, without_cached_casts():
                return self._recorded_both(bucket, inputs, args, kwargs, again)

        found, failed = tried(record)
        why = found or (failed and f"it could not be captured: {failed}")
        if why:
            self._give_up(why)
        else:
            bucket.ready = True
        return self._forward(*args, **kwargs)

    def _recorded_both(self, bucket: Bucket, inputs: Inputs, args: Any, kwargs: Any, again: Callable[[], bool]) -> str:
        """Record forward and backward; why replays of them are not used, "" if they are."""
        module = self._module()
        assert module is not None, "its forward runs"
        if not self._device.has_room():
            return "device memory has no room for the activations of a graph"
        if any(map(internals().tensor_hooks, self._parameters())):
            return "its parameters have hooks, which capturing would call"
        bucket.inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs.tensors]
        first = dict(zip(map(id, reversed(inputs.tensors)), reversed(bucket.inputs), strict=True))
        alike = [first[id(t)] for t in inputs.tensors]  # the same ones where the script's are

        def call_with(tensors: list[Any]) -> Call:
            own = iter(tensors)
            own_args, own_kwargs = each_tensor((args, kwargs), lambda _: next(own))
            wanted = [t for t in [*tensors, *self._parameters()] if t.requires_grad]
            return Call(lambda: self._forward(*own_args, **own_kwargs), wanted, bucket.cotangents)

        ordinary = self._ordinary(bucket, call_with(alike), again)
        with aliased(module):
            call = call_with(bucket.inputs)
            rehearsed = self._rehearsed(call)
            bucket.gradients = [
                None if g is None else _place(t, g) for t, g in zip(call.wanted, call.gradients, strict=True)
            ]
            again()
            call = call_with(bucket.inputs)
            bucket.forward = self._device.capture(call.make)
            bucket.backward = self._device.capture(lambda: call.differentiate_into(bucket.gradients))
        if not ordinary.used == rehearsed.used == call.used():
            return "its gradients are computed differently each time"
        if ordinary.plain != call.plain():
            return "its outputs are computed differently each time"
        bucket.recorded(call.outputs.pop())
        call.gradients = ()
        again()
        bucket.forward()
        bucket.backward()
        got = [t.clone() for t in [*tensors(bucket.leaves), *(g for g in bucket.gradients if g is not None)]]
        names = [f"argument {at}" for at, t in enumerate(bucket.inputs) if t.requires_grad]
        names += [name for name, p in module.named_parameters() if p.requires_grad]
        gradients = list(itertools.compress(names, ordinary.used))
        why = difference(got, rehearsed.tensors, gradients=gradients)
        if why:  # kernels that add in another order each time
            again()
            with aliased(module):
                once_more = self._rehearsed(call_with(bucket.inputs))
            why = difference(got, rehearsed.tensors, spread=once_more.tensors, gradients=gradients)
        if not why and (why := difference(rehearsed.tensors, ordinary.tensors, ELSEWHERE, gradients=gradients)):
            why = why.replace("its replay", "on another stream it")
        return why

    def _ordinary(self, bucket: Bucket, call: Call, again: Callable[[], bool]) -> Results:
        """A call on the script's own parameters, where the script's calls are. All is as before afterwards."""
        import torch

        call.make()
        bucket.cotangents = call.cotangents = [waves(leaf) if leaf.requires_grad else None for leaf in call.leaves()]
        call.differentiate()
        results = call.results()
        bucket.repeatable = not (again() or self._draws or any(map(torch.is_autocast_enabled, ("cuda", "cpu"))))
        bucket.uses = uses_of(call, results.used, again)
        again()
        return results

    def _rehearsed(self, call: Call) -> Results:
        """The same where it will be recorded; what a recording may not do, such as compiling, is done now."""
        self._device.rehearse(call.make)
        self._device.rehearse(call.differentiate)
        return call.results()


def _unfit_output(output: Any, effects: Effects, inputs: Inputs) -> str:
    if other := strange(output):
        return f"it returns an object of class {other}"
    given, made = {id(tensor) for tensor in inputs.tensors}, tensors(output)
    for leaf in internals().tree_leaves(output):
        if not hasattr(leaf, "untyped_storage") and type(leaf) not in PLAIN:
            return f"it returns an object of class {type(leaf).__qualname__}"
    if any(id(leaf) in given for leaf in made):
        return "it returns one of its arguments"
    if any(storage(leaf) in effects.read for leaf in made):
        return "it returns a part of the model or of an argument"
    places = [leaf.data_ptr() for leaf in made if leaf.numel()]
    return "of two tensors that it returns, one is a part of the other" if len(places) > len(set(places)) else ""


def _place(tensor: Any, gradient: Any) -> Any:
    """Where a gradient is left: laid out as its tensor is, as autograd lays it out."""
    import torch

    if gradient.layout != torch.strided:
        return torch.empty_like(gradient)
    place = torch.empty_like(tensor, dtype=gradient.dtype, requires_grad=False)
    if place.stride() != tensor.stride():
        place = place.contiguous()
    return place


@cache
def _function() -> Any:
    """What autograd sees of a model that is replayed."""
    import torch
    from torch.autograd.function import once_differentiable

    keeps_graph = internals().keeps_graph

    @once_differentiable  # type: ignore[untyped-decorator]
    def once(ctx: Any, *gradients: Any) -> Any:
        return tuple(ctx.graphed.differentiate(ctx.bucket, ctx.serial, gradients))

    class Replay(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(
            ctx: Any,
            graphed: GraphedTraining,
            bucket: Bucket,
            inputs: Inputs,
            call: Awaited,
            *leaves: Any,
        ) -> Any:
            ctx.set_materialize_grads(False)
            ctx.graphed, ctx.bucket, ctx.serial = graphed, bucket, graphed.serial
            ctx.call, ctx.inputs = call, inputs.tensors
            ctx.freed = (False,) * len(bucket.cotangents)
            made = tuple(tensor.clone() for tensor in tensors(bucket.leaves))
            pairs = zip(made, bucket.cotangents, strict=True)
            ctx.mark_non_differentiable(*(tensor for tensor, of in pairs if of is None))
            return made

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            used = tuple(given is not None for given in gradients)
            if ctx.call is None or any(map(operator.and_, used, ctx.freed)):
                raise RuntimeError(FREED)
            made = ctx.graphed.again(ctx, gradients) if torch.is_grad_enabled() else None
            if made is None:
                made = once(ctx, *gradients)
            if not keeps_graph():
                ctx.freed = tuple(map(operator.or_, used, ctx.freed))
                if ctx.bucket.whole(ctx.freed):
                    ctx.call = ctx.inputs = None
            return None, None, None, None, *made

    return Replay
