"""A log for MLPerf Training: the lines `:::MLLOG {...}` that mlperf-logging's checker reads.

https://github.com/mlcommons/logging. Only what is known is written: the run's own times, steps, epochs and printed
accuracies, and the keys of `mlperf.toml`. The clock runs from the beginning of the first step (`run_start`) to the
first accuracy that meets the target (`run_stop`); what came after that is left out.
"""

import contextlib
import importlib.metadata
import importlib.util
import math
import re
import subprocess
import sys
import tempfile
import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from hotlap.guard.target import last_value
from hotlap.records.errors import RecordError
from hotlap.records.files import read_bytes, to_json, write_atomic
from hotlap.records.mlperf import MLPERF_FILE, Accuracy, MlperfSettings, PrintedLine
from hotlap.records.run import Facts, LoaderFacts, Step
from hotlap.runs.folder import RunFolder

from ._base import Target
from .series import Series

MAX_FILE: Final = 1 << 20
PACKAGE: Final = "mlperf_logging"
CHECK_S: Final = 120.0
LATE_S: Final = 0.5
"""After an evaluation that hotlap may have what was printed of it."""
NEAR: Final = 0.02
"""Of a whole number, within which batches a step are one."""
LACKS: Final = re.compile(r"Required (?:EXACTLY_ONE|AT_LEAST_ONE) occurrence of '(\w+)' but found 0")
REFUSED: Final = re.compile(r"CHECK for '\w+' failed|failed test: .*|Failed checks for .*|Required .*")
FAILED: Final = "ERROR - FAILED"
OWN: Final = frozenset({
    "submission_benchmark", "submission_org", "submission_platform", "submission_division", "init_start", "init_stop",
    "run_start", "run_stop", "epoch_start", "epoch_stop", "block_start", "block_stop", "eval_start", "eval_stop",
    "eval_accuracy",
})  # fmt: skip
"""Keys that `values` may not hold: they are measured, or stand under `submission`."""
DEMANDED: Final = ("cache_clear", "train_samples", "eval_samples")
"""By every ruleset, where mlperf-logging is not there to say what else is."""
Kind = Literal["POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"]


def read_settings(path: Path) -> MlperfSettings:
    """The user's file. Raises RecordError that names the file and the field."""
    if not path.exists():
        raise RecordError(
            f"{path} is not there; hotlap run --mlperf FILE.toml COMMAND... puts it into the run's folder"
        )
    try:
        found = msgspec.convert(tomllib.loads(read_bytes(path, MAX_FILE).decode()), MlperfSettings)
        if found.accuracy.pattern is not None and re.compile(found.accuracy.pattern).groups < 1:
            raise RecordError(f"{path}: accuracy.pattern has no group for the number, as in 'acc (\\d+\\.\\d+)'")
    except msgspec.ValidationError as error:
        raise RecordError(f"{path}: {error}") from error
    except re.error as error:
        raise RecordError(f"{path}: accuracy.pattern: {error}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not valid TOML: {error}") from error
    if (found.accuracy.word is None) == (found.accuracy.pattern is None):
        raise RecordError(f"{path}: accuracy has `word` or `pattern`, one of the two")
    if wrong := sorted(OWN.intersection(found.values)):
        raise RecordError(f"{path}: values: {wrong[0]} is measured, or stands under [submission]")
    return found


@dataclass(frozen=True)
class Evaluation:
    """An accuracy that was printed. time: when, seconds since the epoch. steps: made until then."""

    time: float
    value: float
    steps: int

    def met(self, wanted: Accuracy) -> bool:
        """Whether it is good enough."""
        return self.value >= wanted.target if wanted.compare == ">=" else self.value <= wanted.target


@dataclass(frozen=True)
class Trained:
    """The run on MLPerf's clock. Times in seconds since the epoch. begun: of the command; first: beginning of the first
    step; ends: of the steps; over: the run's end, by the target or by itself."""

    begun: float
    first: float
    ends: Sequence[float]
    evaluations: Sequence[Evaluation]
    over: float
    reached: bool


def trained(run: RunFolder, wanted: Accuracy) -> Trained:
    """What the run's steps and output tell. Raises RecordError where they do not suffice."""
    record, steps = run.record, list(run.rank(0).steps)
    if not steps:
        raise RecordError(f"{run.path} holds no steps, so there is no time to train")
    if steps[-1].step - steps[0].step != len(steps) - 1:
        raise RecordError(
            f"{run.path} holds only the first and the last steps of a long run, and no epochs follow from it"
        )
    if not run.file(PrintedLine).is_file():
        raise RecordError(
            f"{run.path} does not hold what the command printed; run it with hotlap run --mlperf FILE.toml"
        )
    ends = [step.time for step in steps]
    found = {one.steps: one for one in _printed(run, wanted, steps) if one.steps}  # of several at a step the last
    known = list(found.values())
    if not known:
        what = f"{wanted.word!r}" if wanted.word is not None else f"pattern {wanted.pattern!r}"
        raise RecordError(f"the command printed no number for accuracy.{what} of {run.path / MLPERF_FILE}")
    hit = next((at for at, one in enumerate(known) if one.met(wanted)), None)
    over = max(ends[-1], known[-1].time, record.started + (record.wall_s or 0.0))
    return Trained(
        begun=record.started, first=ends[0] - steps[0].wall_ms / 1000, ends=ends,
        evaluations=known if hit is None else known[: hit + 1],
        over=over if hit is None else known[hit].time, reached=hit is not None,
    )  # fmt: skip


