"""An error by which a process ends for lack of memory, as the interpreter keeps it once it has printed it.

Nothing is caught: what is told here was read after the traceback was shown, while its frames still hold their tensors.
"""

import errno
import re
import sys
from types import FrameType
from typing import Any, Final, NamedTuple

import torch

from .torch_internals import CALL_CODE, ENGINE_CODE, STEP_CODE

try:
    import resource
except ImportError:  # no Unix
    resource = None  # type: ignore[assignment]

MOST_CAUSES: Final = 8
"""Errors behind an error that are looked at."""
MOST_CALLS: Final = 1000
DEVICE: Final = ("CUDA out of memory", "CUDA error: out of memory")
HOST: Final = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")
SIZE: Final = re.compile(r"(?:ried|nable) to allocate ([\d.]{1,20}) ?(bytes|[KMGT]iB)", re.ASCII)
"""Of torch and of numpy."""
UNITS: Final = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
LOADER: Final = torch.utils.data.dataloader.__file__


class Ended(NamedTuple):
    """cuda: the device's memory ran out. asked_bytes: None where the error does not say. calls: frames with their
    lines, the innermost first."""

    cuda: bool
    asked_bytes: int | None
    calls: list[tuple[FrameType, int]]


def ended() -> Ended | None:
    """The lack of memory by which this process ends, or another error that came of it; None where it does not."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None) or sys.exc_info()[1]
    for _ in range(MOST_CAUSES):
        if error is None:
            return None
        if (cuda := _lacks(error)) is not None:
            return Ended(cuda, _size(error), _calls(error))
        error = error.__cause__ or error.__context__
    return None


def _lacks(error: BaseException) -> bool | None:
    """Whether it is the device's memory that an error lacks; None where none is lacking."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return False
    said = _said(error) if isinstance(error, RuntimeError) else ""
    if any(words in said for words in DEVICE):
        return True
    return False if any(words in said for words in HOST) else None


def _said(error: BaseException) -> str:
    """Its message, without asking a class of the script's."""
    kind = type(error)
    ours = kind.__module__.partition(".")[0] in {"builtins", "numpy", "torch"}
    return str(error) if ours else " ".join(one for one in error.args if type(one) is str)


def _size(error: BaseException) -> int | None:
    found = SIZE.search(_said(error))
    try:
        return None if found is None else int(float(found[1]) * UNITS[found[2]])
    except ValueError:
        return None


def _calls(error: BaseException) -> list[tuple[FrameType, int]]:
    found: list[tuple[FrameType, int]] = []
    trace = error.__traceback__
    while trace is not None and len(found) < MOST_CALLS:
        found.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return found[::-1]


def phase_of(calls: list[tuple[FrameType, int]], otherwise: str) -> str:
    """The phase in which an error was raised, by what of torch's was being called."""
    codes = {frame.f_code for frame, _ in calls}
    for code, phase in ((ENGINE_CODE, "backward"), (CALL_CODE, "forward"), (STEP_CODE, "optimizer")):
        if code in codes:
            return phase
    return "data" if any(code.co_filename == LOADER for code in codes) else otherwise


def limit() -> int | None:
    """The limit on the memory of this process alone (`ulimit -v`), bytes; None where it has none."""
    kinds = (resource.RLIMIT_AS, resource.RLIMIT_DATA) if resource is not None else ()
    found = [resource.getrlimit(kind)[0] for kind in kinds]
    return min((one for one in found if one != resource.RLIM_INFINITY and one >= 0), default=None)


def host_document(owners: list[Any], told: dict[str, Any]) -> dict[str, Any]:
    """Of `records.memory.MemoryWindow`: what objects of the script's hold in host memory. told: how it ran out."""
    blocks = {address: size for address, size, *_ in owners}
    return {
        "when": "oom",
        "device": "cpu",
        "source": "operations",
        "first_step": told["step"],
        "steps": 1,
        "owners": owners,
        "blocks": {"addresses": list(blocks), "bytes": list(blocks.values()), "stacks": [-1] * len(blocks)},
        "allocated_bytes": sum(blocks.values()),
        "ran_out": told,
    }
