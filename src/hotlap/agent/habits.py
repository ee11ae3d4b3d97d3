"""What scripts have on that costs each step, and that can be asked of torch: switches for debugging, and modes."""

import math
import os
import re
from collections import Counter

import torch

from .guard import hook
from .torch_internals import function_mode_stack, mode_stack, profiler_on

LONGEST_WINDOW = 25
LEAST_LOOKS = 8
"""Steps, and looks at them, from which on a profiler that is on at all of these is taken for one without a schedule."""
WITHIN = 20
"""Forwards that have to have been looked at, and of which a mode has to be on around half, to be told."""
NOT_TOLD = re.compile(
    r"hotlap\.|builtins$|torch\.(?!utils\.(flop_counter|_debug_mode)|distributed\.(_tools|tensor\.debug)|testing\.)"
)
"""Modules of modes that do what a script needs: a default device, compilers, checkpoints; and ours."""
HABITS = hook("habits")


class Habits:
    """What was seen of them. What can't be looked at ends the looks at tensors alone (`give_up`)."""

    def __init__(self) -> None:
        self.switches: set[str] = set()
        self.anomalies = 0
        """Backwards that were looked at, with anomaly detection on."""
        self.forwards = 0
        """With gradients, that were looked at."""
        self._modes: Counter[tuple[str, str]] = Counter()
        """Of these, those around which a mode was on, by what it sees and its class."""
        self._profiled = (0, 0)
        """Of looks in a row at which a profiler was on: the step of the first, and how many they are. Not all of many
        short steps are looked at, nor those of hotlap's own windows."""
        self.looking = True

    def give_up(self) -> None:
        """After an error."""
        self.looking = False

    def within(self) -> None:
        """Which modes are on around a forward."""
        for sees, stack in (("dispatch", mode_stack()), ("function", function_mode_stack())) if self.looking else ():
            kinds = {type(mode) for mode in stack if not NOT_TOLD.match(type(mode).__module__)}
            self._modes.update((sees, kind.__name__.lstrip("_")) for kind in kinds)

    def modes(self, sees: str) -> list[str]:
        """Classes of those that were on around most forwards. sees: what they are told of."""
        least = self.forwards / 2 if self.forwards >= WITHIN else math.inf
        return sorted(name for (of, name), times in self._modes.items() if of == sees and times >= least)

    def told(self, backwards: int) -> list[str]:
        """Switches, of them anomaly detection where it was on in half of so many backwards: some begin with it."""
        return sorted(self.switches | ({"detect_anomaly"} if 2 * self.anomalies >= max(1, backwards) else set()))

    def step_done(self, index: int) -> None:
        """Whether a profiler is on, step for step; one with a schedule goes off in between."""
        begun, looks = self._profiled
        self._profiled = (begun if looks else index, looks + 1) if profiler_on() else (0, 0)
        begun, looks = self._profiled
        if looks >= LEAST_LOOKS and index - begun >= LONGEST_WINDOW:
            self.switches.add("profiler")


def switches() -> list[str]:
    """Switches for debugging that are on now, and cuDNN where it is off."""
    found = {
        "fill_uninitialized_memory": torch.are_deterministic_algorithms_enabled()
        and torch.utils.deterministic.fill_uninitialized_memory,
        "CUDA_LAUNCH_BLOCKING": torch.cuda.is_initialized() and os.environ.get("CUDA_LAUNCH_BLOCKING") == "1",
        "PYTORCH_NO_CUDA_MEMORY_CACHING": torch.cuda.is_initialized()
        and os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1",
        "set_sync_debug_mode": torch.cuda.is_initialized() and torch.cuda.get_sync_debug_mode() != 0,
        "cudnn.enabled": torch.cuda.is_initialized() and not torch.backends.cudnn.enabled,
    }
    return [name for name, on in found.items() if on]