def _printed(run: RunFolder, wanted: Accuracy, steps: Sequence[Step]) -> Iterator[Evaluation]:
    """Each belongs to the evaluation before the step that held one, since hotlap may have had the line some steps
    later; where there is none, to the last step by then."""
    pattern = re.compile(wanted.pattern) if wanted.pattern is not None else None
    ends = [step.time for step in steps]
    last = 0
    for line in run.lines(PrintedLine):
        value = last_value([line.text], wanted.word) if wanted.word is not None else None
        if pattern is not None and (match := pattern.search(line.text)) is not None:
            with contextlib.suppress(TypeError, ValueError):
                value = float(match[1])
        if value is None or not math.isfinite(value):
            continue
        made = at = bisect_right(ends, line.time)
        while at > last and (at == len(steps) or not steps[at].evaluation) and line.time - ends[at - 1] <= LATE_S:
            at -= 1
        last = at if at > last and at < len(steps) and steps[at].evaluation else made
        yield Evaluation(line.time, value / 100 if wanted.percent else value, last)


@dataclass(frozen=True)
class Counted:
    """What is known of amounts; None where it is not. epoch: steps of it. train, evaluated: samples. batch: rows of a
    step, over all ranks."""

    epoch: int | None
    train: int | None
    evaluated: int | None
    batch: int | None


def counted(facts: Facts | None, steps: int, given: MlperfSettings) -> Counted:
    """By the loaders, of one rank only: of several a sampler does not tell how it divides the rows."""
    loader = facts.feeding if facts is not None and facts.world == 1 else None
    each = loader.batches / steps if loader is not None else 0.0
    whole = round(each) if each >= 1 - NEAR and abs(each - round(each)) <= NEAR * each else 0
    others = [one for one in facts.loaders if not one.training] if facts is not None and facts.world == 1 else []
    rows = {one.rows for one in others}
    return Counted(
        epoch=given.steps_per_epoch or _per_epoch(loader, whole),
        train=loader.rows if loader is not None else None,
        evaluated=rows.pop() if len(rows) == 1 else None,
        batch=loader.batch_size * whole if loader is not None and loader.batch_size and whole else None,
    )


def _per_epoch(loader: LoaderFacts | None, each: int) -> int | None:
    if loader is None or not loader.epoch_batches or not each or loader.epoch_batches % each:
        return None
    return loader.epoch_batches // each


def log_of(series: Series, given: MlperfSettings) -> bytes:
    """The log. Raises RecordError that names the keys that are missing."""
    run, source = series.folder, series.folder.path / MLPERF_FILE
    found = trained(run, given.accuracy)
    amounts = counted(run.facts, len(found.ends), given)
    known: dict[str, Any] = {
        "train_samples": amounts.train, "eval_samples": amounts.evaluated, "global_batch_size": amounts.batch,
        "opt_name": _optimizer(run.facts), **given.values,
    }  # fmt: skip
    values = {key: value for key, value in known.items() if value is not None}
    missing = [f"values.{key}" for key in DEMANDED if key not in values]
    if amounts.epoch is None:
        missing.append("steps_per_epoch (the loader does not tell)")
    if missing or amounts.epoch is None:
        raise RecordError(f"{source} lacks what hotlap can't know: {', '.join(missing)}")
    lines = list(_lines(found, given, values, amounts.epoch))
    return b"".join(b":::MLLOG " + to_json(line) + b"\n" for line in sorted(lines, key=lambda line: line["time_ms"]))


def _optimizer(facts: Facts | None) -> str | None:
    """Its name in MLPerf's way, where there is one optimizer, of torch's own."""
    names = {one.name.lower() for one in facts.optimizers if one.builtin} if facts is not None else set()
    return names.pop() if facts is not None and len(names) == len(facts.optimizers) == 1 else None


