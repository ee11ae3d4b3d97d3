"""Which line of the user's code calls each torch op, begins each phase, and makes the host wait for the device.

Ops are seen by a dispatch mode: it sits below autograd, calls every op as it came, and keeps nothing of it. Only where
nothing is compiled: a mode would make torch.compile look at its graphs anew.
"""

import contextlib
import functools
import os
import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import Any, Final

import torch

from hotlap.records.whose import INSTALLED, users

from .copied_again import CopiedAgain
from .masks import Masks
from .op_call import OpCall, Place, recording
from .recurrent import KINDS, Recurrent
from .repeats import Op, Repeats
from .torch_internals import (
    CALL_CODE,
    ENGINE_CODE,
    SCHEMA,
    DispatchMode,
    is_plain,
    mode_stack,
    pop_mode,
    push_mode,
    storage_reference,
)

LONGEST: Final = 200_000
"""Ops that are kept; what comes after them in the step is counted in `left_out`."""
NUMBERED: Final = 50_000
"""Of these, those whose results are told apart, as it takes some 50 us each."""
HOTLAP: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
TORCH: Final = os.path.dirname(torch.__file__) + os.sep
STANDARD_LIBRARY: Final = os.path.dirname(os.__file__) + os.sep
AGENT: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep
_SEES: Final = ("lines.py", "operations.py", "profile.py", "guard.py", "hooks/transfer.py")
BETWEEN: Final = frozenset(AGENT + name for name in _SEES)
"""Between an op and what calls it: what sees it, and the wrapper of the script's own transfers."""
LEFT_OUT: Final = ("profiler::", "aten::detach")
"""Ops that are not in a trace, by how they begin: those that begin and end ranges; under a mode, autograd detaches what
it keeps by an op."""
RECURRENT_CODES: Final = frozenset(one.forward.__code__ for one in KINDS)
LOSS: Final = "aten::nll_loss_forward"
"""Of scores, targets, weights, a reduction and the number of a target that is left out."""
MOST_TARGETS = MOST_AUTOCASTS = 100
SYNC_WARNINGS: Final = "called a synchronizing CUDA operation|Synchronization debug mode is a prototype"

WAITS: Final[tuple[tuple[str, Any, str], ...]] = (
    ("torch.cuda.synchronize", torch.cuda, "synchronize"),
    ("torch.cuda.empty_cache", torch.cuda, "empty_cache"),
    ("torch.cuda.Stream.synchronize", torch.cuda.Stream, "synchronize"),
    ("torch.cuda.Event.synchronize", torch.cuda.Event, "synchronize"),
    ("torch.cuda.CUDAGraph.replay", torch.cuda.CUDAGraph, "replay"),
)
"""Functions that wait for the device, or have it work, and are no ops: full name, owner, attribute."""

Call = tuple[CodeType, int]
"""What is called, and the line that it is at."""


def calls(frame: FrameType | None) -> Iterator[Call]:
    """From this frame on outwards. Some instructions have no line: they are at their function's."""
    while frame is not None:
        yield frame.f_code, frame.f_lineno or frame.f_code.co_firstlineno
        frame = frame.f_back


@functools.lru_cache(maxsize=4096)
def package_of(file: str) -> str:
    """The first name of what is installed, or of Python's own, that a file belongs to, with a dot: `json.`; "" of
    others."""
    for folder in (*INSTALLED, STANDARD_LIBRARY):
        _, here, rest = file.partition(folder)
        if here:
            return rest.partition(os.sep)[0].removesuffix(".py") + "."
    return ""


