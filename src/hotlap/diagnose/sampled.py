"""Findings with the lines at which the host's time goes, from the samples of a profiled run."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from hotlap.records.diagnosis import Diagnosis, Finding, Place, with_findings
from hotlap.records.durations import ms
from hotlap.records.profile import SampledLine, Samples, WorkerSamples, place_in
from hotlap.records.run import HostFacts, LoaderFacts

from . import small_ops
from .asleep import TITLES, CauseOf, with_sleeps
from .batches import MODEL, bound_of_batches
from .causes import CUT, LIST, VALIDATES, Cause
from .findings import steps_grow
from .findings.host_code import BESIDES, WITHOUT_A_PROFILE
from .findings.input import many_tensors, tensors_of
from .in_the_model import in_the_model, with_parametrizations
from .samples import (
    COLLECTIVES,
    LEAST_LOOKS,
    LEAST_SHARE,
    LEAST_SURE,
    MOSTLY_THERE,
    at_least,
    known_lines,
    known_paths,
    place_of,
    without_comprehension,
)
from .searches import search_at, with_searches
from .seldom_used import SeldomUsed, seldom_used
from .source import function_at, place_at
from .statements import cut_at, own_cause_at, trains

PHASE_OF: Final = {"input": "data", "host-code": "other"}
"""Findings about host time, and the phase that it is spent in."""
OF_LATE: Final = {"input": "input", "python": "host-code"}
"""Causes of a straggler's lateness, and the finding of one rank that they are."""
MOST_OF_IT: Final = 0.9
"""Of a phase, from which on a cause is all of it."""
TAKEN_OVER: Final = 0.6
HANDED_OVER: Final = 0.5
"""Of the wait for batches, in which their tensors are taken over from workers, and of what a worker runs, what it hands
them over: told from here. (A worker that computes under the interpreter's lock makes who asks it for tensors wait.)"""
LARGER: Final = "return fewer, larger tensors from `__getitem__`: columns of one"
STACKED: Final = (
    "stack them in `collate_fn`, so that a batch is a few tensors: `default_collate`, or `torch.stack`; for "
    "different shapes `torch.cat` with their lengths, or `pad_sequence`"
)
CALLS: Final = frozenset({"sync", "allocator"})
"""Findings of a trace about calls in which the host waits."""
ISSUES: Final = frozenset({"forward", "optimizer", "other"})
"""Phases in which the loop's thread issues work itself."""
TAKES: Final = re.compile(r"multiprocessing\.|queue\.|selectors\.|threading\.|torch\.")
"""Where a batch of a worker's is waited for and taken over."""
ITS_OWN: Final = "the sampler runs in the training process, before workers start each batch"
FOR_MANY: Final = "draw the indices of many batches at once"
KEPT: Final = 0.2
RUNS: Final = 0.25
"""Of the step, what the loop's thread is kept from running, and of the time, what another one runs: told from here."""
COMPUTING: Final = frozenset({"compute", "bandwidth"})


