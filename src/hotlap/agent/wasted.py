"""Backwards that go on into a model whose gradients of it are thrown away: as into a generator, where a discriminator
learns of samples that were not detached.

Told of the first backwards that are looked at where there are several optimizers: which of them have parameters that
it reaches, and in which order; which then step; and whose gradients are gone before the next one. What is reached
after all that steps is reached for nothing; what is reached before may have to be passed through.
"""

import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Final

from .torch_internals import version_of
from .updates import parameters_of

MOST: Final = 24
FIRST: Final = 4
"""Backwards that are looked at, and those of them whose time does not count."""
Place = tuple[str, int, str]
Mark = tuple[int, int] | None


class Wasted:
    """optimizers: those of the loop. caller: the user's line that led here. on: whether backwards are looked at."""

    def __init__(self, optimizers: Collection[Any], caller: Callable[[], Place | None]) -> None:
        self._optimizers, self._caller = optimizers, caller
        self.on = True
        self._looked_at = 0
        self._handles: list[Any] = []
        self._refs: dict[int, list[weakref.ref[Any]]] = {}
        """Of each optimizer's parameters, by its id, the first and the last one."""
        self._reached: dict[int, int] = {}
        """When the backward came last to them, ns, in that order."""
        self._left: dict[int, list[Mark]] = {}
        self._stepped: set[int] = set()
        self._after = -1
        self._begun_ns = self._ended_ns = self._took_ns = 0
        self._place: Place | None = None
        self.found: list[tuple[Place, int]] = []
        """Where such a backward begins, and ns that it went on; 0 of the first few, in which torch may still begin."""

    def begin(self, backwards: int) -> None:
        """A backward begins. backwards: how many there were."""
        if backwards == self._after:
            self._judge()
        self._reached = {}
        self.on = self._looked_at < MOST
        if not self.on or len(self._optimizers) < 2:
            return
        every = {id(one): list(parameters_of([one])) for one in self._optimizers}
        ends = {key: (tensors[0], tensors[-1]) for key, tensors in every.items() if tensors}
        if len(ends) < 2:
            return
        self._looked_at += 1
        self._refs = {key: list(map(weakref.ref, parameters)) for key, parameters in ends.items()}
        for key, parameters in ends.items():
            for one in parameters:
                if one.requires_grad and one.is_leaf:
                    self._handles.append(one.register_post_accumulate_grad_hook(self._came(key)))
        self._begun_ns = time.perf_counter_ns()

    def _came(self, key: int) -> Callable[[Any], None]:
        def came(_: Any) -> None:
            self._reached.pop(key, None)
            self._reached[key] = time.perf_counter_ns()

        return came

    def end(self, backwards: int) -> None:
        """It ended, or failed. backwards: how many there are with it."""
        for handle in self._handles:
            handle.remove()
        if self._handles:
            self._ended_ns, self._after, self._place = time.perf_counter_ns(), backwards, self._caller()
            self._took_ns += self._ended_ns - self._begun_ns if self._looked_at > FIRST else 0
            self._left = {key: list(map(_mark, tensors)) for key, tensors in self._refs.items()}
            self._stepped = set()
        self._handles = []

    def stepped(self, optimizer: int) -> None:
        """An optimizer has stepped."""
        self._stepped.add(optimizer)

    def _judge(self) -> None:
        """The last backward, at the begin of the next one."""
        order = list(self._reached)
        needed = max((order.index(key) for key in self._stepped if key in self._reached), default=len(order))
        if any(map(self._gone, order[needed + 1 :])) and self._place is not None:
            went_on = self._ended_ns - self._reached[order[needed]]
            self.found.append((self._place, went_on if self._looked_at > FIRST else 0))
        self._after = -1

    def _gone(self, key: int) -> bool:
        """Whether an optimizer's gradients are not what the last backward left."""
        marks = zip(map(_mark, self._refs[key]), self._left[key], strict=True)
        return all(now is None or now != left for now, left in marks)

    def give_up(self) -> None:
        """After an error, and where no hook may be on a parameter."""
        self.on = False
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def facts(self) -> dict[str, Any] | None:
        """Where most of them begin, their share of those that were looked at, and the part of the time of all that they
        went on."""
        if not self.found:
            return None
        (place, times), *_ = Counter(place for place, _ in self.found).most_common(1)
        went_on = sum(ns for at, ns in self.found if at == place)
        return {"place": place, "share": times / self._looked_at, "part": went_on / max(1, self._took_ns)}


def _mark(parameter: "weakref.ref[Any]") -> Mark:
    """Which gradient a parameter has, and how often it was written to."""
    gradient = getattr(parameter(), "grad", None)
    return None if gradient is None else (id(gradient), version_of(gradient))
