"""What a log for MLPerf needs beside a run: `mlperf.toml`, and what the command printed, with times."""

from typing import Annotated, Final, Literal

import msgspec

MLPERF_FILE: Final = "mlperf.toml"
"""In the run's folder, as the user gave it."""
MLPERF_LOG: Final = "mlperf.log"
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Finite = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
Whole = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]
Value = bool | Whole | Finite | Annotated[str, msgspec.Meta(max_length=500)]


class PrintedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `printed.jsonl`, which `hotlap run --mlperf` keeps: what the command printed. time: seconds since the
    epoch, when hotlap had it. text: its first 2,000 characters."""

    time: float
    text: str


class Submission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who submits what. benchmark: as MLPerf names it. org, platform: who and on what. division: `closed` or
    `open`."""

    benchmark: Name
    org: Text
    platform: Text
    division: Literal["closed", "open"]


class Accuracy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the quality is read from the output, and what it has to be.

    word: the number behind it counts; pattern: in place of word, a regular expression whose first group is the number.
    One of the two. target, compare: what it has to be. percent: what is printed is divided by 100 before.
    """

    target: Finite
    word: Text | None = None
    pattern: Text | None = None
    compare: Literal[">=", "<="] = ">="
    percent: bool = False


class MlperfSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`mlperf.toml`. ruleset: of MLPerf Training, as `5.1.0`. values: further keys of the log, as they are. What hotlap
    knows by itself is not needed there, and what stands there counts. steps_per_epoch: where the loader does not
    tell."""

    ruleset: Annotated[str, msgspec.Meta(pattern=r"^\d{1,3}\.\d{1,3}\.\d{1,3}$")]
    submission: Submission
    accuracy: Accuracy
    values: dict[Name, Value] = {}
    steps_per_epoch: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)] | None = None
