"""Forward and backward of a model, recorded for each shape of its inputs and replayed: two launches in place of one for
each kernel, without the Python and the autograd nodes between.

What `_forward_graph` does, with gradients. The forward is recorded, then `torch.autograd.grad` of what it returned, so
that for autograd the whole model is one function, whose inputs are the parameters and those arguments that need a
gradient (as in `torch.cuda.make_graphed_callables`). At the recording both are compared with ordinary ones. Where the
script's backwards put gradients in place, as `backward()` does, the parameters are left out too (`_anchored`).

What the forward saves for its backward lies in memory of the recording, so a forward whose predecessor still awaits its
backward is an ordinary one. Gradients lie in memory of their own, always the same, and the parameters' are aliases of
it, which is also what a recorded update wants (`_update_graph`). Where the script still holds those of the last
backward (it accumulates, or keeps them), they are left as they are, and it gets copies.
"""

import itertools
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from . import _anchored
from ._anchored import Token
from ._call_inputs import Inputs, Unfit, put
from ._effects import Effects, storage
from ._forward_graph import PATIENCE, Bucket, GraphedForward, apart, restore_all, tried, unfit, without_cached_casts
from ._internals import internals
from ._lent import Lent
from ._model_state import MOST_GUARDS, Model
from ._training_call import Call, Results, aliased, as_if_once, reach_of, tensors, waves

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


class Parameters(NamedTuple):
    """Of a model, each once. needs: of each, whether it needs a gradient; needing: those that do."""

    needs: tuple[bool, ...]
    needing: list[Any]


NONE: Final = Parameters((), [])


class Awaited(NamedTuple):
    """A forward that was replayed: parameters of which its backward makes gradients; ordinary: the call itself."""

    token: Token
    parameters: Sequence[Any]
    ordinary: Callable[[], Any]


@dataclass
class TrainingBucket(Bucket):
    """forward, backward: what will be replayed; cotangents: where the record reads the gradients of what it returns,
    None of what has none; gradients: where it leaves those of its inputs, in order, None of those that it does not
    need; reach: of each output, whether it depends on each of the inputs; lent: aliases of the gradients, which the
    script has; repeatable: another ordinary forward with the same inputs would be the same one."""

    forward: Callable[[], None] | None = None
    backward: Callable[[], None] | None = None
    cotangents: list[Any] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)
    reach: list[list[bool]] = field(default_factory=list)
    lent: Lent | None = None
    repeatable: bool = False
    _by_use: dict[tuple[bool, ...], list[int | None]] = field(default_factory=dict)
    _all: list[int] = field(default_factory=list)

    def recorded(self, outputs: Any) -> None:
        """What the recording of the forward returned."""
        self.keep(outputs)
        self.slots = [
            slot if slot.tensor is None else slot._replace(tensor=slot.tensor.detach()) for slot in self.slots
        ]
        self.lent = Lent([g for g in self.gradients if g is not None])
        self._all = list(range(len(self.gradients)))

    def differentiate(self, gradients: Sequence[Any]) -> list[Any]:
        """Replay the backward. gradients: of what the forward returned, None of what the script did not use."""
        assert self.backward is not None and self.lent is not None, "it was recorded"
        held = self.lent.held()
        saved = [own.clone() for own in held]
        for own, given in zip(self.cotangents, gradients, strict=True):
            if own is not None:
                own.zero_() if given is None else own.copy_(given)
        self.backward()
        reached = self._reached(tuple(given is not None for given in gradients))
        if not held:
            aliases = self.lent.aliases()
            return aliases if reached == self._all else [None if at is None else aliases[at] for at in reached]
        fresh = [None if at is None else self.lent.own[at].clone() for at in reached]
        restore_all(held, saved)
        return fresh

    def whole(self, used: Sequence[bool]) -> bool:
        """Whether the graph is freed by a backward of these outputs: others may have one of their own, whose backward
        comes later."""
        others = [row for row, yes in zip(self.reach, used, strict=True) if any(row) and not yes]
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
        return list(map(any, zip(*(row for row, yes in zip(self.reach, used, strict=True) if yes), strict=True)))


