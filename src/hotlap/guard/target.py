"""A value that a command has to print, as an accuracy: the command is run to its end once, by itself."""

import math
import re
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final, cast

from hotlap.experiment.watch import Listener
from hotlap.launch.environment import environment
from hotlap.launch.run import BackgroundRun
from hotlap.records.check import Target, Version
from hotlap.records.errors import CommandFailed, UsageError
from hotlap.records.files import new_folder
from hotlap.runs.folder import RunFolder
from hotlap.runs.plan import RunPlan

WRITTEN: Final = re.compile(
    r"\s*(?P<metric>[^<>=]+?)\s*(?P<compare>>=|<=)\s*(?P<wanted>[-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*"
)
NUMBER: Final = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
BETWEEN: Final = r"[\"']?\s*(?:[:=]|is)?\s*"
LOOK_S: Final = 0.2
LONGEST_LINE: Final = 1 << 16


def target_of(text: str) -> Target:
    """What `--target` says: `accuracy>=0.97`. Raises UsageError."""
    match = WRITTEN.fullmatch(text)
    try:
        wanted = float(match["wanted"]) if match else math.nan
    except ValueError:
        wanted = math.nan
    if match is None or not math.isfinite(wanted):
        raise UsageError(f"--target {text!r} is no target; write it as accuracy>=0.97 or val_loss<=1.2")
    return Target(metric=match["metric"], compare=cast("str", match["compare"]), wanted=wanted, value=None, seconds=0.0)  # type: ignore[arg-type]


def last_value(lines: Iterable[str], metric: str) -> float | None:
    """The last number that a command printed behind a word: `accuracy 0.97`, `accuracy=97.1%`, `"accuracy": 0.97`."""
    wanted = re.compile(rf"(?<![\w.]){re.escape(metric)}{BETWEEN}({NUMBER})", re.IGNORECASE)
    last = deque((found for line in lines for found in wanted.findall(line[:LONGEST_LINE])), maxlen=1)
    return float(last[0]) if last else None


def measure(target: Target, version: Version, folder: Path, listener: Listener) -> Target:
    """Run a version to its end, however long that takes, and read the target. Raises CommandFailed, RecordError."""
    listener.trial("to its end", f"for {target.metric}")
    begun, cwd = time.monotonic(), Path(version.cwd)
    run = BackgroundRun(RunPlan(version.command, new_folder(folder), environment(cwd), cwd=cwd, levers=version.levers))
    try:
        while not run.over():
            time.sleep(LOOK_S)
    finally:
        _, ended = run.end()
    output = RunFolder(folder).output
    if ended.code or ended.signal:
        raise CommandFailed(f"the new version fails before its end: exit code {ended.code} (see {output})")
    with output.open(encoding="utf-8", errors="replace") as lines:
        value = last_value(lines, target.metric)
    return Target(
        metric=target.metric, compare=target.compare, wanted=target.wanted, value=value,
        seconds=time.monotonic() - begun,
    )  # fmt: skip
