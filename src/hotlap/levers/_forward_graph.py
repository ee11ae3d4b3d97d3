"""Forwards without gradients, recorded once for each shape of their inputs and replayed: what they issue, without the
Python that issues it.

A shape is run three times by the script's own calls before it is replayed: once watched (`_effects`), once as it is,
and once recorded. Where the watched one waits for the device or leaves something in the model, as a first call may that
makes a mask or a cache, the next one is watched too, twice at most. The record is replayed at once beside an ordinary
run with the same inputs, and has to give the same. From then on inputs are copied to where the record reads them, and
the script gets copies of what it returned. Tensors of the model are used where they lie; so are arguments that the
forward writes to, such as a cache of keys and values. Records of one stream share a pool of memory: what one of them
leaves there is not needed by the next.

A replay does what was recorded with the same addresses, so each call looks whether the model is as it was: its parts'
parameters, buffers, other tensors, numbers, flags and functions (`_model_state`). Where it is not, all is watched and
recorded anew. Threads take turns, since a record reads its inputs from one place.
"""

import contextlib
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ._call_inputs import ODD, Inputs, Key, Unfit, put, read
from ._effects import PLAIN, Effects, storage, strange, watched
from ._internals import internals
from ._model_state import Model

MOST_SHAPES: Final = 8
MOST_CHANGES: Final = 4
MOST_LOOKS: Final = 3
"""Calls that are watched one after another before it is believed that all of them wait, or leave something."""
PATIENCE: Final = 64
"""Calls after which most of them have to be replays, once there are more shapes than are recorded."""
TOLERANCE: Final = 0.001
"""Relative (of norms) difference that a replay may show: captured kernels may be other ones, for want of workspace."""

TIMES_SPREAD: Final = 3.0
"""How many times as far as two ordinary calls differ a replay may lie from one of them."""

MOST_SPREAD: Final = 0.01
"""Of a tensor that itself differs less between two ordinary calls. A GPT's gradients in bfloat16, through cuDNN's
attention: 0.14% and 0.19% in two of seven recordings on H100s."""
ROUNDING: Final = 1e-6
"""Of the norm of the gradients of one module: one that lies apart by less is the same but for rounding. The gradient of
a key's bias is zero, and what rounding leaves of it (1e-8 to 1e-7 of that of the key's weight) may be another by other
kernels and yet the same in two ordinary calls. Not of all modules: some learn by gradients a million times smaller."""
NOISE: Final = 0.1
"""From here on what two calls differ by says nothing of other tensors: gradients that are zero but for rounding, as a
key's bias has."""

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Records what a function issues, without doing it; what it returns does it."""


class Slot(NamedTuple):
    """A leaf of what a record returns: a tensor of its own, an argument by its index, or something plain."""

    tensor: Any = None
    argument: int | None = None
    plain: Any = None


@dataclass
class Bucket:
    """Calls of one form. calls: so far; held: arguments that the forward writes to, by index, which are used in place,
    at these addresses; written: storages that it writes to, of the model and of the arguments; inputs: where the
    record reads, None for those that are held; slots, spec: what it returns."""

    calls: int = 0
    held: tuple[int, ...] = ()
    written: set[int] = field(default_factory=set)
    inputs: list[Any] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)
    replay: Callable[[], None] | None = None
    slots: list[Slot] = field(default_factory=list)
    spec: Any = None

    def bring(self, inputs: Inputs) -> None:
        """Copy a call's arguments to where the record reads them."""
        pairs = [(own, given) for own, given in zip(self.inputs, inputs.tensors, strict=True) if own is not None]
        if len(pairs) == 1:
            pairs[0][0].copy_(pairs[0][1])
        elif pairs:
            internals().copy_all([own for own, _ in pairs], [given for _, given in pairs])

    def output(self, inputs: Inputs) -> Any:
        """What the last replay returned, as the caller's own."""
        return self.together([tensor.clone() for tensor in self.tensors()], inputs.tensors)

    def tensors(self) -> list[Any]:
        """What the record returns."""
        return [slot.tensor for slot in self.slots if slot.tensor is not None]

    def together(self, made: Sequence[Any], given: Sequence[Any] = ()) -> Any:
        """The output of a forward. made: its tensors; given: the arguments, which may be among it."""
        if len(made) == len(self.slots) == 1 and self.spec.is_leaf():
            return made[0]
        rest = iter(made)
        leaves = [
            next(rest) if slot.tensor is not None else slot.plain if slot.argument is None else given[slot.argument]
            for slot in self.slots
        ]
        return internals().tree_unflatten(leaves, self.spec)

    def keep(self, output: Any) -> None:
        """Remember what recording returned."""
        import torch

        leaves, self.spec = internals().tree_flatten(output)
        given = {id(tensor): at for at, tensor in enumerate(self.inputs)}
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                self.slots.append(Slot(plain=leaf))
            elif id(leaf) in given:
                self.slots.append(Slot(argument=given[id(leaf)]))
            else:
                self.slots.append(Slot(tensor=leaf))
        self.inputs = [None if at in self.held else tensor for at, tensor in enumerate(self.inputs)]

    def own(self, output: Any) -> list[Any] | None:
        """Of a forward's output the tensors that are the record's own; None where it is not made as the record's is."""
        import torch

        leaves, spec = internals().tree_flatten(output)
        if spec != self.spec:
            return None
        pairs = list(zip(leaves, self.slots, strict=True))
        plain = [(leaf, slot.plain) for leaf, slot in pairs if slot.tensor is None and slot.argument is None]
        if any(type(one) is not type(other) or one != other for one, other in plain):
            return None
        own = [leaf for leaf, slot in pairs if slot.tensor is not None]
        return own if all(isinstance(leaf, torch.Tensor) for leaf in own) else None