class GraphedTraining(GraphedForward):
    """In place of a forward of `module` that is called with gradients."""

    serial = 0
    """Of the last forward that was replayed."""
    _token: Callable[[], Token | None] = staticmethod(lambda: None)
    _places: Sequence[tuple[dict[str, Any], str]] = ()
    _current: Parameters = NONE
    """Those of the call that runs."""
    _known: Mapping[Any, Parameters] = MappingProxyType({})
    """By what the model says while they are the same (`Model.form`)."""
    _draws = False
    _anchor: Any = None
    """A leaf in place of the parameters; None where they stand for themselves."""

    def _concerned(self) -> bool:
        import torch

        return torch.is_grad_enabled() and self._token() is None and internals().nothing_around()

    def _more(self, inputs: Inputs) -> Any:
        requires = attrgetter("requires_grad")
        form = None if self._model is None else self._model.form
        if form is None or form not in self._known:
            every = self._parameters()
            needing = [p for p in every if p.requires_grad]
            self._current = Parameters(tuple(map(requires, every)), needing)
            if form is not None:
                self._known = dict([*list(self._known.items())[1 - MOST_GUARDS :], (form, self._current)])
        else:
            self._current = self._known[form]
        return tuple(map(requires, inputs.tensors)), self._current.needs

    def _parameters(self) -> list[Any]:
        """Each once, as they are now."""
        if not self._places:
            module = self._module()
            assert module is not None, "its forward runs"
            own = map(internals().own_parameters, module.modules())
            every = {id(p): (of, n) for of in own for n, p in of.items()}
            self._places = list(every.values())
        return [p for of, name in self._places if (p := of.get(name)) is not None]

    def _new_bucket(self) -> TrainingBucket:
        self._places, self._known = (), {}  # they are looked up anew with the model
        return TrainingBucket()

    def _bucket(self, where: Any, inputs: Inputs) -> Bucket | None:
        if any(t.requires_grad and t.is_leaf for t in inputs.tensors):
            if self.calls > PATIENCE and self.replays < self.calls / 2:
                raise Unfit("its inputs are leaves that need a gradient")
            return None  # its gradient is mostly wanted to be differentiated again (penalties), which no record can
        return super()._bucket(where, inputs)

    def _unfit(self, effects: Effects, known: Sequence[Any]) -> str:
        if effects.draws_on_host:
            return "it draws random numbers on the host"
        if any(type(p).__name__ != "Parameter" for p in self._parameters()):
            return "its parameters are of a class of their own, as sharded ones are"
        self._draws = effects.draws
        return unfit(effects, known)

    def _look(self, bucket: Bucket, inputs: Inputs, args: Any, kwargs: Any) -> Any:
        output = super()._look(bucket, inputs, args, kwargs)
        if bucket.held:
            self._give_up("it writes to its arguments")
        self._note_backward(output)
        return output

    def _note_backward(self, output: Any) -> None:
        """Give up where the backward of an ordinary forward is to be differentiated again, and see whether it puts the
        parameters' gradients in place."""
        import torch

        def note(gradients: Any) -> None:
            with self._lock:
                if torch.is_grad_enabled():
                    self._give_up(TWICE)
                elif not self.given_up and _anchored.possible():
                    self._look_at_backward()

        for leaf in [] if self.given_up else tensors(output):
            if leaf.grad_fn is not None:
                leaf.grad_fn.register_prehook(note)

    def _look_at_backward(self) -> None:
        parameters = [p for p in self._parameters() if p.requires_grad]
        nodes = map(_anchored.node_of, parameters)
        if _anchored.held(parameters) or not any(map(_anchored.adds_up, nodes)):
            self._anchor = None
        elif self._anchor is None:
            self._anchor = _anchored.new_anchor(parameters[0].device)

    def _seen(self, model: Model, effects: Effects, output: Any, inputs: Inputs) -> str:
        module = self._module()
        assert module is not None, "its forward ran"
        kinds = {kind for part in module.modules() for kind in type(part).__mro__}
        if any(f"{kind.__module__}.".startswith(EXCHANGING) for kind in kinds):
            return "it exchanges gradients with other processes"
        places = [leaf.data_ptr() for leaf in tensors(output) if leaf.numel()] if not effects.odd else []
        if len(places) > len(set(places)):
            return "of two tensors that it returns, one is a part of the other"
        return super()._seen(model, effects, output, inputs)

    def _wanted(self, tensors: Sequence[Any]) -> list[Any]:
        """What gradients are made of: arguments and parameters that require them."""
        return [t for t in [*tensors, *self._parameters()] if t.requires_grad]

    def _names(self, inputs: Sequence[Any], used: Sequence[bool]) -> list[str]:
        """What gradients are made of: an argument by its number, a parameter by its name."""
        module = self._module()
        assert module is not None, "its forward runs"
        wanted = [f"argument {at}" for at, t in enumerate(inputs) if t.requires_grad]
        wanted += [name for name, p in module.named_parameters() if p.requires_grad]
        return list(itertools.compress(wanted, used))

    def _give_up(self, why: str) -> None:
        self._places, self._known, self._current, self._anchor = (), {}, NONE, None
        super()._give_up(why)

    def _replayed(self, bucket: Bucket, inputs: Inputs, args: Any, kwargs: Any) -> Any:
        import torch

        assert isinstance(bucket, TrainingBucket) and bucket.replay is not None, "it was recorded"
        self.replays += 1
        self.serial += 1
        with torch.no_grad():  # the device computes while the host does the rest
            bucket.bring(inputs)
        bucket.replay()
        parameters = self._current.needing
        handles = _anchored.handles()
        anchor = self._anchor if _anchored.plain(parameters) else None
        token = Token() if anchor is None else _anchored.awaiting(self, anchor, parameters, handles)
        self._token = weakref.ref(token)
        call = Awaited(token, parameters, partial(self._forward, *args, **kwargs))
        leaves = [t for t in inputs.tensors if t.requires_grad]
        leaves += parameters if anchor is None else [anchor]
        self._current = NONE
        return bucket.together(_function().apply(self, bucket, inputs, call, *leaves))

    def differentiate(self, bucket: TrainingBucket, serial: int, gradients: Sequence[Any]) -> list[Any]:
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
        assert self._model is not None and isinstance(bucket, TrainingBucket), "it was looked at"
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
            bucket.replay = bucket.forward
        return self._forward(*args, **kwargs)

    def _recorded_both(
        self, bucket: TrainingBucket, inputs: Inputs, args: Any, kwargs: Any, again: Callable[[], bool]
    ) -> str:
        """Record forward and backward; why replays of them are not used, "" if they are."""
        if not self._room():
            return "device memory has no room for what it keeps for the backward"
        if any(map(internals().tensor_hooks, self._parameters())):
            return "its parameters have hooks, which recording would call"
        bucket.inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs.tensors]
        first = dict(zip(map(id, reversed(inputs.tensors)), reversed(bucket.inputs), strict=True))
        alike = [first[id(t)] for t in inputs.tensors]  # the same ones where the script's are

        def call_with(tensors: list[Any]) -> Call:
            own_args, own_kwargs = put((args, kwargs), iter(tensors))
            return Call(lambda: self._forward(*own_args, **own_kwargs), self._wanted(tensors), bucket.cotangents)

        ordinary = self._ordinary(bucket, call_with(alike), again)
        with aliased(self._module()):
            call = call_with(bucket.inputs)
            rehearsed = self._rehearsed(call)
            bucket.gradients = [
                None if g is None else _place(t, g) for t, g in zip(call.wanted, call.gradients, strict=True)
            ]
            again()
            call = call_with(bucket.inputs)
            bucket.forward = self._capture(call.make)
            bucket.backward = self._capture(lambda: call.differentiate_into(bucket.gradients))
        if not ordinary.used == rehearsed.used == call.used():
            return "its gradients are made differently each time"
        if ordinary.plain != call.plain():
            return "what it returns is made differently each time"
        bucket.recorded(call.outputs.pop())
        call.gradients = ()
        if len(bucket.tensors()) != len(bucket.cotangents):
            return "it returns one of its arguments"
        again()
        bucket.forward()
        bucket.backward()
        got = [t.clone() for t in [*bucket.tensors(), *(g for g in bucket.gradients if g is not None)]]
        gradients = self._names(bucket.inputs, ordinary.used)
        why = apart(got, rehearsed.tensors, gradients=gradients)
        if why:  # kernels that add in another order each time
            again()
            with aliased(self._module()):
                once_more = self._rehearsed(call_with(bucket.inputs))
            why = apart(got, rehearsed.tensors, spread=once_more.tensors, gradients=gradients)
        if not why and (why := apart(rehearsed.tensors, ordinary.tensors, ELSEWHERE, gradients=gradients)):
            why = why.replace("its replay", "on another stream it")
        return why

    def _ordinary(self, bucket: TrainingBucket, call: Call, again: Callable[[], bool]) -> Results:
        """A call on the script's own parameters, where the script's calls are. All is as before afterwards."""
        import torch

        call.make()
        bucket.cotangents = call.cotangents = [waves(leaf) if leaf.requires_grad else None for leaf in call.leaves()]
        call.differentiate()
        results = call.results()
        bucket.repeatable = not (again() or self._draws or any(map(torch.is_autocast_enabled, ("cuda", "cpu"))))
        bucket.reach = reach_of(call, results.used, again)
        again()
        return results

    def _rehearsed(self, call: Call) -> Results:
        """The same where it will be recorded; what a recording may not do, such as compiling, is done now."""
        self._rehearse(call.make)
        self._rehearse(call.differentiate)
        return call.results()


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
            bucket: TrainingBucket,
            inputs: Inputs,
            call: Awaited,
            *leaves: Any,
        ) -> Any:
            ctx.set_materialize_grads(False)
            ctx.graphed, ctx.bucket, ctx.serial = graphed, bucket, graphed.serial
            ctx.call, ctx.inputs = call, inputs.tensors
            ctx.freed = (False,) * len(bucket.cotangents)
            made = tuple(tensor.clone() for tensor in bucket.tensors())
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
            token, count = ctx.call.token, len(ctx.call.parameters)
            if token.anchor is not None:
                own = len(made) - count
                token.settle(made[own:], ctx.next_functions[-1][0])
                made = [*made[:own], None]
            if not keeps_graph():
                ctx.freed = tuple(map(operator.or_, used, ctx.freed))
                if ctx.bucket.whole(ctx.freed):
                    ctx.call = ctx.inputs = None
            return None, None, None, None, *made

    return Replay
