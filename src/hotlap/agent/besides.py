"""Forwards without gradients beside the training: of a target network, a teacher, or an evaluation in each step."""

import weakref
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import torch

from .lines import Places

FIRST, PLACED, SOME, MOST = 3, 64, 17, 16
"""Steps at the beginning whose times do not count; calls of a model whose line is asked for, and one in so many after
them; models."""


class Besides:
    """now: a clock, ns. quiet: whether the times of the step that is going on may be told."""

    def __init__(self, now: Callable[[], int], quiet: Callable[[], bool]) -> None:
        self._now, self._quiet = now, quiet
        self._places = Places()
        self._models: dict[int, tuple[weakref.ref[Any], dict[str, Any], frozenset[int]]] = {}
        """By id: the model, which may be gone at the end, what is told of it, and ids of its parameters."""
        self._lines: dict[int, Counter[Any]] = {}
        """By id of a model: ns in calls, by their lines."""
        self._step: dict[int, tuple[int, int]] = {}
        """Of the step that is going on: calls, and ns in them, by model."""
        self._begun = self.steps = 0
        """When the call did; steps that count."""

    def begin(self, key: int, module: Any) -> None:
        """A model is called without gradients, by a script that trains."""
        known = self._models.get(key)
        if known is not None and known[0]() is not module:  # that one is gone, and this lies at its address
            del self._models[key], self._lines[key]
            self._step.pop(key, None)
        if key not in self._models and len(self._models) < MOST:
            row = {"name": type(module).__qualname__, "calls": 0, "steps": 0, "took_ms": 0.0}
            self._models[key] = weakref.ref(module), row, frozenset(map(id, module.parameters()))
            self._lines[key] = Counter()
        self._begun = self._now()

    def end(self, key: int) -> None:
        """It returned."""
        if key in self._models and self._begun:
            calls, took = self._step.get(key, (0, 0))
            lasted = self._now() - self._begun
            self._step[key] = calls + 1, took + lasted
            self._begun, row = 0, self._models[key][1]
            if (seen := row["calls"] + calls) < PLACED or seen % SOME == 0:
                self._lines[key][self._places.caller()] += lasted
                row["inference_mode"] = torch.is_inference_mode_enabled()

    def step_done(self, index: int) -> None:
        """A step that was looked at is over."""
        step, self._step = self._step, {}
        if index > FIRST and self._quiet():
            self.steps += 1
            for key, (calls, took) in step.items():
                row = self._models[key][1]
                for name, more in (("calls", calls), ("steps", 1), ("took_ms", took / 1e6)):
                    row[name] += more

    def facts(self, optimized: Collection[int]) -> list[dict[str, Any]]:
        """Of each model. optimized: ids of what optimizers hold."""
        return [
            {**row, **_dearest(self._lines[key]), "of": self.steps, "trained": not parameters.isdisjoint(optimized)}
            for key, (_, row, parameters) in self._models.items()
            if row["steps"]
        ]


def _dearest(took: Counter[Any]) -> dict[str, Any]:
    """The line with most of the time, how much of it, and how many lines there are."""
    place = max(took, key=lambda one: took[one], default=None)
    return {"place": place, "part": took[place] / (took.total() or 1), "lines": len(took)}