def with_samples(
    diagnosis: Diagnosis,
    samples: Samples,
    loop: Place | None = None,
    late: str | None = None,
    kept_ms: float = 0.0,
    worker: WorkerSamples | None = None,
    loader: LoaderFacts | None = None,
    called: Collection[Place] = (),
    host: HostFacts | None = None,
) -> Diagnosis:
    """The verdict with the line that most of a finding's host time is at, where there is one.

    loop: where the loop asks for batches. Time at that very line is a wait for workers, which says less than the place
    that makes the batches. late: what makes the straggler late, where the samples are of that rank (`Ranks.cause`).
    kept_ms: of a step, in which the loop's thread neither ran nor waited for a core or for a batch. loader: that feeds
    the loop; worker: of it, which knows more of what batches take than the thread that waits for them. called: lines
    that call the model. host: what the loop cost it.
    """
    whose, main = "of it", samples
    by_itself = worker is not None and _by_the_loop(samples, loop)
    if worker is not None and worker.looks >= LEAST_LOOKS and not by_itself:
        samples, whose = _of_worker(samples, worker), "of a worker's time"
    device = diagnosis.device != "cpu"
    before = diagnosis.findings
    if (used := seldom_used(samples)) is not None and samples.looks >= LEAST_LOOKS:
        samples = used.rest
        before = tuple(two for one in before for two in _of_seldom_used(one, used, diagnosis.step_ms))
    findings = tuple(
        _profiled(found, one, samples.looks)
        for one in map(_with_tensors, before, repeat(loader), repeat(by_itself))
        for found in (
            _of_tensors(one, main, worker, loader, diagnosis.step_ms)
            or _explained(one, samples, loop, late, device, diagnosis, whose if one.id == "input" else "of it", host)
        )
    )
    if diagnosis.ranks == 1:  # else it may be gradients that another rank sends
        findings = tuple(map(bound_of_batches(main, called), findings))
    if not device or diagnosis.bound not in COMPUTING:  # else the host's time is not the step's
        causes = tuple(in_the_model(findings, samples, device, diagnosis.ranks))
        findings = (*causes, *(_without(one, causes) for one in findings))
    findings = tuple(with_parametrizations(findings, samples))
    if not device:  # else the host waits for the device, too
        slept = sum(row[5] for row in samples.stood) / max(1, samples.steps) if _sleeps(findings) else 0.0
        findings = (*findings, *_beside(samples, kept_ms - slept, diagnosis.step_ms))
    findings = tuple(steps_grow.at_its_line(findings))
    return with_findings(diagnosis, (one for one in _joined(findings) if not _is_told(one, findings)))


def _of_worker(samples: Samples, worker: WorkerSamples) -> Samples:
    """With the lines of a worker in place of those at which the thread that trains waited for batches."""
    beyond = len(samples.files)
    lines = [(phase, file + beyond if file >= 0 else file, *rest) for phase, file, *rest in worker.lines]
    own = [row for row in samples.lines if row[0] != "data"]
    searched = (*samples.searched, *worker.searched)
    files, equal = (*samples.files, *worker.files), {**samples.equal_looks, "data": float(worker.looks)}
    return msgspec.structs.replace(samples, files=files, lines=(*own, *lines), searched=searched, equal_looks=equal)


def _by_the_loop(samples: Samples, loop: Place | None) -> bool:
    """Whether the thread that trains is mostly in code of the user's while it gets a batch from workers, as in a
    sampler of theirs, which runs there."""
    if loop is None:
        return False
    rows = [row for row in samples.lines if row[0] == "data"]
    own = [row for row in known_lines(rows, samples.files) if not TAKES.match(row[4])]
    own = [row for row in own if (samples.files[row[1]], row[2]) != (loop.file, loop.line)]
    return _part(own, rows) >= MOSTLY_THERE


def _with_tensors(finding: Finding, loader: LoaderFacts | None, by_itself: bool) -> Finding:
    """A trace's wait for batches with what the run knows of them. by_itself: the loop's own thread takes most of it."""
    if by_itself and finding.id == "input":
        return msgspec.structs.replace(finding, why=ITS_OWN, instead=FOR_MANY)
    said = tensors_of(loader) if loader is not None and finding.id == "input" else ""
    return finding if said in finding.evidence else msgspec.structs.replace(finding, evidence=finding.evidence + said)


def _of_tensors(
    finding: Finding, samples: Samples, worker: WorkerSamples | None, loader: LoaderFacts | None, step_ms: float
) -> tuple[Finding, ...]:
    """A wait for batches whose many tensors are what takes the time, not what is in them, and the rest of it."""
    waited = sum(row[5] for row in samples.lines if row[0] == "data")
    if finding.id != "input" or loader is None or worker is None or samples.looks < LEAST_LOOKS or not waited:
        return ()
    taken = min(1.0, samples.taking_over_ms / waited)
    handed = worker.handed_over_ms / max(1.0, worker.handed_over_ms + worker.ran_ms)
    if not many_tensors(loader) or taken < TAKEN_OVER or handed < HANDED_OVER:
        return ()
    file, line, function = loader.collate or (None, None, None)
    found = msgspec.structs.replace(
        finding,
        id="many-tensors",
        named=True,
        title=f"a batch is {loader.batch_tensors:,} tensors, sent one by one",
        where=finding.where if file is None else Place(file=file, line=line, function=function),
        evidence=f"{finding.evidence}; for {taken:.0%} of the wait goes to receiving them, and {handed:.0%} of a "
        "worker's running time to sending them",
        why="each tensor is sent through its own shared-memory file, and one thread of the training process maps "
        "them one by one; more workers do not help",
        instead=LARGER if loader.default_collate else STACKED,
        levers=(),
    )
    return _divided(finding, found, handed, step_ms)


