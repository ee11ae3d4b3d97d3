"""A suite file, and what `hotlap bench` found: `bench.json`."""

from typing import Annotated, Final, Literal

import msgspec

from .diagnosis import Bound, Finding, Spread
from .run import Count, Environment

LEAST_STEPS: Final = 5
"""Steady steps without which a start is not measured."""
Word = Annotated[str, msgspec.Meta(max_length=1 << 16)]
Outcome = Literal[
    "measured", "crashed", "timeout", "memory", "too few steps", "refused", "not started", "interrupted", "not run"
]
"""What came of a command. refused: a lever of its recipe could not be put in, or hotlap's agent could not start. not
started: there is no such program or folder. interrupted, not run: Ctrl-C came before it was measured."""


class SuiteCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a suite file. Its name is the command's.

    command: as it would be typed, or a list of words; no shell reads it. cwd: the folder that it runs in, relative to
    that of the file. steps: steady steps of each start, after which it is ended. repeat: starts. timeout: seconds of
    one start. variables: set for it, beside the environment that hotlap has. recipe: a file, relative to that of the
    suite, whose levers are put in.
    """

    command: Annotated[Word, msgspec.Meta(min_length=1)] | Annotated[tuple[Word, ...], msgspec.Meta(min_length=1)]
    cwd: Word = "."
    steps: Annotated[int, msgspec.Meta(ge=LEAST_STEPS, le=100_000)] = 50
    repeat: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    timeout: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 600.0
    variables: dict[Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,254}$")], Word] = {}
    recipe: Annotated[Word, msgspec.Meta(min_length=1)] | None = None


class Middle(msgspec.Struct, frozen=True, kw_only=True):
    """A number over starts. median, low, high: of the starts that know it."""

    median: float
    low: float
    high: float


class SuiteStart(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a command. folder: of the run, relative to that of the suite. outcome: `measured`, else why it was
    not, as why says. step_ms: of a typical step; spread: of its steady steps, ms. throughput: rows a second, tokens_s:
    tokens a second, None unknown. peak_bytes: the most in tensors of a device, or resident in a process. startup_s:
    from its start to the beginning of its first step. wall_s: that it took."""

    folder: str
    outcome: Outcome
    why: str = ""
    step_ms: float | None = None
    spread: Spread | None = None
    throughput: float | None = None
    tokens_s: float | None = None
    peak_bytes: Count | None = None
    startup_s: float | None = None
    wall_s: float = 0.0


class SuiteRow(msgspec.Struct, frozen=True, kw_only=True):
    """A command of a suite. name: of its table. words, cwd: what ran, and where. recipe: the file of its levers.
    left_out: levers of the recipe that did not take hold, and why.

    outcome: `measured` if all its starts were, else what came of the one that was not, as why says; after that one no
    other is made. starts: in order. step_ms, throughput, tokens_s, peak_bytes, startup_s: over the starts that were
    measured, None unknown. throughput_unit: of throughput. peak_of: whose memory the peak is, a device's or the
    process's. bound, finding, spread, unknown: of the start whose step time is the middle one: what limits the step,
    its first finding, the spread of its steady steps in ms, and what could not be told.
    """

    name: str
    words: tuple[str, ...]
    cwd: str
    recipe: str | None = None
    left_out: dict[str, str] = {}
    outcome: Outcome
    why: str = ""
    starts: tuple[SuiteStart, ...] = ()
    step_ms: Middle | None = None
    throughput: Middle | None = None
    throughput_unit: str = "samples/s"
    tokens_s: Middle | None = None
    peak_bytes: Middle | None = None
    peak_of: Literal["device", "process"] = "process"
    startup_s: Middle | None = None
    bound: Bound | None = None
    finding: Finding | None = None
    spread: Spread | None = None
    unknown: tuple[str, ...] = ()


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """`bench.json`: the commands of a suite, run in turn. It is written anew after each start.

    suite: path of the file. rows: in its order. complete: all that was wanted was run. seconds: that it took.
    environment: the machine, and the source tree of the folder that hotlap ran in. started: seconds since the epoch.
    """

    version: int = 1
    suite: str
    rows: tuple[SuiteRow, ...]
    complete: bool
    started: float
    seconds: float
    environment: Environment

    @property
    def failed(self) -> tuple[SuiteRow, ...]:
        """Commands that were not measured."""
        return tuple(row for row in self.rows if row.outcome != "measured")