class GraphedForward:
    """In place of a forward of `module`.

    capture: see there; rehearse: does what a function issues, where it will be recorded. where: what else a record
    depends on, such as the current stream; None where nothing can be recorded now. unsteady: called in calls that take
    longer for it; gave_up: called with the reason, once; room: whether what a training forward keeps fits twice.
    """

    def __init__(
        self,
        module: Any,
        forward: Callable[..., Any],
        capture: Capture,
        *,
        rehearse: Callable[[Callable[[], None]], None],
        where: Callable[[], Any],
        unsteady: Callable[[], None],
        gave_up: Callable[[str], None],
        room: Callable[[], bool] = lambda: True,
    ) -> None:
        self.calls = self.replays = self.changes = 0
        self._looks = 0
        self.buckets: dict[Key, Bucket] = {}
        self.given_up = False
        self._module, self._forward = weakref.ref(module), forward
        self._capture, self._rehearse, self._where = capture, rehearse, where
        self._unsteady, self._gave_up, self._room = unsteady, gave_up, room
        self._model: Model | None = None
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        where = None if self.given_up or not self._concerned() else self._where()
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
            if bucket is not None and bucket.replay is None:
                return self._towards(bucket, inputs, args, kwargs)
            if bucket is not None:
                return self._replayed(bucket, inputs, args, kwargs)
        return self._forward(*args, **kwargs)

    def _concerned(self) -> bool:
        """Whether this call is one of those that may be replayed."""
        import torch

        return not torch.is_grad_enabled()

    def _more(self, inputs: Inputs) -> Any:
        """What else tells calls apart; the model was just looked at."""

    def _replayed(self, bucket: Bucket, inputs: Inputs, args: Any, kwargs: Any) -> Any:
        assert bucket.replay is not None, "it was recorded"
        self.replays += 1
        bucket.bring(inputs)
        bucket.replay()
        return bucket.output(inputs)

    def _bucket(self, where: Any, inputs: Inputs) -> Bucket | None:
        """The bucket of a call, None where there are too many. Raises Unfit where hardly any call is replayed."""
        same = self._model is not None and self._model.same()
        key = where, inputs.form, self._more(inputs)
        bucket = self.buckets.get(key)
        if bucket is not None and not (same and self._of(bucket, inputs)):
            self.buckets, self._model, bucket = {}, None, None
            self.changes += 1
        if bucket is None and len(self.buckets) < MOST_SHAPES:
            bucket = self.buckets[key] = self._new_bucket()
        if bucket is None and self.calls > PATIENCE and self.replays < self.calls / 2:
            raise Unfit(f"its inputs come in more than {MOST_SHAPES} forms (shapes, and numbers that are no tensors)")
        return bucket

    def _new_bucket(self) -> Bucket:
        return Bucket()

    def _of(self, bucket: Bucket, inputs: Inputs) -> bool:
        """Whether a record is of these arguments, where they are used in place."""
        return bucket.replay is None or bucket.addresses == [inputs.tensors[at].data_ptr() for at in bucket.held]

    def _towards(self, bucket: Bucket, inputs: Inputs, args: Any, kwargs: Any) -> Any:
        bucket.calls += 1
        self._unsteady()
        if self.changes > MOST_CHANGES:
            self._give_up(f"the model, or an argument that it writes to, changed {self.changes} times")
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
            why = self._seen(Model(module), effects, output, inputs)
        except ODD as error:
            why = f"it could not be looked at: {error}"
        self._looks = self._looks + 1 if why and (effects.waits or effects.leaves) else 0
        if why and not 0 < self._looks < MOST_LOOKS:
            self._give_up(why)
        elif why:
            bucket.calls = 0  # it may be of a first call only
        bucket.written = effects.written
        bucket.held = tuple(at for at, tensor in enumerate(inputs.tensors) if storage(tensor) in effects.written)
        return output

    def _seen(self, model: Model, effects: Effects, output: Any, inputs: Inputs) -> str:
        """Why what was watched can't be recorded, "" if it can."""
        self._model = self._model or model
        if model.draws:
            return "it holds a generator or an iterator of its own"
        return self._unfit(effects, [*model.tensors, *inputs.tensors]) or _unfit_output(output, effects, inputs)

    def _unfit(self, effects: Effects, known: Sequence[Any]) -> str:
        return "it draws random numbers" if effects.draws else unfit(effects, known)

    def _record(self, bucket: Bucket, inputs: Inputs, args: Any, kwargs: Any) -> Any:
        """Record a call, and compare a replay of it with an ordinary one, whose output the script gets."""
        assert self._model is not None, "it was looked at"
        state = [t for t in [*self._model.tensors, *inputs.tensors] if storage(t) in bucket.written]
        saved = [t.clone() for t in state]
        got, why = self._try(bucket, inputs, args, kwargs, lambda: restore_all(state, saved))
        restore_all(state, saved)
        output = self._forward(*args, **kwargs)
        own = [] if why else bucket.own(output)
        why = why or ("what it returns is made differently each time" if own is None else apart(got, [*own, *state]))
        if why:
            self._give_up(why)
        return output

    def _try(
        self, bucket: Bucket, inputs: Inputs, args: Any, kwargs: Any, restore: Callable[[], None]
    ) -> tuple[list[Any], str]:
        """Record a call and replay it: what it returned and wrote; or why it could not be captured."""
        assert self._model is not None, "it was looked at"
        try:
            replay = self._recorded(bucket, inputs, args, kwargs, restore)
            bucket.bring(inputs)
            replay()
        except (RuntimeError, AssertionError, TypeError, ValueError) as error:
            return [], f"its forward could not be captured: {(str(error) or repr(error)).splitlines()[0][:200]}"
        bucket.replay = replay
        written = [t for t in [*self._model.tensors, *inputs.tensors] if storage(t) in bucket.written]
        return [t.clone() for t in [*(slot.tensor for slot in bucket.slots if slot.tensor is not None), *written]], ""

    def _recorded(
        self, bucket: Bucket, inputs: Inputs, args: Any, kwargs: Any, restore: Callable[[], None]
    ) -> Callable[[], None]:
        bucket.inputs = [t if at in bucket.held else t.clone() for at, t in enumerate(inputs.tensors)]
        bucket.addresses = [inputs.tensors[at].data_ptr() for at in bucket.held]
        own_args, own_kwargs = put((args, kwargs), iter(bucket.inputs))
        outputs: list[Any] = []

        def work() -> None:
            outputs[:] = [self._forward(*own_args, **own_kwargs)]

        with without_cached_casts():
            work()  # what the inputs' own copies need, such as kernels for other alignments, is made now
            restore()
            outputs.clear()
            replay = self._capture(work)
        restore()
        bucket.keep(outputs[0])
        return replay

    def _give_up(self, why: str) -> None:
        """From here on, every call is an ordinary one."""
        if not self.given_up:
            self.given_up = True
            self.buckets, self._model = {}, None
            self._gave_up(why)