def _of_seldom_used(finding: Finding, used: SeldomUsed, step_ms: float) -> tuple[Finding, ...]:
    """The loop's own code, as what it computes and seldom uses, and the rest."""
    if finding.id != "host-code":
        return (finding,)
    said = f"{finding.evidence}; {used.evidence}"
    found = msgspec.structs.replace(used.cause.named(finding), where=used.where, evidence=said)
    return _divided(finding, found, used.part, step_ms)


def _without(finding: Finding, causes: Sequence[Finding]) -> Finding:
    """What is left of waits for launches beside causes that are told of some."""
    took = sum(one.share for one in causes if one.bound == finding.bound)
    if finding.id != "launch" or not took:
        return finding
    left = max(0.0, finding.share - took)
    return msgspec.structs.replace(
        finding, share=left, evidence=f"{finding.evidence}, with the cause listed separately"
    )


def _sleeps(findings: Iterable[Finding]) -> bool:
    return any(one.title in TITLES for one in findings)


def _beside(samples: Samples, kept_ms: float, step_ms: float) -> Iterator[Finding]:
    """Another thread of Python that runs while the loop's is kept from running, by what else than a lack of cores."""
    file, line, function, used = max(samples.beside, key=lambda one: one[3], default=(-1, 0, "", 0.0))
    if kept_ms < KEPT * step_ms or used < RUNS or not 0 <= file < len(samples.files):
        return
    yield Finding(
        id="busy-thread",
        bound="unknown",
        share=min(1.0, kept_ms / step_ms),
        cost_ms=kept_ms,
        title="another thread of Python runs beside the loop",
        where=place_in(samples.files, (file, line, function)),
        evidence=f"it ran {used:.0%} of the time; for {ms(kept_ms)} of a step the loop's thread did not run, though it "
        "waited for neither a core nor a batch",
        why="Python runs one thread at a time: the loop waits for the interpreter's lock (GIL), each time up to 5 ms",
        instead="let it block instead of polling, in `queue.Queue(maxsize=n)` or a `threading.Event`; move what it "
        "computes to a process: DataLoader(num_workers=...)",
        named=True,
    )


