"""Records of a profiled run: `rank-K/profile.json` and `rank-K/lines.json`. The trace itself is torch's."""

import msgspec

from .run import Count, Ms

CalledOp = tuple[str, Count, Count, str]
"""Name of an op or message of a sync, index into `files`, line, function."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What torch.profiler recorded. file: the trace's name, None where there is none (note says why).

    first_step: the number of the first recorded step, as in steps.jsonl and in its annotation `ProfilerStep#N`.
    steps: that were recorded whole; wanted: that were asked for. device: the device's work is in it. memory, stacks:
    so are allocations, Python stacks. snapshot: of the device's memory, for memory_viz, by its name.
    """

    file: str | None = None
    first_step: Count | None = None
    steps: Count = 0
    wanted: Count = 0
    device: bool = False
    memory: bool = False
    stacks: bool = False
    snapshot: str | None = None
    note: str = ""


class Lines(msgspec.Struct, frozen=True, kw_only=True):
    """The user's lines behind one step, run without the profiler before the recorded ones.

    ops: as they were called, in order, by the thread that trains, each with the user's innermost frame; ops that the
    backward itself calls have none and are left out. steps: 1, or 0 where ops were not seen (`skipped` says why).
    places: where each phase was begun from, the first time in the step: index into files, line, function. calls: of
    torch.cuda.synchronize, empty_cache and others that wait for the device and are no ops. syncs: where the host waited
    for the device, in another step (CUDA). left_out: ops beyond the most that are kept.
    """

    steps: Count = 0
    ops: tuple[CalledOp, ...] = ()
    files: tuple[str, ...] = ()
    places: dict[str, tuple[Count, Count, str]] = {}
    calls: tuple[CalledOp, ...] = ()
    syncs: tuple[CalledOp, ...] = ()
    left_out: Count = 0
    skipped: str = ""


SampledLine = tuple[str, int, Count, str, str, Ms]
"""Phase; index into `files` (-1: no line of the user's), line, function; the function that it was in, where that is not
the user's; ms over all steps."""


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """Host time of the training thread by the user's innermost line, over some steps without the profiler.

    looks: how often the thread was looked at; each counts for the time since the one before. left_out_ms: at places
    beyond the most that are kept; own_ms: in hotlap's own code.
    """

    steps: Count = 0
    looks: Count = 0
    files: tuple[str, ...] = ()
    lines: tuple[SampledLine, ...] = ()
    left_out_ms: Ms = 0.0
    own_ms: Ms = 0.0