def unfit(effects: Effects, known: Sequence[Any]) -> str:
    """Why a forward with these effects can't be recorded, "" if it can. known: tensors that are looked after."""
    if effects.waits:
        return f"the host waits for the device in it ({effects.waits})"
    if effects.hooked:
        return "its modules or tensors have hooks, which a replay does not call"
    if effects.odd:
        return f"its tensors can't be looked at: {effects.odd}"
    if effects.leaves:
        return "it leaves new tensors, or changed numbers, in the model or in its arguments"
    if effects.read.keys() - {storage(tensor) for tensor in known}:
        return "it reads tensors that are neither the model's nor its arguments"
    if len({tensor.device for tensor in effects.read.values()}) > 1:
        return "it reads tensors of more than one device"
    return ""


def _unfit_output(output: Any, effects: Effects, inputs: Inputs) -> str:
    other = strange(output)
    if other:
        return f"it returns an object of class {other}"
    given = {id(tensor) for tensor in inputs.tensors}
    for leaf in internals().tree_flatten(output)[0]:
        if not hasattr(leaf, "untyped_storage") and type(leaf) not in PLAIN:
            return f"it returns an object of class {type(leaf).__qualname__}"
        if hasattr(leaf, "untyped_storage") and storage(leaf) in effects.read and id(leaf) not in given:
            return "it returns a part of the model or of an argument"
    return ""


