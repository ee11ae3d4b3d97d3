"""The seams that the agent offers to the in-process half of a lever.

A lever's `install(seams, settings)` runs at the end of `import torch` and registers what it wants done where. An error
in any of it takes that lever out, is recorded with its name, and leaves the script running without it.

Levers that are `switchable` are put in and taken out between two steps of a live process (`Seams.put_in`): they say how
each change is undone, and forwards are wrapped anew.
"""

import contextlib
import importlib
import json
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .core import Agent

LEVERS = "levers.jsonl"
Forward = Callable[..., Any]
WrapForward = Callable[[Any, Forward], Forward]


class Refused(Exception):
    """Raised by a lever in process when it finds that it must not be put in, before it has changed anything."""


class NothingToDo(Exception):
    """Raised by a lever that has nothing to change in the loader, module or optimizer that it was given; another may
    have it."""


class Change(NamedTuple):
    """What a lever does to each module or optimizer that it is given, and what takes it back."""

    lever: str
    change: Callable[[Any], None]
    undo: Callable[[Any], None] | None = None


class Seams:
    """Registers what levers want done, and does it at the right moment."""

    def __init__(self, agent: "Agent") -> None:
        self.agent = agent
        self.lever = ""
        self._loaders: list[tuple[str, Callable[[Any], None], bool]] = []
        self._roots: list[Change] = []
        self._forwards: list[tuple[int, str, WrapForward]] = []
        self._optimizers: list[Change] = []
        self._switches: list[tuple[str, Callable[[], None], Callable[[], None]]] = []
        self._whole: list[str] = []
        self._in_use: set[str] = set()
        self._acted: set[str] = set()
        """Levers that have changed something."""
        self._out: set[str] = set()
        """Levers that were left out."""
        self._idle: dict[str, str] = {}
        """Levers that found nothing to do at first, and why."""
        self._installed: dict[str, dict[str, Any]] = {}
        self._off: set[str] = set()
        """Installed levers that are switched off."""
        self._roots_seen: list[weakref.ref[Any]] = []
        self._optimizers_seen: list[weakref.ref[Any]] = []
        self._wrapped: weakref.WeakKeyDictionary[Any, dict[tuple[str, ...], Forward]] = weakref.WeakKeyDictionary()
        """Forwards by module and by the levers around them: what was compiled of one is found again."""
        self.rewrap: Callable[[], None] = lambda: None
        """Of the hooks: wrap all known forwards anew."""

    # what a lever may ask for

    def on_loader(self, change: Callable[[Any], None], inference: bool = False) -> None:
        """`change(loader)` whenever the script is about to iterate a DataLoader that it has iterated with gradients
        enabled. inference: or any other, since the command only infers, as was seen without the lever."""
        self._loaders.append((self.lever, change, inference))

    def switch(self, on: Callable[[], None], off: Callable[[], None]) -> None:
        """`on()` now and whenever the lever is put in again, `off()` whenever it is taken out."""
        self._switches.append((self.lever, on, off))
        on()

    def on_root(self, change: Callable[[Any], None], undo: Callable[[Any], None] | None = None) -> None:
        """`change(module)` once for each outermost module, before its first training forward. undo: takes it back,
        which a lever that is switchable has to say."""
        self._roots.append(Change(self.lever, change, undo))

    def wrap_forward(self, wrap: WrapForward, order: int) -> None:
        """`wrap(module, forward) -> forward` around an outermost module; lower orders lie further in."""
        self._forwards.append((order, self.lever, wrap))
        self._forwards.sort(key=lambda item: item[0])

    def on_optimizer(self, change: Callable[[Any], None], undo: Callable[[Any], None] | None = None) -> None:
        """`change(optimizer)` once for each optimizer, before its first step. undo: as in `on_root`."""
        self._optimizers.append(Change(self.lever, change, undo))

    def optimizers(self) -> list[Any]:
        """Those that have made a step."""
        return _alive(self._optimizers_seen)

    def refuse(self, lever: str, why: str) -> None:
        """Say that a lever that was put in turned out not to belong here; what it still does is the lever's affair."""
        self.agent.guard.problem(f"lever {lever}", Refused(why), lever)

    def leave_out(self, lever: str, why: str) -> None:
        """The same of a lever that does nothing from here on, and without which all that was computed so far would be
        what it is: the run is one of the other levers. Times of the steps so far are not theirs."""
        self._out.add(lever)
        agent = self.agent
        line = {"lever": lever, "left_out": why, "step": agent.recorder.index}
        with contextlib.suppress(OSError):  # the disk may be full
            agent.append(LEVERS, json.dumps(line, ensure_ascii=False) + "\n")  # before the problem is seen
        self.refuse(lever, why)
        agent.timeline.segment.probe = True
        stopper = agent.stopper
        stopper.disturbed = [True] * len(stopper.disturbed)
        stopper.steady = None

    def unsteady(self) -> None:
        """Say that this step is not yet as fast as later ones, so that its time is not quoted: a cache is filling."""
        self.agent.timeline.segment.probe = True

    # what the hooks call

    @property
    def wants_loaders(self) -> bool:
        return bool(self._loaders)

    def _note(self, lever: str) -> None:
        """A lever took hold: said once, in a file that shows which levers of a recipe never do."""
        if lever not in self._in_use:
            self._in_use.add(lever)
            self.agent.append(LEVERS, json.dumps({"lever": lever}) + "\n")

    def _found_nothing(self, lever: str, why: str) -> None:
        """Say once, of a lever that has changed nothing so far, why it did not."""
        if lever in self._acted or lever in self._idle:
            return
        self._idle[lever] = why
        if self.agent.begun:
            self._note_idle(lever, why)

    def _note_idle(self, lever: str, why: str) -> None:
        line = json.dumps({"lever": lever, "nothing": why}, ensure_ascii=False)
        with contextlib.suppress(OSError):  # the disk may be full
            self.agent.append(LEVERS, line + "\n")

    def _try(self, lever: str, act: Callable[..., Any], *args: Any) -> Any:
        try:
            result = act(*args)
            self._acted.add(lever)
            if self.agent.begun:
                self._note(lever)
            return result
        except Refused as error:
            if lever in self._acted:
                self.agent.guard.problem(f"lever {lever}", error, lever)
            else:
                self.leave_out(lever, str(error))
            return None
        except NothingToDo as error:
            self._found_nothing(lever, str(error))
            return None
        except _LEVER_ERRORS as error:
            self.agent.guard.problem(f"lever {lever}", error, lever)
            return None

    def loader(self, loader: Any, training: bool) -> None:
        if training:
            loader._hotlap_trains = True  # what was changed once has to be looked after each time
        trains = getattr(loader, "_hotlap_trains", False)
        for lever, change, inference in self._loaders:
            if (trains or inference) and self._is_in(lever):
                self._try(lever, change, loader)

    def root(self, module: Any, forward: Forward) -> Forward:
        if self.agent.session.turns:
            self._roots_seen = [*(one for one in self._roots_seen if one() is not None), weakref.ref(module)]
        self._change(self._roots, module)
        return self.wrapped(module, forward)

    def wrapped(self, module: Any, forward: Forward) -> Forward:
        """A module's own forward with the levers around it that are in now."""
        key = tuple(lever for _, lever, _ in self._forwards if self._is_in(lever))
        known = self._wrapped.setdefault(module, {}) if self.agent.session.turns else {}
        if key not in known:
            for _, lever, wrap in self._forwards:
                if self._is_in(lever):
                    forward = self._try(lever, wrap, module, forward) or forward
            if not key or not self.agent.session.turns:
                return forward
            known[key] = forward
        return known[key]

    def optimizer(self, optimizer: Any) -> None:
        if self.agent.session.turns:
            seen = [one for one in self._optimizers_seen if one() is not None]
            self._optimizers_seen = [*seen, weakref.ref(optimizer)]
        self._change(self._optimizers, optimizer)

    def put_in(self, levers: dict[str, dict[str, Any]]) -> None:
        """Between two steps: have just these levers in. settings by name, which can't be others than before."""
        for name in [name for name in self._installed if name not in levers and name not in self._off]:
            self._off.add(name)
            self._switch(name, on=False)
        for name, settings in levers.items():
            if name not in self._installed:
                self.install_by_name(name, settings)
                self._apply(name)
            elif self._installed[name] != settings:
                self.agent.guard.problem(f"lever {name}", Refused("it is in with other settings"), name)
            elif name in self._off:
                self._off.discard(name)
                self._switch(name, on=True)
        self.rewrap()

    def _switch(self, name: str, on: bool) -> None:
        """Put a lever that is installed in again, or take it out."""
        if on:
            for put_in in [one for lever, one, _ in self._switches if lever == name]:
                self._try(name, put_in)
            self._apply(name)
            return
        for changes, seen in ((self._optimizers, self._optimizers_seen), (self._roots, self._roots_seen)):
            for undo in [one.undo for one in changes if one.lever == name and one.undo is not None]:
                for what in _alive(seen):
                    self._take_back(name, undo, what)
        for take_out in [one for lever, _, one in reversed(self._switches) if lever == name]:
            self._take_back(name, take_out)

    def _take_back(self, name: str, undo: Callable[..., None], *what: Any) -> None:
        try:
            undo(*what)
        except _LEVER_ERRORS as error:
            self.agent.guard.problem(f"lever {name}", error, name)

    def _apply(self, name: str) -> None:
        """A lever's changes of what is known already."""
        for changes, seen in ((self._roots, self._roots_seen), (self._optimizers, self._optimizers_seen)):
            for what in _alive(seen):
                self._change([one for one in changes if one.lever == name], what)

    def _is_in(self, lever: str) -> bool:
        return lever not in self._out and lever not in self._off

    def _change(self, requests: "list[Change]", what: Any) -> None:
        for lever, change, undo in requests:
            if self._is_in(lever):
                self._try(lever, _whole_or_not, change, undo, what)

    def install_by_name(self, name: str, settings: dict[str, Any]) -> None:
        """Levers are found by name; none is imported unless it is used."""
        try:
            known = importlib.import_module("hotlap.levers").modules()
            install = importlib.import_module(known.get(name, f"hotlap.levers.{name}")).LEVER.install
        except (ImportError, AttributeError) as error:
            self.agent.guard.problem(f"lever {name}", error, name)
            return
        self.install(name, install, settings)

    def install(self, name: str, install: Callable[["Seams", dict[str, Any]], None], settings: dict[str, Any]) -> None:
        """Run a lever's in-process half."""
        self.lever = name
        self._installed[name] = settings
        before = self._registered()
        self._try(name, install, self, settings)
        if self._registered() == before:
            self._whole.append(name)
        else:
            self._acted.discard(name)  # so far it only asked

    def _registered(self) -> int:
        registered = (self._loaders, self._roots, self._forwards, self._optimizers)
        return sum(len(requests) for requests in registered)

    def begin_anew(self) -> None:
        """In a child process: what is noted of levers is the parent's."""
        self._in_use.clear()

    def begun(self) -> None:
        """The loop begins: levers that ask for no seam have been in since the start, and others, such as those that
        change loaders, may have changed something before."""
        for lever in [*self._whole, *sorted(self._acted - {*self._whole} - self._out)]:
            self._note(lever)
        for lever, why in self._idle.items():
            self._note_idle(lever, why)


_LEVER_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError, KeyError, ImportError, OSError)


def _whole_or_not(change: Callable[[Any], None], undo: Callable[[Any], None] | None, what: Any) -> None:
    """What a change that fails half-way has done is taken back."""
    try:
        change(what)
    except _LEVER_ERRORS:
        if undo is not None:
            undo(what)
        raise


def _alive(references: "list[weakref.ref[Any]]") -> list[Any]:
    return [what for reference in references if (what := reference()) is not None]
