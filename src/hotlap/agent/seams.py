"""The seams that the agent offers to the in-process half of a lever.

A lever's `install(seams, settings)` runs at the end of `import torch` and registers what it wants done where. An error
in any of it, of whatever kind, is recorded with the lever's name; what the lever has changed so far of the loader,
module or optimizer, or of the process while it was installed, is taken back; and the script runs on without it.

Levers that are `switchable` are put in and taken out between two steps of a live process (`Seams.put_in`): they say how
each change is undone, and forwards are wrapped anew.
"""

import contextlib
import importlib
import json
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .interface import Agent

LEVERS = "levers.jsonl"
Forward = Callable[..., Any]
WrapForward = Callable[[Any, Forward], Forward]
Change = tuple[Callable[[Any], None], Callable[[Any], None] | None]
"""Of a module or an optimizer, and what takes it back."""


class Refused(Exception):
    """Raised by a lever in process when it finds that it must not be put in, before it has changed anything."""


class NothingToDo(Exception):
    """Raised by a lever that has nothing to change in the loader, module or optimizer that it was given; another may
    have it."""


@dataclass
class Use:
    """A lever in this process, and what it asked for.

    acted: it has changed something. noted: that it took hold is written. idle: why it found nothing to do at first.
    left: it left itself out. off: it is switched off.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    loaders: list[tuple[Callable[[Any], None], bool]] = field(default_factory=list)
    roots: list[Change] = field(default_factory=list)
    optimizers: list[Change] = field(default_factory=list)
    forwards: list[tuple[int, WrapForward]] = field(default_factory=list)
    switches: list[tuple[Callable[[], None], Callable[[], None]]] = field(default_factory=list)
    acted: bool = False
    noted: bool = False
    idle: str = ""
    left: bool = False
    off: bool = False

    @property
    def is_in(self) -> bool:
        """Whether it changes anything now."""
        return not (self.left or self.off)

    @property
    def whole(self) -> bool:
        """Whether it asked for no seam, and is in since it was installed."""
        return not (self.loaders or self.roots or self.optimizers or self.forwards)


class Seams:
    """Registers what levers want done, and does it at the right moment."""

    def __init__(self, agent: "Agent") -> None:
        self.agent = agent
        self.uses: dict[str, Use] = {}
        self._roots_seen: list[weakref.ref[Any]] = []
        self._optimizers_seen: list[weakref.ref[Any]] = []
        self._wrapped: weakref.WeakKeyDictionary[Any, dict[tuple[str, ...], Forward]] = weakref.WeakKeyDictionary()
        """Forwards by module and by the levers around them: what was compiled of one is found again."""
        self.rewrap: Callable[[], None] = lambda: None
        """Of the hooks: wrap all known forwards anew."""

    # what a lever may ask for, while it is installed

    @property
    def _use(self) -> Use:
        """The lever that is being installed."""
        return next(reversed(self.uses.values()))

    def on_loader(self, change: Callable[[Any], None], inference: bool = False) -> None:
        """`change(loader)` whenever the script is about to iterate a DataLoader that it has iterated with gradients
        enabled. inference: or any other, since the command only infers, as was seen without the lever."""
        self._use.loaders.append((change, inference))

    def switch(self, on: Callable[[], None], off: Callable[[], None]) -> None:
        """`on()` now and whenever the lever is put in again, `off()` whenever it is taken out."""
        self._use.switches.append((on, off))
        on()

    def on_root(self, change: Callable[[Any], None], undo: Callable[[Any], None] | None = None) -> None:
        """`change(module)` once for each outermost module, before its first training forward. undo: takes it back,
        which a lever that is switchable has to say."""
        self._use.roots.append((change, undo))

    def wrap_forward(self, wrap: WrapForward, order: int) -> None:
        """`wrap(module, forward) -> forward` around an outermost module; lower orders lie further in."""
        self._use.forwards.append((order, wrap))

    def on_optimizer(self, change: Callable[[Any], None], undo: Callable[[Any], None] | None = None) -> None:
        """`change(optimizer)` once for each optimizer, before its first step. undo: as in `on_root`."""
        self._use.optimizers.append((change, undo))

    def guarded(self, lever: str, undo: Callable[[], None]) -> Callable[..., Any]:
        """`call(act, *args)`, for what a lever does inside of the script's own calls. Returns what `act` does; after an
        error, which is recorded, None: `undo` was called, and the script's own way is to be taken."""
        return partial(self.agent.guard.spare, f"lever {lever}", undo, lever=lever)

    def optimizers(self) -> list[Any]:
        """Those that have made a step."""
        return _alive(self._optimizers_seen)

    def refuse(self, lever: str, why: str) -> None:
        """Say that a lever that was put in turned out not to belong here; what it still does is the lever's affair."""
        self._problem(lever, Refused(why))

    def leave_out(self, lever: str, why: str) -> None:
        """The same of a lever that does nothing from here on, and without which all that was computed so far would be
        what it is: the run is one of the other levers. Times of the steps so far are not theirs."""
        self.uses.setdefault(lever, Use(lever)).left = True
        agent = self.agent
        self._write(lever, left_out=why, step=agent.recorder.index)  # before the problem is seen
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
        """Whether a lever is to be told of loaders."""
        return any(use.loaders for use in self.uses.values())

    def loader(self, loader: Any, training: bool) -> None:
        """The script is about to iterate a DataLoader. training: with gradients enabled."""
        if training:
            loader._hotlap_trains = True  # what was changed once has to be looked after each time
        trains = getattr(loader, "_hotlap_trains", False)
        for use in list(self.uses.values()):
            for change, inference in use.loaders:
                if (trains or inference) and use.is_in:
                    self._try(use, change, loader, undo=_as_it_is(loader, use.name))

    def root(self, module: Any, forward: Forward) -> Forward:
        """An outermost module is about to run its first forward; returns that, with the levers' own around it."""
        self._see(self._roots_seen, module)
        failed = {use.name for use in list(self.uses.values()) if not self._change(use, use.roots, module)}
        return self.wrapped(module, forward, failed)

    def optimizer(self, optimizer: Any) -> None:
        """An optimizer is about to make its first step."""
        self._see(self._optimizers_seen, optimizer)
        for use in list(self.uses.values()):
            self._change(use, use.optimizers, optimizer)

    def _see(self, seen: "list[weakref.ref[Any]]", what: Any) -> None:
        if self.agent.session.turns:
            seen[:] = [*(one for one in seen if one() is not None), weakref.ref(what)]

    def wrapped(self, module: Any, forward: Forward, failed: Collection[str] = ()) -> Forward:
        """A module's own forward with the levers around it that are in now. failed: those that could not change it."""
        inside = [use for use in self.uses.values() if use.is_in and use.name not in failed]
        wraps = [(order, use, wrap) for use in inside for order, wrap in use.forwards]
        wraps.sort(key=lambda item: item[0])
        key = tuple(use.name for _, use, _ in wraps)
        known = self._wrapped.setdefault(module, {}) if self.agent.session.turns else {}
        if key not in known:
            for _, use, wrap in wraps:
                if use.is_in:
                    undo = partial(self._undo, use, use.roots, module)
                    forward = self._try(use, wrap, module, forward, undo=undo) or forward
            if not key:
                return forward
            known[key] = forward
        return known[key]

    def put_in(self, levers: dict[str, dict[str, Any]]) -> None:
        """Between two steps: have just these levers in. settings by name, which can't be others than before."""
        for use in list(self.uses.values()):
            if use.name not in levers and not use.off:
                use.off = True
                self._take_out(use)
        for name, settings in levers.items():
            known = self.uses.get(name)
            if known is None:
                self.install_by_name(name, settings)
            elif known.settings != settings:
                self.refuse(name, "it is in with other settings")
            elif known.off:
                known.off = False
                for put_in, _ in known.switches:
                    self._try(known, put_in)
                self._apply(known)
        self.rewrap()

    def _take_out(self, use: Use) -> None:
        for changes, seen in ((use.optimizers, self._optimizers_seen), (use.roots, self._roots_seen)):
            for what in _alive(seen):
                self._undo(use, changes, what)
        for _, take_out in reversed(use.switches):
            self._take_back(use, take_out)

    def _undo(self, use: Use, changes: list[Change], what: Any) -> None:
        for undo in [undo for _, undo in changes if undo is not None]:
            self._take_back(use, undo, what)

    def _take_back(self, use: Use, undo: Callable[..., None], *what: Any) -> None:
        self.agent.guard.spare(f"lever {use.name}", lambda: None, undo, *what, lever=use.name)

    def _apply(self, use: Use) -> None:
        """A lever's changes of what is known already."""
        for changes, seen in ((use.roots, self._roots_seen), (use.optimizers, self._optimizers_seen)):
            for what in _alive(seen):
                self._change(use, changes, what)

    def _change(self, use: Use, changes: list[Change], what: Any) -> bool:
        """Whether a lever's changes are made, and not taken back after an error."""
        failed: list[Any] = []

        def undo() -> None:
            failed.append(what)
            self._undo(use, changes, what)

        for change, _ in changes:
            if use.is_in and not failed:
                self._try(use, change, what, undo=undo)
        return not failed

    def install_by_name(self, name: str, settings: dict[str, Any]) -> None:
        """Levers are found by name; none is imported unless it is used. What is known already is changed at once."""
        try:
            known = importlib.import_module("hotlap.levers").modules()
            install = importlib.import_module(known.get(name, f"hotlap.levers.{name}")).LEVER.install
        except (ImportError, AttributeError) as error:
            self._problem(name, error)
            return
        self.install(name, install, settings)

    def install(self, name: str, install: Callable[["Seams", dict[str, Any]], None], settings: dict[str, Any]) -> None:
        """Run a lever's in-process half."""
        use = self.uses[name] = Use(name, settings)
        self._try(use, install, self, settings, undo=partial(self._leave, use))
        if not use.whole:
            use.acted = False  # so far it only asked
        self._apply(use)

    def _leave(self, use: Use) -> None:
        """A lever that could not be installed: nothing of it stays."""
        use.left = True
        self._take_out(use)

    def begin_anew(self) -> None:
        """In a child process: what is noted of levers is the parent's."""
        for use in self.uses.values():
            use.noted = False

    def begun(self) -> None:
        """The loop begins: levers that ask for no seam have been in since the start, and others, such as those that
        change loaders, may have changed something before."""
        for use in self.uses.values():
            if (use.whole or use.acted) and not use.left:
                self._note(use)
            if use.idle:
                self._write(use.name, nothing=use.idle)

    def _try(self, use: Use, act: Callable[..., Any], *args: Any, undo: Callable[[], None] = lambda: None) -> Any:
        """What a lever's function returns; None where it fails, refuses or has nothing to do, which is written down.
        undo: takes back what one that fails half-way has done."""
        return self.agent.guard.spare(f"lever {use.name}", undo, self._act, use, act, args, lever=use.name)

    def _act(self, use: Use, act: Callable[..., Any], args: Any) -> Any:
        try:
            result = act(*args)
        except Refused as error:
            if use.acted:
                self._problem(use.name, error)
            else:
                self.leave_out(use.name, str(error))
        except NothingToDo as error:
            if not use.acted and not use.idle:
                use.idle = str(error)
                if self.agent.begun:
                    self._write(use.name, nothing=use.idle)
        else:
            use.acted = True
            if self.agent.begun:
                self._note(use)
            return result
        return None

    def _problem(self, lever: str, error: Exception) -> None:
        self.agent.guard.problem(f"lever {lever}", error, lever)

    def _note(self, use: Use) -> None:
        """A lever took hold: said once, in a file that shows which levers of a recipe never do."""
        if not use.noted:
            use.noted = True
            self._write(use.name)

    def _write(self, lever: str, **what: Any) -> None:
        with contextlib.suppress(OSError):  # the disk may be full
            self.agent.append(LEVERS, json.dumps({"lever": lever, **what}, ensure_ascii=False) + "\n")


def _as_it_is(loader: Any, lever: str) -> Callable[[], None]:
    """What has a loader again as it is now, if a lever has not changed it before: later it is what the lever left."""
    known = vars(loader).setdefault("_hotlap_levers", set())
    if lever in known:
        return lambda: None
    before = dict(vars(loader))
    known.add(lever)

    def undo() -> None:
        known.discard(lever)
        vars(loader).clear()
        vars(loader).update(before)

    return undo


def _alive(references: "list[weakref.ref[Any]]") -> list[Any]:
    return [what for reference in references if (what := reference()) is not None]
