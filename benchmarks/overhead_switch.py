"""Takes hotlap's hooks out of a running loop and puts them back, for benchmarks/overhead_script.py --toggle.

In place of each patched function stands one that calls hotlap's or the one that hotlap found there: so what is
compared is the loop with the hooks and the loop without them, in one process, a few steps apart.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer as optim
from torch.utils.data import dataloader

BLOCK = 4
"""Steps with the hooks, then as many without; the first of each pays for the change and is left out."""
PATCHED = (
    (dataloader._BaseDataLoaderIter, "__next__"),
    (dataloader.DataLoader, "_get_iterator"),
    (torch.autograd, "_engine_run_backward"),
    (torch.Tensor, "to"),
    (torch.Tensor, "cuda"),
)
FORWARD = "_compiled_call_impl"


class Switch:
    """The hooks on or off. `step()` after each step of the loop counts it and turns them when a block is over."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.on = True
        self.observer = model.__dict__[FORWARD]
        self.steps: list[tuple[bool, int, int]] = []
        for owner, name in PATCHED:
            hook = getattr(owner, name)
            if hasattr(hook, "__wrapped__"):
                setattr(owner, name, self._either(hook, hook.__wrapped__))
        for hooks in (optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks):
            for key in list(hooks):
                hooks[key] = self._either(hooks[key], lambda *args: None)
        self._read()

    def _either(self, hook: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        def switched(*args: Any, **kwargs: Any) -> Any:
            return (hook if self.on else original)(*args, **kwargs)

        return switched

    def _read(self) -> None:
        self.wall, self.cpu = time.perf_counter_ns(), time.thread_time_ns()

    def step(self) -> None:
        """A step ended."""
        cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
        self.steps.append((self.on, cpu - self.cpu, wall - self.wall))
        if len(self.steps) % BLOCK == 0:
            self.on = not self.on
            self.model.__dict__[FORWARD] = self.observer
            if not self.on:
                del self.model.__dict__[FORWARD]
        self._read()

    def added_us(self) -> dict[str, list[float]]:
        """Microseconds a step that hotlap adds: each block with it less the mean of the two blocks without beside it.

        cpu: of the processor time of the loop's thread. wall: of the clock.
        """
        blocks = [self.steps[at + 1 : at + BLOCK] for at in range(0, len(self.steps) - BLOCK + 1, BLOCK)]
        found: dict[str, list[float]] = {}
        for at, name in ((1, "cpu"), (2, "wall")):
            means = [(block[0][0], statistics.fmean(step[at] for step in block) / 1000) for block in blocks]
            triples = zip(means, means[1:], means[2:], strict=False)
            found[name] = [with_it - (a + b) / 2 for (_, a), (on, with_it), (_, b) in triples if on]
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
        "blocks": n,
    }
