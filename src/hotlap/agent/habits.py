"""What scripts do that costs each step, and that can be asked of torch: switches for debugging, modes, hooks, idle
rows, padding."""

import functools
import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from .guard import hook
from .probe import mapped
from .torch_internals import forward_hooks, function_mode_stack, mode_stack, profiler_on

ROWS = 16_384
"""Of a matrix, from which its gradient is looked at for rows that are zero."""
LOOKED_AT = 2048
"""Rows of it that are, evenly over all."""
LEAST_PLACES, MOST_NUMBERS = 8, 1 << 22
"""Of a row of a batch, from which one may be padded; numbers of a batch up to which it is looked at."""
IDS = 16
"""Between the smallest and the largest of them, from which whole numbers are taken for ids, not for flags."""
FORWARDS = 4
"""Of a module, of which the ids are looked at for padding."""
MEASURED_DIMS = 3
"""Of what was measured, such as images and sounds; a mask has fewer, or is of booleans."""
LONGEST_WINDOW = 25
"""Steps in a row, from which on a profiler that is on in all is not taken for one with a schedule."""
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
        self.forwards = 0
        """With gradients, that were looked at."""
        self._modes: Counter[tuple[str, str]] = Counter()
        """Of these, those around which a mode was on, by what it sees and its class."""
        self._forwards: dict[int, int] = {}
        """Looked at, by module."""
        self._profiled = (0, 0)
        """The first and the last of the steps in a row in which a profiler was on."""
        self._looking = True

    def give_up(self) -> None:
        """After an error."""
        self._looking = False

    def handed(self, module: Any, leaves: Sequence[Any], facts: dict[str, Any]) -> None:
        """What a forward is handed. facts: of the module."""
        if not self._looking:
            return
        seen = self._forwards[id(module)] = self._forwards.get(id(module), 0) + 1
        if seen <= FORWARDS and any(isinstance(one, torch.nn.Embedding) for one in module.modules()):
            share, of_all = padding(leaves)
            facts["padding"] += (share - facts["padding"]) / seen
            facts["padding_of_all"] += (of_all - facts["padding_of_all"]) / seen

    def within(self) -> None:
        """Which modes are on around a forward."""
        for sees, stack in (("dispatch", mode_stack()), ("function", function_mode_stack())) if self._looking else ():
            kinds = {type(mode) for mode in stack if not NOT_TOLD.match(type(mode).__module__)}
            self._modes.update((sees, kind.__name__.lstrip("_")) for kind in kinds)

    def modes(self, sees: str) -> list[str]:
        """Classes of those that were on around most forwards. sees: what they are told of."""
        least = self.forwards / 2 if self.forwards >= WITHIN else math.inf
        return sorted(name for (of, name), times in self._modes.items() if of == sees and times >= least)

    def step_done(self, index: int) -> None:
        """Whether a profiler is on, step for step; one with a schedule goes off in between."""
        begun, last = self._profiled
        on = profiler_on()
        self._profiled = (begun if index == last + 1 else index, index) if on else (0, 0)
        if on and index - self._profiled[0] >= LONGEST_WINDOW:
            self.switches.add("profiler")


def switches() -> list[str]:
    """Switches for debugging that are on now."""
    found = {
        "detect_anomaly": torch.is_anomaly_enabled(),
        "fill_uninitialized_memory": torch.are_deterministic_algorithms_enabled()
        and torch.utils.deterministic.fill_uninitialized_memory,
        "CUDA_LAUNCH_BLOCKING": os.environ.get("CUDA_LAUNCH_BLOCKING") == "1",
        "PYTORCH_NO_CUDA_MEMORY_CACHING": torch.cuda.is_initialized()
        and os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1",
        "set_sync_debug_mode": torch.cuda.is_initialized() and torch.cuda.get_sync_debug_mode() != 0,
    }
    return [name for name, on in found.items() if on]


def _may_wait() -> bool:
    """Whether the host may wait for the device here: not while a graph is recorded, nor where the script forbids it."""
    return torch.cuda.get_sync_debug_mode() == 0 and not torch.cuda.is_current_stream_capturing()