def _joined(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Those of calls in which the host waits, the dearest at a line with Python's own time there, and its cause."""
    own: dict[Place | None, Finding] = {}
    waits: dict[Place | None, Finding] = {}
    for one in findings:
        if one.id == "host-code":
            own.setdefault(one.where, one)
        elif one.id in CALLS and (one.where not in waits or waits[one.where].share < one.share):
            waits[one.where] = one
    for one in findings:
        python, wait = own.get(one.where), waits.get(one.where)
        if one.where is None or python is None or wait is None or (one is not python and one is not wait):
            yield one
        elif one is wait:
            yield _with_python(wait, python)


def _with_python(wait: Finding, python: Finding) -> Finding:
    cost_ms = None if wait.cost_ms is None or python.cost_ms is None else wait.cost_ms + python.cost_ms
    evidence = f"{wait.evidence}; at this line also {python.evidence}"
    whole = msgspec.structs.replace(wait, share=wait.share + python.share, cost_ms=cost_ms, evidence=evidence)
    if not python.named:
        return whole
    instead = f"{python.instead}; {wait.instead}" if wait.id == "sync" else python.instead
    return msgspec.structs.replace(whole, named=True, title=python.title, why=python.why, instead=instead)


def _is_told(finding: Finding, findings: Iterable[Finding]) -> bool:
    """Whether it is code of the loop, or small operations, at a line that another finding has as its cause; or what
    only long steps do, at the line that they have."""
    long = next((one for one in findings if one.id == "long-steps" and one is not finding), None)
    if long is not None and finding.title and finding.title in long.title and finding.where in {None, long.where}:
        return True
    if finding.where is None or not (
        (finding.id == "host-code" and not finding.named) or finding.id in small_ops.KINDS
    ):
        return False
    at = finding.where.file, finding.where.line
    others = (one.where for one in findings if one.named and one is not finding and one.where is not None)
    return any((where.file, where.line) == at for where in others)


def _profiled(finding: Finding, before: Finding, looks: int) -> Finding:
    """What is said of a run without a profile is not said of one with it."""
    took = "1 stack sample of the profile names" if looks == 1 else f"{looks} stack samples of the profile name"
    says = "" if finding.evidence != before.evidence else f"; {took} no line"
    return msgspec.structs.replace(finding, why=finding.why.replace(f"; {WITHOUT_A_PROFILE}", says))


ByLine = dict[tuple[int, int, str], list[SampledLine]]


def _by_line(samples: Samples, rows: Iterable[SampledLine]) -> ByLine:
    found: ByLine = {}
    for row in known_lines(rows, samples.files):
        found.setdefault((row[1], row[2], row[3]), []).append(row)
    return found


def _dearest(samples: Samples, by_line: ByLine) -> tuple[tuple[int, int, str], list[SampledLine], float]:
    """The dearest line, or that of a function that takes longer in all and does not train; with its rows, and ms in
    that function."""
    took = {line: sum(row[5] for row in rows) for line, rows in by_line.items()}
    line = max(took, key=lambda one: took[one])
    of_function: defaultdict[tuple[int, str], float] = defaultdict(float)
    for (file, _, function), each in took.items():
        of_function[file, function] += each
    for of, whole in sorted(of_function.items(), key=lambda one: -one[1]):
        inside = max((one for one in took if (one[0], one[2]) == of), key=lambda one: took[one])
        if whole > took[line] and not trains(place_in(samples.files, inside)):
            return inside, by_line[inside], whole
    return line, by_line[line], 0.0


def _explained(
    finding: Finding,
    samples: Samples,
    loop: Place | None,
    late: str | None,
    device: bool,
    diagnosis: Diagnosis,
    whose: str,
    host: HostFacts | None,
) -> tuple[Finding, ...]:
    """The finding with its line; where that tells a cause, this with what it takes of it, and the rest."""
    if samples.looks < LEAST_LOOKS or (finding.id == "host-code" and finding.named):
        return (finding,)
    phase = PHASE_OF.get(OF_LATE.get(late or "", "") if finding.id == "straggler" else finding.id)
    if finding.id == "launch":
        return (_issued(finding, samples),)
    own = [row for row in samples.lines if row[0] == phase]
    if (line := _line(samples, own, whose)) is None:
        return (finding,)
    at_loop = loop is not None and (loop.file, loop.line) == (line.where.file, line.where.line)
    if phase == "data" and finding.where is not None and at_loop:
        return (finding,)
    cause_of = with_searches(partial(own_cause_at, device=device, ranks=diagnosis.ranks), samples.searched)
    if finding.id == "host-code":
        cause_of = with_sleeps(cause_of, samples, "other", device, host)
    line, cause, part = _caused(samples, own, line, whose, cause_of, finding.id in PHASE_OF)
    found = msgspec.structs.replace(finding, where=line.where, evidence=f"{finding.evidence}; {line.said}")
    checks = [row for row in known_lines(own, samples.files) if VALIDATES.is_inside(row[4])]
    if cause is None and (checked := _part(checks, own)) >= LEAST_SHARE:
        cause, part, said = VALIDATES.cause, checked, f"{finding.evidence}; {checked:.0%} of it in such checks"
        where, finding = place_of(samples, max(checks, key=lambda row: row[5])), found
        found = msgspec.structs.replace(finding, where=where, evidence=said)
    if cause is not None:
        others = list(_others(_same_call(samples, own, line.where), own, cause, cause_of, samples))
        found = _with_others(cause.named(found), others)
        part = min(1.0, part + sum(one.part for one in others))
    waits = _part([row for row in own if COLLECTIVES.search(row[4])], own)
    if finding.id == "host-code" and waits > 0.5:
        return (_communication(found, line.inside, waits, cause is not None),)
    if cause is None or finding.id not in PHASE_OF:  # a model's own lines say less than the one that calls it
        return (finding if finding.title.endswith(BESIDES) else found,)
    return _divided(finding, found, part, diagnosis.step_ms)


class Line(NamedTuple):
    """Where the host is, the function that it is in there, and how much of the time, for evidence."""

    where: Place
    inside: str
    said: str


def _line(samples: Samples, own: Sequence[SampledLine], whose: str) -> Line | None:
    """The dearest line, where that or its function has a notable part of the time."""
    by_line, total = _by_line(samples, own), sum(row[5] for row in own)
    if not by_line or not total:
        return None
    frame, rows, in_it = _dearest(samples, by_line)
    at_line = _part(rows, own)
    told = [
        one >= LEAST_SHARE and at_least(one, samples, {own[0][0]}) >= LEAST_SURE for one in (at_line, in_it / total)
    ]
    if not any(told):
        return None
    inside = max(rows, key=lambda row: row[5])[4]
    said = f"{at_line:.0%} {whose} at this line" + (f", in {inside}" if inside else "")
    if not told[0]:
        said = f"{in_it / total:.0%} {whose} in {frame[2]}, {at_line:.0%} at this line"
    return Line(place_in(samples.files, frame), inside, said)


def _caused(
    samples: Samples,
    own: Sequence[SampledLine],
    line: Line,
    whose: str,
    cause_of: CauseOf,
    dearest: bool,
) -> tuple[Line, Cause | None, float]:
    """A line with its cause and the part of the time that this takes in the line's function. dearest: the cause that
    takes most there, in its place."""
    where, function = line.where, without_comprehension(line.where.function or "")
    known = [
        (row, one)
        for row in known_lines(own, samples.files)
        if _function_of(samples, row) == (where.file, function)
        and (one := cause_of(place_of(samples, row), inside=row[4])) is not None
    ]
    took = {one.id: _part([row for row, other in known if other.id == one.id], own) for _, one in known}
    cause = cause_of(where, inside=line.inside)
    if cause is None:
        return line, None, 0.0
    if dearest and took.get(cause.id, 0.0) < max(took.values(), default=0.0):
        row, cause = max(known, key=lambda each: (took[each[1].id], each[0][5]))
        line = Line(place_of(samples, row), row[4], f"{took[cause.id]:.0%} {whose} at such lines of {function}")
    part = took.get(cause.id, 0.0)
    if cause.id == CUT.id and (cut := cut_at(line.where)) is not None:
        said = f"{part:.0%} {whose} from there to the next call, at line {line.where.line}"
        line = line._replace(where=cut[0], said=said)
    if cause.id == LIST.id and (search := search_at(line.where, samples.searched)) is not None:
        said = f"{part:.0%} {whose} from there to the next call; one in {search[3]:,} entries takes {search[4]:.3g} us"
        line = line._replace(where=place_at(*search[:2]), said=said)
    return line, cause, part


class Other(NamedTuple):
    """Another cause in what the same call makes, at its dearest line. part: of the time, what it takes."""

    where: Place
    cause: Cause
    part: float


def _same_call(samples: Samples, own: Sequence[SampledLine], where: Place) -> list[SampledLine]:
    """Rows of the outermost function on the way to a line in which no model runs; where the way is not known, of the
    line's own."""
    paths = known_paths(samples.paths, samples.files)
    trains_in = {one[::2] for row in paths if row[0] in MODEL for one in row[1]}
    ways = [row for row in paths if own and row[0] == own[0][0]]
    to_it = (path for _, path, *_ in ways if any(place_in(samples.files, one) == where for one in path))
    outer = {next((one[::2] for one in path if one[::2] not in trains_in), None) for path in to_it} - {None}
    if not outer:
        function = without_comprehension(where.function or "")
        known = known_lines(own, samples.files)
        return [row for row in known if _function_of(samples, row) == (where.file, function)]
    under_it = {(*path[-1], inside) for _, path, inside, _ in ways if outer & {one[::2] for one in path}}
    return [row for row in own if row[1:5] in under_it]


def _function_of(samples: Samples, row: SampledLine) -> tuple[str, str]:
    return samples.files[row[1]], without_comprehension(row[3])


def _others(
    rows: Iterable[SampledLine],
    own: Sequence[SampledLine],
    cause: Cause,
    cause_of: CauseOf,
    samples: Samples,
) -> Iterator[Other]:
    """Causes beside one that have a notable part of the time, dearest first."""
    known: defaultdict[str, list[tuple[SampledLine, Cause]]] = defaultdict(list)
    for row in rows:
        if (one := cause_of(place_of(samples, row), inside=row[4])) is not None and one.id != cause.id:
            known[one.id].append((row, one))
    for of_it in sorted(known.values(), key=lambda of_it: -sum(row[5] for row, _ in of_it)):
        row, one = max(of_it, key=lambda each: each[0][5])
        if (part := _part([row for row, _ in of_it], own)) >= LEAST_SHARE:
            yield Other(place_of(samples, row), one, part)


def _with_others(found: Finding, others: Iterable[Other]) -> Finding:
    """A finding with the lines and changes of other causes in what the same call makes."""
    for one in others:
        here = found.where is not None and one.where.file == found.where.file
        at = f"line {one.where.line}" + ("" if here else f" of {Path(one.where.file).name}")
        found = msgspec.structs.replace(
            found,
            title=f"{found.title}; {one.cause.title}",
            evidence=f"{found.evidence}; {one.part:.0%} at {at}",
            instead=f"{found.instead}; at {at}: {one.cause.instead}",
        )
    return found


def _part(rows: Iterable[SampledLine], own: Iterable[SampledLine]) -> float:
    """Of the time of all, that of some."""
    return sum(row[5] for row in rows) / max(1e-9, sum(row[5] for row in own))


def _issued(finding: Finding, samples: Samples) -> Finding:
    """Waits for launches, where the host issues most of them: as a trace has it (its findings know their cost), unless
    that is the loop itself, in which the engine issues the backward's. Outside of the model it helps to issue less."""
    own = [row for row in known_lines(samples.lines, samples.files) if row[0] in ISSUES]
    total, where = sum(row[5] for row in own), finding.where
    if own and total and (finding.cost_ms is None or where is None or (function_at(where) and trains(where))):
        frame, rows, in_it = _dearest(samples, _by_line(samples, own))
        share = max(sum(row[5] for row in rows), in_it) / total
        if share < LEAST_SHARE or at_least(share, samples, ISSUES) < LEAST_SURE:
            return finding
        inside = max(rows, key=lambda row: row[5])[4]
        said = f"in {frame[2]}" if in_it else "at this line" + (f", in {inside}" if inside else "")
        where = place_in(samples.files, frame)
        evidence = f"{finding.evidence}; {share:.0%} of the host's time outside of the backward is {said}"
        finding = msgspec.structs.replace(finding, where=where, evidence=evidence)
    if where is None or trains(where):
        return finding
    there = [row for row in own if (samples.files[row[1]], row[3]) == (where.file, where.function)]
    outside = 2 * sum(row[5] for row in there if row[0] == "other") > sum(row[5] for row in there)
    return msgspec.structs.replace(finding, instead=small_ops.INSTEAD) if outside else finding


def _divided(finding: Finding, found: Finding, part: float, step_ms: float) -> tuple[Finding, ...]:
    """A finding as its cause, which takes a part of it, and what is left."""
    whole = part >= MOST_OF_IT
    if found.id == "input" and whole:  # else what can be done about any of them stands with the rest
        found = msgspec.structs.replace(found, instead=f"{found.instead}; {finding.instead}")
    share = finding.share * (1.0 if whole else part)
    found = msgspec.structs.replace(found, share=share, cost_ms=share * step_ms)
    rest = finding.share - share
    left = msgspec.structs.replace(
        finding, share=rest, evidence=f"{ms(rest * step_ms)} a step beside the cause listed separately"
    )
    return (found,) if whole else (found, left)


def _communication(finding: Finding, inside: str, waits: float, named: bool) -> Finding:
    """The loop's own code, most of which is collectives. named: it says already what the line does."""
    found = msgspec.structs.replace(finding, id="communication", bound="communication", share=finding.share * waits)
    if named:
        return found
    return msgspec.structs.replace(
        found,
        title=f"waiting for other ranks in {inside}",
        why="the step can't end before all ranks have exchanged, and nothing is left to compute meanwhile",
        instead="start exchanging buckets during the backward (DistributedDataParallel does); use larger buckets",
    )
