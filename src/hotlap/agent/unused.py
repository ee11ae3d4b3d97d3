"""Forwards with gradients whose graph no backward goes through: of a model that acts, or of results that nobody uses.

A hook stands on the nodes that made an output, and on one of the first behind them, as what is in between may be used
alone. It is called where a backward comes there, and gone with the graph. A graph that lives on may still be used.
"""

import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from .lines import Places
from .probe import leaves
from .torch_internals import compiled_frames, function_modes, is_plain, nothing_around

FIRST, STEPS = 3, 100
"""Steps at the beginning whose times do not count; those that are looked at."""
SHARE: Final = 100
"""Of the time, one such part goes into looks."""
ALL, EVERY = 4, 8
"""Calls of a line in a step that are all looked at, and which of later ones is, for those before it too."""
OUTPUTS, DEPTH, PENDING, PLACES = 16, 512, 4096, 32
"""Tensors of an output, nodes that are gone back over, calls that are remembered, and places of calls."""
Key = tuple[str, tuple[str, int, str] | None]
"""Class of a model, and the line that calls it."""


class Call:
    """Of a model. stands_for: so many. hook: what its graph holds, which is gone with it."""

    __slots__ = ("hook", "key", "rows", "stands_for", "took_ns", "walked")

    def __init__(self, key: "Key", stands_for: int, rows: int, took_ns: int, nodes: Iterable[Any]) -> None:
        self.key, self.stands_for, self.rows, self.took_ns = key, stands_for, rows, took_ns
        self.walked = False

        def walked(_: Any) -> None:
            self.walked = True

        for node in nodes:
            node.register_prehook(walked)
        self.hook = weakref.ref(walked)


class Unused:
    """now: a clock, ns. quiet: whether the times of the step that is going on may be told. begun: when the call did, 0
    of none that is looked at."""

    def __init__(self, now: Callable[[], int], quiet: Callable[[], bool]) -> None:
        self._now, self._quiet = now, quiet
        self._places = Places()
        self._step: list[Call] = []
        self._called: Counter[Key] = Counter()
        """In this step."""
        self._pending: deque[Call] = deque(maxlen=PENDING)
        self._rows: dict[Key, Counter[str]] = {}
        self._since = now()
        self._spent_ns = self.begun = self.steps = 0
        self.looking = False

    def begin(self) -> None:
        """A model is called with gradients, by a script that trains."""
        self.begun = self._now()

    def end(self, module: Any, rows: int | None, output: Any) -> None:
        """It returned."""
        begun, self.begun, now = self.begun, 0, self._now()
        key = type(module).__qualname__, self._places.caller()
        self._called[key] += 1
        later = self._called[key] - ALL
        if later <= 0 or later % EVERY == 0:
            plain = nothing_around() and not (function_modes() or compiled_frames())
            if plain and (found := _nodes(output)):
                self._step.append(Call(key, 1 if later <= 0 else EVERY, rows or 0, now - begun, found))
        self._spent_ns += self._now() - now

    def step_done(self, index: int) -> None:
        """A step that was looked at is over."""
        if self.looking and self._quiet():
            self.steps += 1
            self._pending.extend(self._step)
        self._step = []
        self._called.clear()
        if index >= FIRST and (self.steps < STEPS or self._pending):
            now = self._now()
            if affordable := self._spent_ns * SHARE <= now - self._since:
                self._settle()
                self._spent_ns += self._now() - now
            self.looking = affordable and self.steps < STEPS

    def _settle(self) -> None:
        """Count those calls of which is known what became of them."""
        for _ in range(len(self._pending)):
            call = self._pending.popleft()
            unused = not call.walked and call.hook() is None
            if not call.walked and not unused:
                self._pending.append(call)
                continue
            if call.key in self._rows or len(self._rows) < PLACES:
                row, times = self._rows.setdefault(call.key, Counter()), call.stands_for
                now = {"calls": times, "rows": times * call.rows, "took_ms": times * call.took_ns / 1e6}
                row.update(now)
                if unused:
                    row.update({f"unused_{name}": value for name, value in now.items()})

    def give_up(self) -> None:
        """After an error."""
        self.looking, self.steps, self.begun = False, STEPS, 0
        self._rows.clear()
        self._pending.clear()

    def facts(self) -> list[dict[str, Any]]:
        """Of each model and line."""
        self._settle()
        known = self._rows.items()
        return [{"name": name, "place": place, "steps": self.steps, **row} for (name, place), row in known]


def _nodes(output: Any) -> list[Any]:
    """Of the graph behind an output; [] where that may not be all of them."""
    tensors = list(leaves(output, most=OUTPUTS + 1))
    if len(tensors) > OUTPUTS or not all(map(is_plain, tensors)):
        return []
    found = [one.grad_fn for one in tensors if one.grad_fn is not None]
    if found:
        node = found[0]
        for _ in range(DEPTH):
            behind = (one for one, _ in node.next_functions if one is not None and one.next_functions)
            if (before := next(behind, None)) is None:
                break
            node = before
        found.append(node)
    return found