def apart(
    got: Sequence[Any],
    expected: Sequence[Any],
    most: float = TOLERANCE,
    spread: Sequence[Any] = (),
    gradients: Sequence[str] = (),
) -> str:
    """Why tensors of a replay are not those of an ordinary call, "" if they are, but for rounding (most: relative, of
    norms). spread: those of another such call. Where a tensor of that is another, it may lie so many times as far, or,
    up to MOST_SPREAD, as the one that differs most and is not just noise: two sums in other orders may nearly agree.
    gradients: what the last ones are gradients of."""
    import torch

    pairs = zip(spread, expected, strict=True) if spread else ()
    apart_too = [0.0 if torch.equal(one, other) else relative_error(one, other) for one, other in pairs]
    widest = max((error for error in apart_too if error < NOISE), default=0.0)
    outputs = len(expected) - len(gradients)
    negligible = _negligible(expected[outputs:], gradients)
    for at, (one, other) in enumerate(zip(got, expected, strict=True)):
        if one.shape != other.shape or one.dtype != other.dtype:
            return "its replay returns other shapes"
        if torch.equal(one, other) or (at >= outputs and norm(one - other) <= negligible[at - outputs]):
            continue
        gap = relative_error(one, other)
        allowed = most
        if spread and apart_too[at]:
            allowed = max(most, TIMES_SPREAD * apart_too[at], min(MOST_SPREAD, TIMES_SPREAD * widest))
        if not gap <= allowed:
            of = f" in the gradient of {gradients[at - outputs]}" if at >= outputs else ""
            return f"its replay differs by {gap:.2%} from an ordinary call{of}"
    return ""


def _negligible(gradients: Sequence[Any], names: Sequence[str]) -> list[float]:
    """By how much each may lie apart."""
    modules = [name.rpartition(".")[0] or name for name in names]
    squares: dict[str, float] = {}
    for module, gradient in zip(modules, gradients, strict=True):
        squares[module] = squares.get(module, 0.0) + norm(gradient) ** 2
    return [ROUNDING * math.sqrt(squares[of]) if math.isfinite(squares[of]) else 0.0 for of in modules]


def norm(tensor: Any) -> float:
    """Root of the sum of squares."""
    return float(tensor.detach().double().norm())


def relative_error(value: Any, exact: Any) -> float:
    """Norm of the difference over the norm. NaN where one has them; infinities and NaN at the same places are equal."""
    a, b = value.detach().double(), exact.detach().double()
    same = (a == b) | (a.isnan() & b.isnan())
    gap = (a - b).masked_fill(same, 0.0).norm()
    scale = b.masked_fill(~b.isfinite(), 0.0).norm()
    return float(gap / scale) if float(scale) else float(gap)


def restore_all(tensors: Sequence[Any], saved: Sequence[Any]) -> None:
    """Give tensors the values that they had."""
    for tensor, was in zip(tensors, saved, strict=True):
        tensor.copy_(was)


def tried(work: Callable[[], Any]) -> tuple[Any, str]:
    """What it returns, and ""; or None, and why the script's own code failed, as an ordinary call may not."""
    try:
        return work(), ""
    except Exception as error:  # noqa: BLE001 - whatever models, and what they call, may raise
        return None, (str(error).strip() or repr(error)).splitlines()[0][:200]


@contextlib.contextmanager
def without_cached_casts() -> Iterator[None]:
    """Autocast then casts weights where they are used: the script's cache of casts may be gone at a replay."""
    import torch

    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(cached)