class Places:
    """Finds the user's innermost frame, and numbers the files of those that were found."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self._known: dict[str, int] = {}
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        # A command that was installed (`python -m timm.train`): its own package is then the user's code.
        self._main = os.path.dirname(os.path.abspath(main)) + os.sep if main else ""

    def innermost(self, frame: FrameType | None, through_backward: bool = False) -> Place | None:
        """The innermost frame of the user's; None where there is none, as in what the backward itself calls."""
        return self.innermost_of(calls(frame), through_backward)

    def innermost_of(self, frames: Iterable[Call], through_backward: bool = False) -> Place | None:
        """The same of calls, from the innermost one on."""
        for code, line in frames:
            at = self._of(code.co_filename)
            if at >= 0:
                return at, line, code.co_qualname
            if code is ENGINE_CODE and not through_backward:
                return None
        return None

    def all_of(self, frames: Iterable[Call]) -> list[Place]:
        """All frames of the user's, the outermost first."""
        found = [(self._of(code.co_filename), line, code.co_qualname) for code, line in frames]
        return [one for one in reversed(found) if one[0] >= 0]

    def _of(self, name: str) -> int:
        """Number of a file, -1 of one that is not the user's."""
        at = self._known.get(name)
        return self._number(name) if at is None else at

    def caller(self) -> tuple[str, int, str] | None:
        """File, line and function of the user's code that led here."""
        found = self.innermost(sys._getframe(1), through_backward=True)
        return None if found is None else (self.files[found[0]], *found[1:])

    def _number(self, name: str) -> int:
        at = -1
        if self.users(name):
            at = len(self.files)
            self.files.append(os.path.abspath(name))
        self._known[name] = at
        return at

    def users(self, name: str) -> bool:
        """Whether a file is the user's: not torch's, hotlap's, Python's or an installed package's."""
        return users(name, (HOTLAP, TORCH), (STANDARD_LIBRARY,), self._main)


class OpMode(DispatchMode):  # type: ignore[misc]
    """Tells of every op and calls it as it came."""

    supports_higher_order_operators = True

    def __init__(self, tell: Callable[[Any, Any, Any], None], told: Callable[[Any], None]) -> None:
        super().__init__()
        self.tell, self.told = tell, told

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps the method below, and imports its compiler at the first op

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.tell(func, args, kwargs or {})
        made = func(*args, **(kwargs or {}))
        self.told(made)
        return made


class OpWatch:
    """Sees the ops of the thread that made it while `looking`."""

    def __init__(self, tell: Callable[..., None]) -> None:
        """tell(act, *of) calls `act(*of)` under the guard."""
        self.places = Places()
        self.looking = False
        self._outside = False
        self._thread = threading.get_ident()
        self._tell = tell
        self._mode = OpMode(lambda *of: tell(self._op, *of), lambda made: tell(self._done, made))

    def _op(self, func: Any, args: Any, kwargs: Any) -> None:
        """An op is about to be called."""
        raise NotImplementedError

    def _done(self, made: Any) -> None:
        """It was, and returned this."""
        raise NotImplementedError

    @property
    def mode_stays(self) -> bool:
        """Whether the mode can't be taken off here: the end of a torch.inference_mode that began with it has torch look
        for a mode again, and fail where there is none."""
        return self._outside and torch.is_inference_mode_enabled() and self._mode in mode_stack()

    def forget(self) -> None:
        """Take the mode off this thread's stack, where it is still on it; modes of the script's own stay. One that
        can't be taken off does nothing from here on."""
        self.looking = False
        if self.mode_stays or self._mode not in mode_stack():
            return
        above = []
        while (top := pop_mode()) is not self._mode:
            above.append(top)
        for other in reversed(above):
            push_mode(other)

    @contextlib.contextmanager
    def _looking(self, ops: bool) -> Iterator[None]:
        self.looking = True
        self._outside = not torch.is_inference_mode_enabled()
        if ops:
            push_mode(self._mode)
        try:
            yield
        finally:
            self.forget()


def caller_of_op() -> FrameType | None:
    """The frame that calls an op which is being told of; None where it is hotlap's own, as when it reads the loss."""
    caller: FrameType | None = sys._getframe(1)
    while caller is not None and caller.f_code.co_filename in BETWEEN:
        caller = caller.f_back
    return None if caller is None or caller.f_code.co_filename.startswith(AGENT) else caller


