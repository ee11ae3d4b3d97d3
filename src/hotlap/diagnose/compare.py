"""What differs between two runs: environment records, the versions that their processes told, how they were started.

Two runs are one measurement each: what is different may have made one faster, or something else has.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from hotlap.memory.difference import difference
from hotlap.records.compare import Difference, RunDiff
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.errors import NothingMeasured
from hotlap.records.run import Environment, Run, Versions
from hotlap.runs.folder import RunFolder

from .diagnose import diagnose
from .source import reading_here

Fields = dict[str, str | None]


def compare(before: Path, after: Path) -> RunDiff:
    """Of two run folders. Raises RecordError where one is none."""
    one, two = RunFolder(before), RunFolder(after)
    differs, unknown = differences(one.record, two.record)
    before_step, after_step = _step(one), _step(two)
    used = [None if step is None else step.memory for step in (before_step, after_step)]
    return RunDiff(
        before=str(before),
        after=str(after),
        before_step=before_step,
        after_step=after_step,
        differs=tuple(differs),
        unknown=tuple(unknown),
        memory=difference(used[0], used[1], one.record.cwd, two.record.cwd) if used[0] and used[1] else None,
    )


def _step(run: RunFolder) -> Diagnosis | None:
    try:
        with reading_here():
            return run.diagnosis or diagnose(run.path)
    except NothingMeasured:
        return None


def differences(one: Run, two: Run) -> tuple[list[Difference], list[str]]:
    """What is not the same, and what only one of the two knows."""
    before = dict(_of_run(one)) | dict(_of_environment(one.environment)) | _prefixed("", one.environment.variables)
    after = dict(_of_run(two)) | dict(_of_environment(two.environment)) | _prefixed("", two.environment.variables)
    unknown = []
    if one.versions is not None and two.versions is not None:
        before |= dict(_of_versions(one.versions))
        after |= dict(_of_versions(two.versions))
        if one.versions.packages and two.versions.packages:
            before |= _prefixed("package ", one.versions.packages)
            after |= _prefixed("package ", two.versions.packages)
        else:
            unknown.append(
                "package versions other than torch's are unknown: a run was killed, or is of an older hotlap"
            )
    else:
        unknown.append("versions of torch and CUDA are unknown: nothing was seen in a run, or it is of an older hotlap")
    names = list(dict.fromkeys((*before, *after)))
    pairs = ((name, before.get(name), after.get(name)) for name in names)
    return [Difference(what=name, before=a, after=b) for name, a, b in pairs if a != b], unknown


def _of_run(run: Run) -> Iterator[tuple[str, str | None]]:
    yield "command", " ".join(run.command)
    yield "folder", run.cwd
    yield "seed set from outside", None if run.seed is None else str(run.seed)
    for lever in run.levers:
        yield f"lever {lever.name}", msgspec.json.encode(lever.settings).decode() if lever.settings else "in"


def _of_environment(found: Environment) -> Iterator[tuple[str, str | None]]:
    """Variables are apart. Python is told by the run's process, where it is known."""
    yield "hotlap", found.hotlap
    yield "host", found.host
    yield "system", found.os
    yield "cpu", found.cpu
    yield "cores", str(found.cores)
    yield "cpu quota", None if found.cpu_quota is None else f"{found.cpu_quota:g} cores"
    yield "memory", f"{found.memory_gib:.0f} GiB"
    gpus = [f"{gpu.name}, {gpu.memory_gib:.0f} GiB" for gpu in found.gpus]
    yield "gpus", "; ".join(f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)) or None
    yield "driver", found.driver
    dirty = " with changes" if found.git_dirty else ""
    yield "git commit", f"{found.git_commit}{dirty}" if found.git_commit else None


def _of_versions(found: Versions) -> Iterator[tuple[str, str | None]]:
    yield from (("python", found.python), ("torch", found.torch), ("cuda", found.cuda), ("cudnn", found.cudnn))
    yield "nccl", found.nccl


def _prefixed(before: str, named: dict[str, str]) -> Fields:
    return {f"{before}{name}": value for name, value in named.items()}
