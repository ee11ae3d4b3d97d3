"""The user's lines of a profiled run, laid on its trace.

`lines.json` lists the ops of one step as the user's lines called them, seen below autograd without the profiler. The
same ops come in the same order in each recorded step, among others that are called inside them or by the backward. So
the two sequences are walked together: a recorded op that is the next in the list, or one soon after it, is that call,
and what is inside it is passed over. Where a phase begins both are there again, whatever came before: one step may
take over more batches from workers than another. Ops that enclose it (`aten::linear` around `aten::addmm`) get the line
of the first call inside. Calls that wait for the device and are no ops (`torch.cuda.synchronize`) are matched by what
they call in the runtime, and waits inside of ops that the list lacks by the order of the sync debug mode's warnings.
"""

from difflib import SequenceMatcher
from itertools import islice
from typing import Final

import polars as pl

from hotlap.records.diagnosis import Place
from hotlap.records.profile import CalledOp, Lines, place_in

from .analyses.grouping import Host, host_of
from .steps import find_windows
from .tables import Trace
from .view import View

LABEL: Final = "hotlap:"
SOON: Final = 8
"""Ops of the list that may be missing in the trace before the two are out of step."""
WAITS: Final = (
    ("torch.cuda.synchronize", "cudaDeviceSynchronize"),
    ("torch.cuda.empty_cache", "cudaFree"),
    ("torch.cuda.Stream.synchronize", "cudaStreamSynchronize"),
    ("torch.cuda.Event.synchronize", "cudaEventSynchronize"),
)
"""Calls of lines.json that are no ops, and what the runtime is called for in them."""
SYNC: Final = "cudaStreamSynchronize"
PHASES: Final = (
    ("data", r"^enumerate\(DataLoader\)|^hotlap:data$"),
    ("h2d", r"^hotlap:h2d$"),
    ("forward", r"^hotlap:forward$"),
    ("backward", r"^hotlap:backward$"),
    ("optimizer", r"^Optimizer\.(step|zero_grad)#|^hotlap:optimizer$"),
)


def places_of(trace: Trace, lines: Lines) -> dict[int, Place]:
    """Rows of `host` to places: the ops of the training thread in each step, and the annotations of phases."""
    found = _phases(trace, lines)
    view = View(trace, find_windows(trace)[1])
    host, (pid, tid) = host_of(view), view.main_thread
    rows = trace.host.with_row_index("row").filter((pl.col("pid") == pid) & (pl.col("tid") == tid))
    for start, end in view.window.steps or ((view.window.start_ns, view.window.end_ns),):
        step = rows.filter((pl.col("start") >= start) & (pl.col("start") < end))
        ops = step.filter((pl.col("cat") == "op") | pl.col("name").str.starts_with(LABEL))
        found.update(_walk(ops["row"].to_list(), ops["name"].to_list(), view, lines))
        found.update(_waits(step, host, lines))
        _syncs(step, host, lines, found)
    return found


def _syncs(step: pl.DataFrame, host: Host, lines: Lines, found: dict[int, Place]) -> None:
    """Waits inside ops that the list has not, as `print(tensor)` makes them: the warnings of CUDA's sync debug mode
    came in their order. Only where there are as many."""
    rows = [row for row in step.filter(pl.col("name") == SYNC)["row"].to_list() if _ops(row, host)]
    if len(rows) != len(lines.syncs):
        return
    for row, sync in zip(rows, lines.syncs, strict=True):
        place = _place(lines, *sync[1:])
        if place is not None and not any(one in found for one in _ops(row, host)):
            _give(int(host.parent[row]), place, found, host)


def _waits(step: pl.DataFrame, host: Host, lines: Lines) -> dict[int, Place]:
    """Runtime calls outside of ops, to the calls of the user's that make them: one by one where there are as many, and
    all to one where only one line makes them."""
    found: dict[int, Place] = {}
    for name, runtime in WAITS:
        places = [_place(lines, *call[1:]) for call in lines.calls if call[0] == name]
        rows = [row for row in step.filter(pl.col("name") == runtime)["row"].to_list() if not _ops(row, host)]
        if len(places) != len(rows) and len(set(map(str, places))) == 1:
            places = places[:1] * len(rows)
        if len(places) == len(rows):
            found.update({row: place for row, place in zip(rows, places, strict=True) if place is not None})
    return found