def hooks_of(module: Any) -> int:
    """Hooks on the forwards of a module and all that it holds."""
    return sum(map(len, itertools.chain.from_iterable(map(forward_hooks, module.modules()))))


def most_alike(module: Any) -> tuple[int, CodeType | None]:
    """How many hooks on one of these forwards, that with most, run the same code, and that code."""
    most = max(itertools.chain.from_iterable(map(forward_hooks, module.modules())), key=len)
    counted = Counter(filter(None, map(_code_of, list(most.values()))))
    return next(((times, code) for code, times in counted.most_common(1)), (0, None))


def _code_of(hook: Any) -> CodeType | None:
    """What a hook runs, as far as it is Python's."""
    while isinstance(hook, (functools.partial, MethodType)):
        hook = hook.func if isinstance(hook, functools.partial) else hook.__func__
    run = hook if isinstance(hook, FunctionType) else type(hook).__call__
    return run.__code__ if isinstance(run, FunctionType) else None


def idle_rows(parameters: Iterable[Any]) -> tuple[float, tuple[int, ...]]:
    """Of all elements, the share in rows of large matrices whose dense gradient is zero, and the largest such matrix's
    shape. Looks at LOOKED_AT rows of each or some more, and waits for the device."""
    whole, idle, largest = 0, 0.0, ()
    for parameter in parameters:
        whole += parameter.numel()
        gradient = parameter.grad
        if type(gradient) is not torch.Tensor or gradient.layout != torch.strided or gradient.dim() != 2:
            continue  # one that is shared out between ranks would be asked of them
        if len(gradient) < ROWS or (gradient.is_cuda and not _may_wait()):
            continue
        some = gradient.detach()[:: len(gradient) // LOOKED_AT]
        share = float((some == 0).all(1).double().mean())
        if share == 1.0 and not gradient.detach().any():
            whole -= parameter.numel()  # as beside weights that begin at zero: it says nothing of rows
            continue
        idle += share * parameter.numel()
        largest = max(largest, tuple(gradient.shape))
    return (idle / whole, largest) if largest else (0.0, ())


def padding(handed: Iterable[Any]) -> tuple[float, float]:
    """Of the largest matrix of token ids among a forward's inputs, (rows, places), the share of places at one end of a
    row that only fill it up, and of those that do in all rows; 0 where real numbers of three dimensions or more are
    among them, as images beside their captions: how much is computed of which is not known. Waits for the device."""
    plain = [leaf for leaf in handed if is_plain(leaf)]
    if any(leaf.is_floating_point() and leaf.dim() >= MEASURED_DIMS for leaf in plain):
        return 0.0, 0.0
    found = [leaf for leaf in plain if leaf.dtype in (torch.int64, torch.int32)]
    found = [leaf for leaf in found if leaf.dim() == 2 and leaf.size(1) >= LEAST_PLACES and leaf.numel() > 0]
    found = [leaf for leaf in found if leaf.numel() <= MOST_NUMBERS and (not leaf.is_cuda or _may_wait())]
    found = [leaf.detach().cpu() for leaf in found]
    ids = max(
        (leaf for leaf in found if int(leaf.max()) - int(leaf.min()) >= IDS),
        key=lambda leaf: leaf.numel(),
        default=None,
    )
    if ids is None:
        return 0.0, 0.0
    found_at = [(0.0, 0.0)]
    for at, flipped in ((0, ()), (-1, (1,))):
        fill = int(ids[:, at].mode().values)
        run = (ids == fill).flip(flipped).to(torch.int32).cumprod(1).sum(1)
        run = torch.where(run > 1, run, 0)  # one alone may be what it is by chance
        if fill >= 0:  # -100 in labels masks what is no padding, as prompts
            found_at.append((float(run.double().mean()) / ids.size(1), int(run.min()) / ids.size(1)))
    return max(found_at)


def is_plain(tensor: Any) -> bool:
    """Whether it may be looked at: no subclass, which may compute then, nor one of several inside of `torch.vmap`."""
    kinds = (torch.Tensor, torch.nn.Parameter)
    return type(tensor) in kinds and not tensor.is_nested and tensor.layout == torch.strided and not mapped(tensor)
