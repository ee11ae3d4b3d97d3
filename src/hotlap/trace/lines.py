"""The user's lines of a profiled run, laid on its trace.

`lines.json` lists the ops of one step as the user's lines called them, seen below autograd without the profiler. The
same ops come in the same order in each recorded step, among others that are called inside them or by the backward. So
the two sequences are walked together: a recorded op that is the next in the list, or one soon after it, is that call,
and what is inside it is passed over. Where a phase begins both are there again, whatever came before: one step may
take over more batches from workers than another. Within a phase a loop may have other turns, as over a sequence of
another length: where many ops in a row are not the next ones, the two are laid together again at the nearest calls
that come in the order in which the trace goes on. Ops that enclose it (`aten::linear` around `aten::addmm`) get the
line of the first call inside. Calls that wait for the device and are no ops (`torch.cuda.synchronize`) are matched by
what they call in the runtime, and waits inside of ops that the list lacks by the order of the sync debug mode's
warnings.
"""

from collections import defaultdict
from collections.abc import Sequence
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
LOST: Final = 12
"""Ops that are listed and are not the next ones, beyond those that are, from which the two are out of step."""
RUN, LOOKAHEAD = 12, 512
"""Calls that have to come one after another in both where they are laid together again, and rows of the trace that are
looked through for them."""
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
    at, over, late, begin, lost = 0, -1, max(0, len(called) - SOON), 0, 0
    end = lines.begins[0][1] if lines.begins else len(called)
    row_starts, row_ends = view.host("start")[rows].tolist(), ends[rows].tolist()
    positions: defaultdict[str, list[int]] = defaultdict(list)
    for k, (name, *_) in enumerate(called):
        positions[name].append(k)
    phases = _aligned(names, lines)
    for index, (row, name) in enumerate(zip(rows, names, strict=True)):
        if name.startswith(LABEL):
            begin, end = phases.get(index, (begin, end))
            at, lost = (begin, 0) if index in phases else (at, lost)
            continue
        if ends[row] <= over:
            continue  # inside an op that was matched, or inside the backward
        if name.startswith("autograd::engine::evaluate_function"):
            over = int(ends[row])
            continue
        ahead = _next(called, name, at, min(at + SOON, end))
        if ahead is not None and ahead > at:
            behind = (names[k] for k in range(index + 1, len(rows)) if row_starts[k] >= row_ends[index])
            ahead = _with_what_follows(ahead, called, at, end, list(islice(behind, SOON)))
        lost = max(0, lost - 1) if ahead is not None else lost + (name in positions)
        if lost >= LOST:
            spans = list(zip(*(part[index : index + LOOKAHEAD] for part in (names, row_starts, row_ends)), strict=True))
            near = sorted((k for k in positions[name] if begin <= k < end), key=lambda k: abs(k - at))
            ahead, lost = next((k for k in near if _goes_on(called[k : min(k + RUN, end)], spans)), None), 0
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


def _with_what_follows(ahead: int, called: list[CalledOp], at: int, end: int, behind: list[str]) -> int | None:
    """Of several calls of one name the one with what comes next behind it. behind: names of what does in the trace."""
    soon, name = {one[0] for one in called[at : min(at + 2 * SOON, end)]}, called[ahead][0]
    following = next((one for one in behind if one in soon), None)
    found: int | None = ahead
    while found is not None and following is not None and found + 1 < len(called):
        if _next(called, following, found + 1, found + 1 + SOON) is not None:
            break
        found = _next(called, name, found + 1, min(at + SOON, end))
    return found


def _goes_on(calls: Sequence[CalledOp], spans: Sequence[tuple[str, int, int]]) -> bool:
    """Whether the trace goes on with all of these calls. spans: name, start and end of its rows, in order of start."""
    at, over = 0, -1
    for name, *_ in calls:
        behind = (k for k in range(at, len(spans)) if spans[k][1] >= over)
        found = next((k for k in islice(behind, SOON) if spans[k][0] == name), None)
        if found is None:
            return False
        at, over = found + 1, spans[found][2]
    return len(calls) == RUN


def _next(called: list[CalledOp], name: str, first: int, end: int) -> int | None:
    return next((k for k in range(first, min(end, len(called))) if called[k][0] == name), None)


def _give(row: int, place: Place, found: dict[int, Place], host: Host) -> None:
    """To the row, and to ops around it that have none yet."""
    while row >= 0 and host.op[row] and row not in found:
        found[row] = place
        row = int(host.parent[row])