def _ops(row: int, host: Host) -> list[int]:
    """The ops among the row and those that enclose it, innermost first."""
    found = []
    while row >= 0:
        found += [row] if host.op[row] else []
        row = int(host.parent[row])
    return found


def _phases(trace: Trace, lines: Lines) -> dict[int, Place]:
    found: dict[int, Place] = {}
    notes = trace.host.with_row_index("row").filter(pl.col("cat") == "annotation")
    for phase, pattern in PHASES:
        at = lines.places.get(phase)
        place = _place(lines, *at) if at is not None else None
        if place is not None:
            found.update(dict.fromkeys(notes.filter(pl.col("name").str.contains(pattern))["row"].to_list(), place))
    return found


def _place(lines: Lines, file: int, line: int, function: str) -> Place | None:
    return place_in(lines.files, (file, line, function)) if file < len(lines.files) else None


def _walk(rows: list[int], names: list[str], view: View, lines: Lines) -> dict[int, Place]:
    found: dict[int, Place] = {}
    host, ends = host_of(view), view.host("start") + view.host("dur")
    called: list[CalledOp] = list(lines.ops)
    at, over, late = 0, -1, max(0, len(called) - SOON)
    end = lines.begins[0][1] if lines.begins else len(called)
    starts = view.host("start")
    phases = _aligned(names, lines)
    for index, (row, name) in enumerate(zip(rows, names, strict=True)):
        if name.startswith(LABEL):
            at, end = phases.get(index, (at, end))
            continue
        if ends[row] <= over:
            continue  # inside an op that was matched, or inside the backward
        if name.startswith("autograd::engine::evaluate_function"):
            over = int(ends[row])
            continue
        ahead = _next(called, name, at, min(at + SOON, end))
        if ahead is not None and ahead > at:  # of two of one name the one with what comes next behind it
            soon = {one[0] for one in called[at : min(at + 2 * SOON, end)]}
            behind = (names[k] for k in range(index + 1, len(rows)) if starts[rows[k]] >= ends[row])
            following = next((one for one in islice(behind, SOON) if one in soon), None)
            while ahead is not None and following is not None and ahead + 1 < len(called):
                if _next(called, following, ahead + 1, ahead + 1 + SOON) is not None:
                    break
                ahead = _next(called, name, ahead + 1, min(at + SOON, end))
        if ahead is not None:
            at = ahead + 1
        elif at == 0 and (ahead := _next(called, name, late, len(called))) is not None:
            late = ahead + 1  # the recorded step begins a little before the listed one, with what that ends with
        if ahead is None:
            continue
        place, over = _place(lines, *called[ahead][1:]), int(ends[row])
        if place is not None:
            _give(row, place, found, host)
    return found


def _aligned(names: list[str], lines: Lines) -> dict[int, tuple[int, int]]:
    """Of labels of phases among the names, where in the list they begin, and where the next one does: of those that
    come in the same order in both."""
    seen = [index for index, name in enumerate(names) if name.startswith(LABEL)]
    listed = [f"{LABEL}{name}" for name, _ in lines.begins]
    begins = [*(at for _, at in lines.begins), len(lines.ops)]
    same = SequenceMatcher(None, [names[index] for index in seen], listed, autojunk=False).get_matching_blocks()
    return {
        seen[mine + k]: (begins[theirs + k], begins[theirs + k + 1]) for mine, theirs, size in same for k in range(size)
    }


def _next(called: list[CalledOp], name: str, first: int, end: int) -> int | None:
    return next((k for k in range(first, min(end, len(called))) if called[k][0] == name), None)


def _give(row: int, place: Place, found: dict[int, Place], host: Host) -> None:
    """To the row, and to ops around it that have none yet."""
    while row >= 0 and host.op[row] and row not in found:
        found[row] = place
        row = int(host.parent[row])