def _lines(found: Trained, given: MlperfSettings, values: dict[str, Any], epoch: int) -> Iterator[dict[str, Any]]:
    """In the order in which they have to stand where two are of the same time."""
    who, rows = given.submission, values["train_samples"]
    told = {
        "submission_benchmark": who.benchmark, "submission_org": who.org, "submission_platform": who.platform,
        "submission_division": who.division,
    }  # fmt: skip
    for key, value in {**told, **values}.items():
        yield _line(found.begun, key, value)
    yield _line(found.begun, "init_start", None, "INTERVAL_START")
    yield _line(found.first, "init_stop", None, "INTERVAL_END")
    yield _line(found.first, "run_start", None, "INTERVAL_START")

    def so_far(steps: int) -> dict[str, Any]:
        counts = {"epoch_num": steps // epoch if steps % epoch == 0 else round(steps / epoch, 6)}
        return counts | ({"samples_count": round(rows * steps / epoch)} if isinstance(rows, int) else {})

    made = found.evaluations[-1].steps if found.reached else len(found.ends)
    checks = {one.steps: one for one in found.evaluations}
    if made < epoch:
        yield _line(
            found.first, "block_start", None, "INTERVAL_START", {"first_epoch_num": 1, "epoch_count": made / epoch}
        )
    else:
        yield _line(found.first, "epoch_start", None, "INTERVAL_START", {"epoch_num": 1})
    for steps in sorted({*checks, *range(epoch, made + 1, epoch)}):
        end = found.ends[steps - 1]
        if steps % epoch == 0:
            yield _line(end, "epoch_stop", None, "INTERVAL_END", so_far(steps))
        if (one := checks.get(steps)) is not None:
            yield _line(end, "eval_start", None, "INTERVAL_START", so_far(steps))
            yield _line(one.time, "eval_stop", None, "INTERVAL_END", so_far(steps))
            yield _line(one.time, "eval_accuracy", one.value, metadata=so_far(steps))
        if steps % epoch == 0 and steps < made:
            begun = one.time if one is not None else end
            yield _line(begun, "epoch_start", None, "INTERVAL_START", {"epoch_num": steps // epoch + 1})
    if made < epoch:
        yield _line(found.over, "block_stop", None, "INTERVAL_END", {"first_epoch_num": 1, **so_far(made)})
    status = {"status": "success" if found.reached else "aborted"}
    yield _line(found.over, "run_stop", None, "INTERVAL_END", {**status, **so_far(made)})


def _line(
    time: float, key: str, value: Any, kind: Kind = "POINT_IN_TIME", metadata: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "namespace": "", "time_ms": round(time * 1000), "event_type": kind, "key": key, "value": value,
        "metadata": metadata or {},
    }  # fmt: skip


def checked(path: Path, given: MlperfSettings) -> list[str]:
    """What mlperf-logging's own checker says of a log, as lines; that it was not asked where it is not installed.
    Raises RecordError that names the keys which the ruleset demands and the log lacks, or a benchmark that it has
    not."""
    rules = f"MLPerf Training {given.ruleset}, {given.submission.division} {given.submission.benchmark}"
    if importlib.util.find_spec(PACKAGE) is None:
        return [f"not checked against {rules}: pip install 'hotlap[mlperf]'"]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-P", "-m", f"{PACKAGE}.compliance_checker", "--usage", "training",
            "--ruleset", given.ruleset, "--log_output", str(Path(folder) / "said"), str(path.resolve()),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=CHECK_S, check=False
            )
        except subprocess.TimeoutExpired:
            return [f"not checked: mlperf-logging took more than {CHECK_S:.0f} s"]
    if done.returncode == 0:
        return [f"mlperf-logging {_version()} accepts it: {rules}"]
    if missing := list(dict.fromkeys(LACKS.findall(done.stderr))):
        raise RecordError(
            f"{rules} demands keys that hotlap can't know; give them under [values]: {', '.join(missing)}"
        )
    if FAILED not in done.stderr and f"{given.submission.division}_{given.submission.benchmark}.yaml" in done.stderr:
        raise RecordError(
            f"MLPerf Training {given.ruleset} has no benchmark {given.submission.benchmark!r}, says its checker"
        )
    if FAILED not in done.stderr:
        return [f"not checked: mlperf-logging itself failed: {next(reversed(done.stderr.strip().splitlines()), '')}"]
    said = dict.fromkeys(match[0].strip() for match in REFUSED.finditer(done.stderr))
    return [f"mlperf-logging {_version()} refuses it: {rules}", *said]


def _version() -> str:
    try:
        return importlib.metadata.version("mlperf-logging")
    except importlib.metadata.PackageNotFoundError:
        return ""


def write(series: Series, path: Path) -> list[str]:
    """The log of a run that `hotlap run --mlperf` made. Raises RecordError, with nothing written, where keys are
    missing."""
    given = read_settings(series.folder.path / MLPERF_FILE)
    log = log_of(series, given)
    with tempfile.TemporaryDirectory() as folder:
        tried = Path(folder) / "mlperf.log"
        write_atomic(tried, log)
        said = checked(tried, given)
    write_atomic(path, log)
    found = trained(series.folder, given.accuracy)
    last = found.evaluations[-1].value
    target = f"{given.accuracy.compare} {given.accuracy.target:g}"
    reached = "reached" if found.reached else "not reached"
    return [f"{found.over - found.first:.1f} s to train; accuracy {last:g}, target {target} {reached}", *said]


TARGET = Target("mlperf", ".log", write, label="note")
