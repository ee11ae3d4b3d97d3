"""Takes hotlap's hooks out of a running loop and puts them back, for benchmarks/overhead_script.py --toggle.

In place of each patched function stands one that calls hotlap's or the one that hotlap found there: so what is
compared is the loop with the hooks and the loop without them, in one process, a few steps apart. Where hotlap looks at
a sample of the steps, those that it looks at (`full`) and those that it only times (`unsampled`) are told apart.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer as optim
from torch.utils.data import dataloader

BLOCK = 8
"""Steps with the hooks, then as many without; the first of each pays for the change and is left out."""
PATCHED = (
    (dataloader._BaseDataLoaderIter, "__next__"),
    (dataloader.DataLoader, "_get_iterator"),
    (torch.autograd, "_engine_run_backward"),
    (torch.Tensor, "to"),
    (torch.Tensor, "cuda"),
)
FORWARD = "_compiled_call_impl"
CLOCKS = ("cpu", "wall")


class Switch:
    """The hooks on or off. `step()` after each step of the loop counts it and turns them when a block is over."""

    def __init__(self, *models: torch.nn.Module) -> None:
        self.models = models
        self.on = True
        self.observers: list[Any] = []
        self.agent = sys._hotlap_agent  # type: ignore[attr-defined]
        self.steps: list[tuple[str, int, int]] = []
        self.writing_ns = 0
        self._time_writing()
        for owner, name in PATCHED:
            hook = getattr(owner, name)
            if hasattr(hook, "__wrapped__"):
                setattr(owner, name, self._either(hook, hook.__wrapped__))
        for hooks in (optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks):
            for key in list(hooks):
                hooks[key] = self._either(hooks[key], lambda *args: None)
        self._read()

    def _time_writing(self) -> None:
        """Take the time of what comes once in many steps apart: medians do not hold it."""
        self.agent._look = self._timed(self.agent._look)
        self.agent.step_sampling.turn = self._timed(self.agent.step_sampling.turn)

    def _timed(self, act: Callable[..., None]) -> Callable[..., None]:
        def timed(*args: Any) -> None:
            begun = time.thread_time_ns()
            act(*args)
            spent = time.thread_time_ns() - begun
            self.writing_ns += spent
            self.cpu += spent
            self.wall += spent

        return timed

    def _either(self, hook: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        def switched(*args: Any, **kwargs: Any) -> Any:
            return (hook if self.on else original)(*args, **kwargs)

        return switched

    def _read(self) -> None:
        self.kind = "bare" if not self.on else "unsampled" if self.agent.steps.unsampled else "full"
        self.wall, self.cpu = time.perf_counter_ns(), time.thread_time_ns()

    def step(self) -> None:
        """A step ended."""
        cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
        self.steps.append((self.kind, cpu - self.cpu, wall - self.wall))
        if len(self.steps) % BLOCK == 0:
            self.on = not self.on
            if self.on:
                for model, observer in zip(self.models, self.observers, strict=True):
                    if observer is not None:
                        model.__dict__[FORWARD] = observer
            else:  # in steps that are not looked at they have none
                self.observers = [model.__dict__.pop(FORWARD, None) for model in self.models]
        self._read()

    def added_us(self) -> dict[str, dict[str, list[float]]]:
        """Microseconds that hotlap adds to a step of each kind (`unsampled`, `full`): the step less the median of the
        steps without hooks in the two blocks beside its own. Without `writing`: what it writes, a step of any kind,
        mean.

        cpu: of the processor time of the loop's thread. wall: of the clock.
        """
        blocks = [self.steps[at + 1 : at + BLOCK] for at in range(0, len(self.steps) - BLOCK + 1, BLOCK)]
        found: dict[str, dict[str, list[float]]] = {}
        for at, clock in enumerate(CLOCKS, 1):
            for before, block, after in zip(blocks[1::2], blocks[2::2], blocks[3::2], strict=False):
                bare = statistics.median(step[at] for step in [*before, *after])
                for step in block:
                    found.setdefault(step[0], {}).setdefault(clock, []).append((step[at] - bare) / 1000)
        hooked = sum(kind != "bare" for kind, *_ in self.steps)
        found["writing"] = {"cpu": [self.writing_ns / 1000 / max(1, hooked)]}
        return found


def summary(added: list[float]) -> dict[str, float | list[float]]:
    """Median with its 95% interval (of order statistics, so without a guess at the shape), and quartiles."""
    values = sorted(added)
    n = len(values)
    off = 0.98 * n**0.5
    low, high = max(0, int(n / 2 - off)), min(n - 1, int(n / 2 + off))
    return {
        "median": statistics.median(values),
        "interval": [values[low], values[high]],
        "quartiles": [values[n // 4], values[3 * n // 4]],
        "steps": n,
    }


def whole(found: dict[str, dict[str, list[float]]]) -> dict[str, float]:
    """Microseconds a step in all: the medians of the kinds, each as often as it came, and the writing."""
    kinds = [kind for kind in ("unsampled", "full") if kind in found]
    total = {}
    for clock in CLOCKS:
        counted = sum(len(found[kind][clock]) for kind in kinds)
        medians = sum(statistics.median(found[kind][clock]) * len(found[kind][clock]) for kind in kinds)
        total[clock] = medians / max(1, counted) + found["writing"]["cpu"][0]
    return total
