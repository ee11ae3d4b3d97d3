"""Not a lever: forwards over a sequence that grows by a token each call, of which only the last token is computed.

Loops that generate text often put the whole sequence through the model for each new token. A causal model computes the
same keys and values for the tokens before as it did in the call before; here they are kept.

Two calls, the second with one token more, are written down (`_prefix_tape`), and what they do for the last token is
worked out op by op (`_prefix_rules`). A third call is as it was, and what it computes fills the caches; by its values
no token may look at a later one. Calls of its own, with more tokens, show whether it does the same for those. Two more
of the script's are computed both ways, and have to agree in all that they return. From then on, a call whose sequence
is that of the call before and one token is computed from the caches. All others are as they were, and fill the caches
anew; on a GPU a CUDA graph may do that (`_prefix_filled`). The token's work may be compiled (`_prefix_compiled`), which
then has to agree as well.

Each call compares its tokens with those of the call before, for which the host waits, and looks whether the model, and
the values of its weights by their versions, are as they were. Where a recording does the token's work, it is begun
before: the device computes while the host looks. What it writes is the caches' own, which count for nothing from there
until all is found to be as it was. Where the token is the one that was likeliest, its work was begun with the call
before (`_prefix_guess`), and the host looks while the device computes the one after it.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from ._autocast import without_autocast
from ._call_inputs import ODD, Key, Unfit, put, read
from ._effects import PLAIN, strange, watched
from ._forward_graph import Capture, apart, tried, without_cached_casts
from ._model_state import Model
from ._prefix_compiled import Compiler, Compiling
from ._prefix_filled import MOST_RECORDED, Filling, Recorded
from ._prefix_guess import Aside, guess_for
from ._prefix_room import Unlike, work_for
from ._prefix_tape import Made, Tape, beside, outside_of, taped
from ._prefix_work import Fetch, Form, Plan, Work, copy, fetch, gap_of, room, taken_apart

MOST_FORMS: Final = 4
"""Batch sizes and the like, each with caches of its own."""
MOST_CHANGES: Final = 4
MOST_UNLIKE: Final = 8
"""Calls that do other ops than those that were written down. After each, two are written down anew: other levers may
have watched the first ones."""
PATIENCE: Final = 64
"""Calls among which two have to follow one another."""
PROOFS: Final = 2
TOLERANCE: Final = 1e-3
HALF_TOLERANCE: Final = 0.03
"""Relative (of norms) difference that what it returns may show: where it reckons in half precision, other kernels for
fewer rows round otherwise, in every layer."""


def _told(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0][:200]


def _allowed(plan: Plan) -> float:
    return HALF_TOLERANCE if plan.half else TOLERANCE


def _plain_tokens(value: Any) -> bool:
    """What `read` would take apart no further."""
    import torch

    whole = type(value) is torch.Tensor and value.layout is torch.strided and not vars(value)
    return whole and value.dim() == 2 and not value.dtype.is_floating_point


class Begun(NamedTuple):
    """Of a call, before it is known whether the caches may be used. follows: whether its tokens are those of the call
    before and one more, which the host waits for; output: what it returns then, None where that was not begun."""

    form: Form
    follows: Callable[[], bool]
    output: list[Any] | None


class CachedForward:
    """In place of a forward of `module`.

    capture: of CUDA graphs, see `Capture`, None on the host; fetcher: makes what reads from the device, see `Fetch`;
    aside: makes a stream on which tokens are begun that will likely come, None where none are.
    room: whether so many bytes fit on the device. compiler: of the last token's work, None to leave it as it is;
    uncompiled: called with the reason where that fails.
    where: what a graph depends on, None where nothing can be recorded. unsteady: called in calls that take longer for
    it; gave_up: called with the reason, once, and whether any call had been computed from the caches by then.
    """

    def __init__(
        self,
        module: Any,
        forward: Callable[..., Any],
        *,
        where: Callable[[], Any],
        unsteady: Callable[[], None],
        gave_up: Callable[[str, bool], None],
        capture: Capture | None = None,
        fetcher: Callable[[], Fetch] = lambda: fetch,
        aside: Callable[[], Aside] | None = None,
        compiler: Compiler | None = None,
        uncompiled: Callable[[str], None] = lambda why: None,
        room: Callable[[int], bool] = lambda size: True,
    ) -> None:
        self.calls = self.followed = self.cached = self.changes = 0
        self.given_up = False
        self._module, self._forward, self._capture = weakref.ref(module), forward, capture
        self._room = room
        self._fetcher, self._compiling = fetcher, Compiling(compiler, uncompiled)
        self._aside = aside
        self._where, self._unsteady, self._gave_up = where, unsteady, gave_up
        self._forms: dict[Key, Form] = {}
        self._model: Model | None = None
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        if self.given_up or torch.is_grad_enabled() or not self._lock.acquire(blocking=False):
            return self._forward(*args, **kwargs)
        try:
            return self._call(args, kwargs)
        finally:
            self._lock.release()

    def _call(self, args: Any, kwargs: Any) -> Any:
        self.calls += 1
        form = begun = None
        try:
            tokens, key = self._tokens(args, kwargs)
            found = self._as_guessed(self._forms.get(key), tokens)
            if found is not None:
                return found[0]
            if key[-1] is not None and tokens.shape[1] > 1:
                begun = self._begun(self._forms.get(key), tokens)
                form = self._form(key, begun is not None and begun.output is not None)
        except (Unfit, *ODD) as error:
            self._give_up(_told(error))
        if form is None or self.given_up:
            return self._forward(*args, **kwargs)
        follows = begun is not None and begun.form is form and begun.follows()
        filled, form.filled = form.filled, False  # until it is done: an interrupt may come in the midst of it
        before, form.tokens = form.tokens, tokens.clone()
        self.followed += follows
        if not follows:
            return self._begin(form, before, tokens, args, kwargs)
        if form.work is not None and self._compiling.pending(form, form.work):
            self._unsteady()
        if begun is not None and begun.output is not None:
            self.cached += 1
            self._own(lambda: self._start_guess(form))
            form.filled = True
            return begun.output[0]
        return self._go_on(form, filled, tokens, args, kwargs)

    def _tokens(self, args: Any, kwargs: Any) -> tuple[Any, Key]:
        """The one tensor among the arguments, (batch, length), and what else there is of the call."""
        if len(args) == 1 and not kwargs and _plain_tokens(args[0]):  # as nearly all calls are
            tokens = args[0]
            return tokens, ("", tokens.shape[0], tokens.dtype, tokens.device, self._where())
        inputs = read(args, kwargs)
        whole = [tensor for tensor in inputs.tensors if tensor.dim() == 2 and not tensor.dtype.is_floating_point]
        if len(inputs.tensors) != 1 or not whole:
            raise Unfit("its inputs are not one tensor of tokens, of shape (batch, length)")
        tokens = whole[0]
        form = "" if len(args) == 1 and args[0] is tokens and not kwargs else repr(put((args, kwargs), iter([None])))
        return tokens, (form, tokens.shape[0], tokens.dtype, tokens.device, self._where())

    def _as_guessed(self, form: Form | None, tokens: Any) -> list[Any] | None:
        """What a call returns whose token was begun with the call before; None where it was another one."""
        work = None if form is None else form.work
        guess = None if work is None else work.guess
        if form is None or work is None or guess is None or not guess.length:
            return None
        length, model, plan = tokens.shape[1], self._model, form.plan
        assert model is not None and plan is not None, "there is work"
        holds = guess.ask(tokens) if form.filled and guess.length == length else None
        guess.join()
        in_place = holds is not None and model.in_place()  # while the tokens come
        right = holds is not None and holds()
        if guess.fails:
            work.guess = None
        if not right:
            return None
        form.filled = False  # until all was looked at: an interrupt may come in the midst of it
        if not in_place:
            return None
        form.tokens, made = guess.tokens, guess.made
        guess.go_on(length)  # the device computes while the host looks: this token was not the script's
        if not (model.same_parts() and model.same_beside() and plan.same()):
            return None
        if self._compiling.pending(form, work):
            self._unsteady()
        output = self._together(form, work, made, length)
        self.followed += 1
        self.cached += 1
        form.filled = True
        return [output]

    def _begun(self, form: Form | None, tokens: Any) -> Begun | None:
        """Begin what a call takes. None where it does not go on with the call before."""
        if form is None or form.tokens is None or form.tokens.shape[1] != tokens.shape[1] - 1:
            return None
        same = (tokens[:, :-1] == form.tokens.to(tokens.device)).all()
        follows = form.fetch(same)
        work = form.work
        if not form.filled or work is None or work.replay is None or tokens.shape[1] > work.most:
            return Begun(form, follows, None)
        form.filled = False  # until all was looked at: an interrupt may come in the midst of it
        return Begun(form, follows, self._own(lambda: self._replayed(form, work, tokens, same)))

    def _form(self, key: Key, harmless: bool) -> Form | None:
        """Calls like this one; None where there are too many others. harmless: one half of the model was just looked
        at. Raises Unfit."""
        if self.calls > PATIENCE and not self.followed:
            raise Unfit("no call goes on with the sequence of the call before it")
        form = self._forms.get(key)
        plan = None if form is None else form.plan
        model = self._model
        if model is not None and not (
            (harmless or model.harmless()) and model.same_beside() and (plan is None or plan.same())
        ):
            self._forget()
            form = None
        if form is None and len(self._forms) < MOST_FORMS:
            form = self._forms[key] = Form(self._fetcher())
        return form

    def _forget(self) -> None:
        """The model is another now. Raises Unfit where that is so again and again."""
        self._forms, self._model = {}, None
        self.changes += 1
        if self.changes > MOST_CHANGES:
            raise Unfit(f"the model changed {self.changes} times")

    # a call that begins a sequence

    def _begin(self, form: Form, before: Any, tokens: Any, args: Any, kwargs: Any) -> Any:
        again = tokens.shape[1] in form.begun
        form.begun.add(tokens.shape[1])
        if form.plan is None:
            self._unsteady()
            return self._write_down(form, tokens, args, kwargs)
        if before is not None and before.shape == tokens.shape:  # a window that slides, which no call will go on with
            return self._forward(*args, **kwargs)
        if before is not None and form.work is not None and form.work.guess is not None:
            form.work.guess.ended(before.shape[1])
        if form.work is not None and form.work.most > tokens.shape[1]:
            self._compile(form, form.work, tokens)
        return self._fill(form, form.plan, tokens, args, kwargs, again)

    def _compile(self, form: Form, work: Work, tokens: Any) -> None:
        import torch

        with torch.no_grad(), without_autocast(tokens.device):
            if self._compiling.compile(form, work):
                self._unsteady()

    def _look(self, args: Any, kwargs: Any) -> Any:
        """An ordinary call that is watched."""
        module = self._module()
        with without_cached_casts():
            seen, failed = tried(lambda: watched(module, self._forward, args, kwargs))
        if failed:
            self._give_up(f"it could not be watched: {failed}")
            return self._forward(*args, **kwargs)
        output, effects = seen
        if effects.hooked:
            self._give_up("its modules or tensors have hooks")
        elif effects.draws:
            self._give_up("it draws random numbers")
        elif effects.leaves or effects.written:
            self._give_up("it leaves something in the model or in its arguments")
        elif effects.waits or effects.copies:
            self._give_up(f"what it does hangs on values ({effects.waits or effects.copies})")
        elif effects.odd:
            self._give_up(f"its tensors can't be looked at: {effects.odd}")
        elif strange(output):
            self._give_up(f"it returns an object of class {strange(output)}")
        else:
            try:
                self._model = Model(module)
            except ODD as error:
                self._give_up(f"it could not be looked at: {error}")
        return output

    def _write_down(self, form: Form, tokens: Any, args: Any, kwargs: Any) -> Any:
        """An ordinary call, of which a tape is made. Raises Unfit."""
        if self._model is None:
            return self._look(args, kwargs)
        form.tape = tape = Tape(tokens)
        with without_cached_casts(), taped(tape):
            output = self._forward(*args, **kwargs)
        try:
            form.outputs = self._outputs(form, tape, output)
        except Unfit as error:
            self._give_up(str(error))
        return output

    def _outputs(self, form: Form, tape: Tape, output: Any) -> list[Any]:
        """Where the tensors that a forward returned were made. Raises Unfit."""
        import torch

        if tape.odd:
            raise Unfit(tape.odd)
        leaves, form.plain, form.spec = taken_apart(output)
        odd = next((one for one in form.plain if type(one) not in PLAIN), None)
        if odd is not None:
            raise Unfit(f"it returns an object of class {type(odd).__qualname__}")
        tensors = [leaf for leaf in leaves if leaf is not None]
        found = [None if leaf is None else tape.where(leaf) for leaf in leaves]
        if not tensors or not all(one is None or (isinstance(one, Made) and one.op >= 0) for one in found):
            raise Unfit("it returns something that it did not make of the tokens")
        if not all(type(leaf) is torch.Tensor and leaf.is_contiguous() for leaf in tensors):
            raise Unfit("it returns a tensor whose elements do not lie one after another")
        if len({leaf.untyped_storage().data_ptr() for leaf in tensors}) < len(tensors):
            raise Unfit("it returns tensors that share memory")
        return found

    # a call that goes on

    def _go_on(self, form: Form, filled: bool, tokens: Any, args: Any, kwargs: Any) -> Any:
        length, plan = tokens.shape[1], form.plan
        if plan is None:
            self._unsteady()
            shorter, outputs = form.tape, (form.outputs, form.plain)
            output = self._write_down(form, tokens, args, kwargs)
            if not self.given_up and shorter is not None and form.tape is not None:
                self._own(lambda: self._compare(form, shorter, outputs, length - 1))
            return output
        if filled and form.work is not None and length > form.work.most and not form.ends_before(length):
            self._unsteady()
            self._own(lambda: self._grow(form, plan, tokens, args, kwargs))
        work = form.work
        if form.plan is None:
            return self._forward(*args, **kwargs)
        if self.given_up or not filled or work is None or length > work.most:
            return self._fill(form, plan, tokens, args, kwargs)
        if work.proofs < PROOFS:
            self._unsteady()
            output = self._forward(*args, **kwargs)
            form.filled = bool(self._own(lambda: self._proved(form, plan, work, tokens, output)))
            return output
        found = self._own(lambda: [self._together(form, work, self._last(work, plan, tokens), length)])
        if found is None:
            return self._forward(*args, **kwargs)
        form.filled = True
        self.cached += 1
        return found[0]

    def _own(self, work: Callable[[], Any]) -> Any:
        """What is not the script's; where it fails, None, and this is given up."""
        try:
            return work()
        except (Unfit, *ODD) as error:
            self._give_up(_told(error))
            return None

    def _compare(self, form: Form, shorter: Tape, before: tuple[list[Any], list[Any]], length: int) -> None:
        """Make a plan of two calls. Raises Unfit."""
        import torch

        assert form.tape is not None and self._model is not None, "both calls were written down"
        if before != (form.outputs, form.plain):
            raise Unfit("it returns something else for a longer sequence")
        ops = beside(shorter, form.tape, length)
        models = {id(tensor) for tensor in self._model.tensors}
        one, other = outside_of(shorter), outside_of(form.tape)
        outside = {at: tensor for at, tensor in one.items() if at in models}
        if (one.keys() & other.keys()) - models:  # others are made of Python's numbers in each call
            raise Unfit("it reads tensors that are neither the model's nor its arguments")
        if any(tensor.is_inference() for tensor in outside.values()):
            raise Unfit("its weights were made in inference mode, where changes of them can't be seen")
        half = any(dtype in {torch.float16, torch.bfloat16} for op in ops for dtype in op.dtypes)
        form.plan = Plan(ops, [made for made in form.outputs if made is not None], list(outside.values()), half)
        form.tape = None

    def _grow(self, form: Form, plan: Plan, tokens: Any, args: Any, kwargs: Any) -> None:
        """More room, with what is kept so far."""
        old = form.work
        try:
            work = work_for(self._forward, form, plan, tokens, args, kwargs)
        except Unlike as error:
            self._anew(form, str(error))
            return
        assert old is not None, "it is too small"
        form.work = work
        for (cache, _), (was, _) in zip(work.builder.caches.values(), old.builder.caches.values(), strict=True):
            cache.tensor.narrow(cache.dim, 0, old.most).copy_(was.tensor)
        for one, kept in zip(work.builder.results, old.kept, strict=True):
            work.kept.append(None if kept is None else room(work, one, kept))

    def _fill(self, form: Form, plan: Plan, tokens: Any, args: Any, kwargs: Any, again: bool = False) -> Any:
        """An ordinary call, of which keys and values are kept, and what it returns for each token. again: a sequence
        begins with it, and one has begun with this length before."""
        length = tokens.shape[1]
        recorded = None if form.work is None else form.work.recorded.get(length)
        if recorded is not None and recorded.trusted():
            output = self._own(lambda: self._refill(form, recorded, tokens))
            return self._forward(*args, **kwargs) if output is None else output[0]
        if not self._own(lambda: self._ready(form, plan, tokens, args, kwargs)):
            return self._forward(*args, **kwargs)
        work = form.work
        assert work is not None, "it is ready"
        filling = Filling(plan, work, length)
        output = filling.run(self._forward, tokens, args, kwargs)
        if filling.failed or self._own(filling.ahead.any) is not False:
            self._give_up(filling.failed or "tokens look at later ones")
            return output
        tensors = filling.as_known(form, output)
        if tensors is None:
            self._own(lambda: self._anew(form, "it does other ops than when it was written down"))
            return output
        self._own(lambda: work.keep(tensors))
        new = length not in work.recorded and len(work.recorded) < MOST_RECORDED
        if again and new and self._capture is not None:
            self._own(lambda: self._record_filling(form, work, Recorded(filling, tokens, args, kwargs), tensors))
        form.filled = not self.given_up
        return output

    def _refill(self, form: Form, recorded: Recorded, tokens: Any) -> list[Any] | None:
        """The same by a recording; None where it is of other weights. Raises Unfit."""
        looks_ahead, same = recorded.run(tokens)
        if looks_ahead:
            raise Unfit("tokens look at later ones")
        if not same:
            self._forget()
            return None
        work = form.work
        assert work is not None, "it was recorded"
        work.keep(recorded.tensors)
        self._start_guess(form, work.of_last(recorded.tensors, recorded.length))
        form.filled = True
        return [self._put_together(form, work.given(recorded.tensors, recorded.length))]

    def _record_filling(self, form: Form, work: Work, recorded: Recorded, made: Sequence[Any]) -> None:
        """From here on, sequences that begin with this length fill the caches by a recording, where that does the same
        as the ordinary call just did."""
        self._unsteady()
        assert self._capture is not None, "it is on a device"
        done = self._room(recorded.takes) and (
            self._record_compiled(form, work, recorded, made)
            or recorded.record(self._forward, self._capture, form, made)
        )
        work.recorded[recorded.length] = recorded if done else None

    def _record_compiled(self, form: Form, work: Work, recorded: Recorded, made: Sequence[Any]) -> bool:
        """The same of what the compiler makes of it, where it makes the last token's work."""
        import torch

        assert self._capture is not None and form.plan is not None, "it is on a device, and known"
        with torch.inference_mode(False), torch.no_grad(), without_autocast(recorded.tokens.device):
            forward = self._compiling.filling(recorded.graph, work, recorded.tokens)
        return forward is not None and recorded.record_compiled(forward, self._capture, made, _allowed(form.plan))

    def _anew(self, form: Form, why: str) -> None:
        """Two calls are written down again. Raises Unfit where that was so often."""
        form.unlike += 1
        form.plan = form.work = form.tape = None
        self._unsteady()
        if form.unlike > MOST_UNLIKE:
            raise Unfit(why)

    def _ready(self, form: Form, plan: Plan, tokens: Any, args: Any, kwargs: Any) -> bool:
        """Whether there is room for a sequence and for more than it. Raises Unfit."""
        length = tokens.shape[1]
        if form.ends_before(length + 1):
            return False
        if not plan.same_values():
            self._forget()
            return False
        if form.work is None or form.work.most <= length:
            self._unsteady()
            try:
                form.work = work_for(self._forward, form, plan, tokens, args, kwargs)
            except Unlike as error:
                self._anew(form, str(error))
                return False
        return bool(form.work.most > length)

    def _last(self, work: Work, plan: Plan, tokens: Any) -> Sequence[Any]:
        """What the last token's work makes of it; it goes to the caches."""
        import torch

        with torch.no_grad(), without_autocast(tokens.device):
            work.token.copy_(tokens[:, -1:])
            work.place.fill_(tokens.shape[1] - 1)
            if self._capture is not None and work.proofs >= PROOFS:
                self._unsteady()
                self._record(work, plan)
            else:
                work.made = self._compiling.run(work)
        return work.made

    def _replayed(self, form: Form, work: Work, tokens: Any, same: Any) -> list[Any] | None:
        """What a recording makes of the last token; None where it would not be safe. same: whether the tokens before
        are those that are kept, on the device. Where they are not, the token may be one that only another model has a
        place for, and an index out of range ends a process on a GPU: that of the call before is left in its place."""
        import torch

        assert self._model is not None and work.replay is not None, "it was recorded"
        torch.where(same, tokens[:, -1:], work.token, out=work.token)
        work.place.fill_(tokens.shape[1] - 1)
        if not self._model.harmless():
            return None
        work.replay()
        return [self._together(form, work, work.made, tokens.shape[1])]

    def _record(self, work: Work, plan: Plan) -> None:
        """From here on a CUDA graph does it. What it writes is the same each time that it does."""
        assert self._capture is not None, "it is on a device"
        work.made = expected = [one.clone() for one in self._compiling.run(work)]
        if work.proofs < PROOFS:  # what was compiled failed
            return
        made: list[Any] = []
        most = _allowed(plan)  # kernels need not give the same to the bit each time

        def issue() -> None:
            made[:] = work.run(work.token, work.place)

        try:
            replay = self._capture(issue)
            replay()
            why = apart(made, expected, most)
        except (RuntimeError, AssertionError) as error:
            why = f"the last token's work could not be captured: {_told(error)}"
        if not why:
            work.replay, work.made = replay, made
            if self._aside is not None:
                likeliest = partial(self._compiling.likeliest, work)
                work.guess = guess_for(work, plan, self._aside, likeliest, most)
        elif work.plain is None:
            raise Unfit(why)
        else:
            self._compiling.give_up(work, why)

    def _start_guess(self, form: Form, made: Sequence[Any] | None = None) -> None:
        """made: what the last token's work would have made, where that was not done."""
        work = form.work
        if work is not None and work.guess is not None:
            work.guess.start(form.tokens, work.made if made is None else made)

    def _proved(self, form: Form, plan: Plan, work: Work, tokens: Any, output: Any) -> bool:
        """Compare what a call returned with what it is from the caches. Whether what was compiled may be right; else it
        is not used any more, nor what it left in the caches. Raises Unfit."""
        from torch.utils import _pytree

        found = self._together(form, work, self._last(work, plan, tokens), tokens.shape[1])
        places = iter(work.builder.results)
        both = zip(_pytree.tree_flatten(found)[0], _pytree.tree_flatten(output)[0], strict=True)
        for one, other in both:
            if not hasattr(other, "shape"):
                if one != other:
                    raise Unfit("it returns something else for a longer sequence")
                continue
            last = next(places)  # of the tokens before it, most were computed as a whole
            if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
                why = "it returns tensors of another kind"
            else:
                gap = gap_of(one, other, last.dim)
                if gap <= _allowed(plan):
                    continue
                why = f"what it returns differs by {gap:.2%} from the whole"
            if work.plain is None:
                raise Unfit(why)
            self._compiling.give_up(work, why)
            return False
        work.proofs += 1
        return True

    def _together(self, form: Form, work: Work, made: Sequence[Any], length: int) -> Any:
        """The output of a forward, the caller's own."""
        found = []
        for last, one, kept in zip(made, work.builder.results, work.kept, strict=True):
            if kept is None:
                found.append(last.clone())
                continue
            kept.narrow(one.dim, length - 1, 1).copy_(last)
            found.append(copy(kept.narrow(one.dim, 0, length), one.dim))
        return self._put_together(form, found)

    def _put_together(self, form: Form, tensors: Sequence[Any]) -> Any:
        """The output of a forward, of its tensors."""
        from torch.utils import _pytree

        if form.spec.is_leaf():
            return tensors[0]
        leaves, rest = [], iter(tensors)
        for where, plain in zip(form.outputs, form.plain, strict=True):
            leaves.append(plain if where is None else next(rest))
        return _pytree.tree_unflatten(leaves, form.spec)

    def _give_up(self, why: str) -> None:
        """From here on, every call is an ordinary one."""
        if not self.given_up:
            self.given_up = True
            self._forms, self._model = {}, None
            self._gave_up(why, self.cached > 0)