class Lines(OpWatch):
    """What one step's ops, phases and waits were called by; the document of lines.json."""

    def __init__(self, tell: Callable[..., None]) -> None:
        super().__init__(tell)
        self.ops: list[tuple[str, int, int, str]] = []
        self.phases: dict[str, Place] = {}
        self.begins: list[tuple[str, int]] = []
        self.calls: list[tuple[str, int, int, str]] = []
        self.syncs: list[tuple[str, int, int, str]] = []
        self.left_out = 0
        self.targets: list[tuple[Place, torch.Tensor, int, int, float]] = []
        """Of losses over classes: where, how many of the targets are left out, of how many; classes; the part that the
        products which made so many columns have in the multiplications of all products of matrices before."""
        self._products: Counter[int] = Counter()
        self.steps = 0
        self.skipped = ""
        self._repeats = Repeats()
        self._doing: Op | None = None
        self._again = False
        """The first step is over."""
        self._masks, self._copied_again, self._recurrent = Masks(), CopiedAgain(), Recurrent(self._repeats.dead)
        self.autocasts: list[Place] = []

    def document(self) -> dict[str, Any]:
        """Plain lists, as the file holds them."""
        return {
            "steps": self.steps,
            "ops": self.ops,
            "files": self.places.files,
            "places": self.phases,
            "begins": self.begins,
            "calls": self.calls,
            "syncs": self.syncs,
            "left_out": self.left_out,
            "targets": [[*place, int(out) / of, *rest] for place, out, of, *rest in self.targets],
            **self._repeats.document(),
            "copied": self._copied_again.rows(),
            "masks": self._masks.rows(),
            "recurrent": self._recurrent.rows(),
            "stepwise": self._recurrent.stepwise(),
            "autocasts": self.autocasts,
            "skipped": self.skipped,
        }

    # phases

    def phase(self, name: str) -> None:
        """A phase begins: after how many ops, and where from, the first time."""
        if self.looking and not self._again and len(self.begins) < LONGEST:
            self.begins.append((name, len(self.ops)))
        if self.looking and name not in self.phases:
            place = self.places.innermost(sys._getframe(1))
            if place is not None:
                self.phases[name] = place

    # ops

    @contextlib.contextmanager
    def watching(self, ops: bool) -> Iterator[None]:
        """Log where phases begin and, with `ops`, the ops of this thread and its calls that wait for the device."""
        with self._looking(ops), contextlib.ExitStack() as stack:
            if ops:
                for name, holder, attribute in WAITS:
                    stack.enter_context(self._told(holder, attribute, functools.partial(self._call, name)))
                stack.enter_context(self._told(torch.autocast, "__enter__", self._autocast))
                for kind in KINDS:
                    stack.enter_context(self._told(kind, "forward", self._recurred))
            yield

    @contextlib.contextmanager
    def watching_again(self) -> Iterator[None]:
        """In the step after it, look at what ops are given that the first step had as well."""
        self._again = True
        with self._looking(ops=True):
            yield

    @contextlib.contextmanager
    def _told(self, holder: Any, attribute: str, act: Callable[..., None]) -> Iterator[None]:
        """Tell `act(args, kwargs, made)` when a function has been called; it is the script's own again afterwards."""
        original = getattr(holder, attribute, None)
        if original is None:
            yield
            return

        @functools.wraps(original)
        def told(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            self._tell(act, args, kwargs, made)
            return made

        own = attribute in vars(holder)
        setattr(holder, attribute, told)
        try:
            yield
        finally:
            if vars(holder).get(attribute) is told:
                setattr(holder, attribute, original) if own else delattr(holder, attribute)

    def _call(self, name: str, _args: Any, _kwargs: Any, _made: Any) -> None:
        place = self.places.innermost(sys._getframe(1))
        if self.looking and place is not None and len(self.calls) < LONGEST and threading.get_ident() == self._thread:
            self.calls.append((name, *place))

    def _recurred(self, args: Any, kwargs: Any, made: Any) -> None:
        """A recurrent net was called: which, with which input and state, and what it made."""
        chain = tuple(self.places.all_of(calls(sys._getframe(1))))
        if self.looking and not self._again and chain and threading.get_ident() == self._thread:
            given = {"x": kwargs.get("input"), "state": kwargs.get("hx")}
            given |= dict(zip(("module", "x", "state"), args, strict=False))
            self._recurrent.called(chain, made, **given)

    def _autocast(self, _args: Any, _kwargs: Any, _made: Any) -> None:
        """The script entered one: where, if that changes anything; of the step's lines, if no module does it."""
        frame = sys._getframe(1)
        on = torch.is_autocast_enabled("cuda" if torch.cuda.is_initialized() else "cpu")
        if not (self.looking and on and threading.get_ident() == self._thread):
            return
        place = self.places.innermost(frame)
        if place is None:
            return
        torch.autocast_increment_nesting()
        if torch.autocast_decrement_nesting() == 1:
            self._repeats.recasts.entered(place)
        by_module = CALL_CODE is None or any(code is CALL_CODE for code, _ in calls(frame))
        if not by_module and len(self.autocasts) < MOST_AUTOCASTS:
            self.autocasts.append(place)

    def _op(self, func: Any, args: Any, kwargs: Any) -> None:
        self._doing = self._masks.doing = None
        if not self.looking or threading.get_ident() != self._thread:
            return
        schema = getattr(func, SCHEMA, None)
        name = str(func) if schema is None else str(schema.name)
        if name.startswith(LEFT_OUT):
            return
        caller = caller_of_op()
        if caller is None:
            return
        place = self.places.innermost(caller)
        if place is None:
            return
        call = None if schema is None else OpCall.of(name, func, schema, args, kwargs)
        if call is not None and name.startswith("aten::"):
            self._masks.op(place, call, self._again)
            self._copied_again.op(place, call, self._again)
        if self._again:
            return
        if len(self.ops) >= LONGEST:
            self.left_out += 1
            return
        self.ops.append((name, *place))
        if storage_reference is not None and len(self.ops) <= NUMBERED and call is not None:
            code = caller.f_code
            self._doing = self._repeats.begin(call, code.co_filename.startswith(TORCH), code in RECURRENT_CODES)
        self._repeats.dead.unknown |= len(self.ops) > NUMBERED or schema is None
        if call is not None and (at := call.factors) is not None:
            rows, columns = args[at : at + 2]
            self._products[columns.size(-1)] += rows.numel() * columns.size(-1)
        if name == LOSS and len(args) == 5 and len(self.targets) < MOST_TARGETS:
            self._targets(place, *args)

    def _done(self, made: Any) -> None:
        """The op was called."""
        op, self._doing = self._doing, None
        self._masks.done(made)
        if op is not None and self._repeats.end(op, made):
            self._repeats.called(op, tuple(self.places.all_of(calls(sys._getframe(1)))))

    def _targets(self, place: Place, scores: Any, target: Any, weight: Any, reduction: Any, ignored: Any) -> None:
        """How many targets of a loss it leaves out; read when the document is made, as the device is not waited for."""
        if is_plain(target) and is_plain(scores) and target.numel() and not recording():
            classes, all_ = int(scores.size(-1)), max(1, self._products.total())
            left_out = (target == ignored).sum()
            self.targets.append((place, left_out, target.numel(), classes, self._products[classes] / all_))

    def backward(self, tensors: Iterable[Any]) -> None:
        """A backward of these begins, in the step whose ops were logged or in one after it."""
        if self.ops and threading.get_ident() == self._thread:
            self._repeats.dead.backward(tensors)
            self._repeats.recasts.backward()

    # waits

    @contextlib.contextmanager
    def watching_syncs(self) -> Iterator[None]:
        """Log the lines at which the host waits for the device, as CUDA's sync debug mode warns of them."""
        shown = warnings.showwarning

        def show(message: Any, *args: Any, **kwargs: Any) -> Any:
            text = str(message)
            if not text.startswith(tuple(SYNC_WARNINGS.split("|"))):
                return shown(message, *args, **kwargs)
            if text.startswith("called") and len(self.syncs) < LONGEST:
                place = self.places.innermost(sys._getframe(1), through_backward=True)
                if place is not None:
                    self.syncs.append((text.split(" (", 1)[0], *place))
            return None

        warnings.showwarning = show
        try:
            with filtered("always", SYNC_WARNINGS):
                torch.cuda.set_sync_debug_mode("warn")
                yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
            if warnings.showwarning is show:
                warnings.showwarning = shown


def other_modes() -> bool:
    """Whether the script has dispatch modes of its own on, which may leave in an order that ours would upset."""
    return bool(mode_stack())


@contextlib.contextmanager
def filtered(action: str, message: str) -> Iterator[None]:
    """Has a filter before all others, by what messages begin with (a pattern).

    `warnings.catch_warnings` does that too, but after it, as after any change that `warnings` is told of, the script
    would see each of its warnings once more.
    """
    entry = (action, re.compile(message), Warning, re.compile(""), 0)
    filters = warnings.filters
    filters.insert(0, entry)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the script put its own filters back
            filters.remove(entry)  # type: ignore[attr-defined]
