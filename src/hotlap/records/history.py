"""What the history remembers of a run, and what it tells of many."""

import msgspec

from .compare import Difference
from .run import Environment, Lever, Phases, Run, Versions


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A run, a tune or a check, as the history keeps it.

    id: its number in the history, 0 before it has one. key: derived from the run, so that adding it twice is adding it
    once. kind: `run`, `tune` or `check`. project: the repository, or else the folder, that it ran in. device: the GPUs,
    or the CPU where none was used. host: the machine's name. cwd: the folder that it ran in. started: seconds since the
    epoch; wall_s: seconds it took. commit: of the source tree, None unknown; commit_time: seconds since the epoch;
    dirty: the tree had changes that are not committed. exit_code: the command's own. status: as in `run.json`; of a
    check its verdict.

    step_ms, p10_ms, p90_ms: of steady steps, ms; of a tune the bare command's, of a check the new version's. steps:
    number of steady ones. throughput: in throughput_unit; throughput_unit: rows or samples a second. bound: what limits
    the step. peak_bytes: in use at the peak, of the first rank's GPU, or of the command's processes together where it
    has none. startup_s: seconds from the start to the end of the first step, what was compiled in it included. finding:
    title of the first. ratio, ratio_low, ratio_high: speed-up that a tune proved, or step time of a check's new version
    over the baseline's, with the 95% interval. folder: where its records were.
    """

    id: int = 0
    key: str
    kind: str
    project: str
    command: tuple[str, ...]
    host: str
    device: str
    levers: tuple[Lever, ...] = ()
    started: float
    cwd: str
    commit: str | None = None
    commit_time: float | None = None
    dirty: bool | None = None
    status: str
    exit_code: int | None = None
    torch: str | None = None
    wall_s: float | None = None
    step_ms: float | None = None
    p10_ms: float | None = None
    p90_ms: float | None = None
    steps: int = 0
    phases: Phases = Phases()
    throughput: float | None = None
    throughput_unit: str = "samples/s"
    peak_bytes: float | None = None
    startup_s: float | None = None
    bound: str | None = None
    finding: str | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    folder: str
    environment: Environment
    versions: Versions | None = None

    @property
    def order(self) -> tuple[float, float]:
        """Commits in the order in which they were made, runs of one in theirs."""
        return (self.started if self.commit_time is None else self.commit_time, self.started)

    @property
    def failed(self) -> bool:
        """Whether the command ended by an error."""
        return self.status in {"failed", "fail"}

    def run(self) -> Run:
        """What two of them are compared by."""
        return Run(
            command=self.command, cwd=self.cwd, environment=self.environment, versions=self.versions, levers=self.levers
        )


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that can be compared: one command with the same levers on one host and device. id: its number in the
    history. kind, project, host: as of its runs. runs: number of them. last: when the latest began, seconds since the
    epoch."""

    id: int
    kind: str
    project: str
    command: str
    levers: str
    host: str
    device: str
    last: float
    runs: int = 0


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """Runs between two changes. first, last: their places among the points. middle: mean of their values; low, high:
    its 95% interval from how the runs differ, None of a single one."""

    first: int
    last: int
    middle: float
    low: float | None = None
    high: float | None = None


class ChangePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a measure changed. at: place of the first run after it. before, after: means of the runs on its two sides,
    up to the next change, in the measure's unit. ratio: after over before; p: of the test.
    commit_before, commit_after: of the runs on both sides of it. commits: those between, newest first, as far as the
    repository here knows. also: what else differs between the two runs."""

    at: int
    before: float
    after: float
    ratio: float
    p: float
    commit_before: str | None = None
    commit_after: str | None = None
    commits: tuple[str, ...] = ()
    also: tuple[Difference, ...] = ()


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """A slow change since the last change point. ratio: by how much each commit multiplies the value; low, high: its
    99% interval; total: over all of them. commits: number of them."""

    ratio: float
    low: float
    high: float
    total: float
    commits: int


class Flag(msgspec.Struct, frozen=True, kw_only=True):
    """What to look at. rule: its name. text: in words."""

    rule: str
    text: str


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """A series by one measure, in the order of its commits. measure: `step` or `data` (ms), `memory` (bytes) or
    `startup` (seconds). ids, times, values, commits: of each run that has it. segments: runs between changes. drift:
    None where none is shown."""

    measure: str
    ids: tuple[int, ...]
    times: tuple[float, ...]
    values: tuple[float, ...]
    commits: tuple[str | None, ...]
    segments: tuple[Level, ...] = ()
    changes: tuple[ChangePoint, ...] = ()
    drift: Drift | None = None


class SeriesReport(msgspec.Struct, frozen=True, kw_only=True):
    """What changed in a series. trends: by measure. flags: what to look at."""

    series: Series
    trends: tuple[Trend, ...] = ()
    flags: tuple[Flag, ...] = ()


class HistoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `hotlap history changes --json` prints. history: where it is. series: the one that ran last first."""

    version: int = 1
    history: str
    series: tuple[SeriesReport, ...] = ()


class HistoryRuns(msgspec.Struct, frozen=True, kw_only=True):
    """What `hotlap history --json` prints. history: where it is. runs: the latest ones, the latest first."""

    version: int = 1
    history: str
    runs: tuple[Entry, ...] = ()
