"""What the history keeps of the folder of a run, a tune or a check."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from hotlap.diagnose.verdict import judged
from hotlap.launch.environment import commit_time, project_of
from hotlap.records.check import STEP_TIME, Check
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.errors import RecordError
from hotlap.records.files import to_json
from hotlap.records.history import Entry
from hotlap.records.run import Environment, Lever, Run
from hotlap.records.tune import Trial, Tune
from hotlap.runs.folder import RunFolder, TuneFolder

RUNS: Final = "hotlap-runs"
"""The folder that folders of records lie in, in that of the command, unless they were put elsewhere."""
LONGEST: Final = 20_000
"""Characters of a text, and of a command in all."""


def entry_of(folder: Path, project: str | None = None) -> Entry:
    """The entry of a folder. project: its name, by default that of the repository or the folder that the command ran
    in. Raises RecordError where the folder holds no run, tune or check, or can't be read."""
    trials = TuneFolder(folder)
    if trials.tune is not None:
        return _of_tune(trials, trials.tune, project)
    if trials.check is not None:
        return _of_check(trials, trials.check, project)
    return _of_run(RunFolder(folder), project)


def _of_run(folder: RunFolder, project: str | None) -> Entry:
    record = folder.record
    diagnosis = folder.diagnosis or judged(folder.path)[0]
    entry = _begun("run", folder.path, record, record.started, project)
    return _with(
        msgspec.structs.replace(
            entry,
            status=record.status,
            exit_code=record.exit_code,
            wall_s=record.wall_s,
            levers=record.levers,
            startup_s=_startup_s(folder, record.started),
            peak_bytes=max((one.rss_bytes or 0 for one in folder.telemetry), default=0) or None,
        ),
        diagnosis,
    )


def _of_tune(folder: TuneFolder, tune: Tune, project: str | None) -> Entry:
    first = _first(folder, tune.trials)
    run = msgspec.structs.replace(
        first, command=tune.command, environment=tune.environment, versions=tune.versions, levers=()
    )
    entry = _begun("tune", folder.path, run, first.started, project)
    return _with(
        msgspec.structs.replace(
            entry,
            status="finished" if tune.complete else "stopped",
            wall_s=tune.wall_s,
            levers=tuple(Lever(name=one.lever, settings=one.settings) for one in tune.kept),
            ratio=tune.speedup if tune.gain else None,
            ratio_low=tune.interval.low if tune.gain and tune.interval else None,
            ratio_high=tune.interval.high if tune.gain and tune.interval else None,
        ),
        tune.baseline,
    )


def _of_check(folder: TuneFolder, check: Check, project: str | None) -> Entry:
    """Its commit is the one that was checked, which was built in a folder that is gone."""
    first = _first(folder, check.trials)
    machine = msgspec.structs.replace(
        check.environment, git_commit=check.head.commit, git_dirty=check.head.changed if check.head.commit else None
    )
    run = msgspec.structs.replace(
        first, command=check.head.command, environment=machine, levers=check.head.levers, cwd=check.head.cwd
    )
    around = folder.path.resolve().parent
    around = around.parent if around.name == RUNS else around
    entry = _begun("check", folder.path, run, first.started, project or project_of(around))
    step = next((one for one in check.judged if one.what == STEP_TIME), None)
    of = None if step is None else step.interval
    return msgspec.structs.replace(
        entry,
        status=check.verdict,
        wall_s=check.seconds,
        levers=check.head.levers,
        commit_time=commit_time(around, check.head.commit) if check.head.commit else None,
        step_ms=step.after if step else None,
        ratio=1 + step.change if step and step.change is not None else None,
        ratio_low=1 + of.low if of else None,
        ratio_high=1 + of.high if of else None,
        finding=check.why,
    )


def _first(folder: TuneFolder, trials: Sequence[Trial]) -> Run:
    if not trials:
        raise RecordError(f"{folder.path} started nothing; there is nothing to remember")
    return folder.trial(trials[0]).record


def _begun(kind: str, folder: Path, record: Run, started: float, project: str | None) -> Entry:
    """What is known of it before it has measured anything."""
    environment, cwd = record.environment, Path(record.cwd)
    if sum(map(len, record.command)) > LONGEST:
        raise RecordError(f"{folder}: its command has more than {LONGEST:,} characters; it is not added")
    identity = [kind, environment.host, record.cwd, list(record.command), started]
    return Entry(
        key=hashlib.sha256(to_json(identity)).hexdigest()[:32],
        kind=kind,
        project=project or project_of(cwd),
        command=record.command,
        host=environment.host or "unknown",
        device=_device(environment, None),
        started=started,
        cwd=record.cwd,
        commit=environment.git_commit,
        commit_time=commit_time(cwd, environment.git_commit) if environment.git_commit else None,
        dirty=environment.git_dirty,
        status=record.status,
        torch=record.versions.torch if record.versions else None,
        folder=str(folder.resolve()),
        environment=environment,
        versions=record.versions,
    )


def _with(entry: Entry, found: Diagnosis | None) -> Entry:
    """The entry with what was measured."""
    if found is None:
        return entry
    return msgspec.structs.replace(
        entry,
        device=_device(entry.environment, found),
        step_ms=found.step_ms,
        p10_ms=found.spread.p10,
        p90_ms=found.spread.p90,
        steps=found.steady_steps,
        phases=found.phases,
        throughput=found.throughput,
        throughput_unit=found.throughput_unit,
        peak_bytes=entry.peak_bytes if found.device == "cpu" else found.peak_bytes,
        bound=found.bound,
        finding=next((one.title or one.id for one in found.findings), None),
    )


def _device(environment: Environment, found: Diagnosis | None) -> str:
    if found is not None and found.device != "cpu":
        return f"{found.ranks} × {found.device_name or found.device}"
    names = [gpu.name for gpu in environment.gpus] if found is None else []
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or environment.cpu


def _startup_s(folder: RunFolder, started: float) -> float | None:
    """Until the first step of the rank that made it last."""
    ends = [step.time - started for rank in folder.observed for step in [next(rank.steps, None)] if step]
    return max(ends, default=None) if all(end >= 0 for end in ends) else None
