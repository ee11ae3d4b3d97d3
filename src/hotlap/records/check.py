"""`check.json`: whether one version of a command is slower than another."""

from typing import Final, Literal

import msgspec

from .diagnosis import Finding
from .phases import PHASES
from .run import Environment, Lever, Phases
from .tune import How, Interval, Parity, Trial

Verdict = Literal["pass", "fail", "inconclusive"]
Call = Literal["slower", "within", "open", "unknown"]
"""Of one quantity: more than the limit was shown; that much was ruled out; neither; it was not measured."""
STEP_TIME: Final = "step time"
PEAK_MEMORY: Final = "peak memory"
LOSSES: Final = "losses"


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a check. name: as it was given. commit: None outside of git. changed: the source tree had changes
    that are not committed, and they are part of it. command, cwd: how it was started. levers: of a recipe, if any.
    variables: of its environment that are another than the user's, as they lead into its source tree."""

    name: str
    command: tuple[str, ...]
    cwd: str
    commit: str | None = None
    changed: bool = False
    levers: tuple[Lever, ...] = ()
    variables: dict[str, str] = {}


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity. what: its name; unit: of before and after. before, after: medians over the starts of the baseline
    and of the new version, None unknown. change: 0.05 is 5% more, in units of `of`; interval: 95%, of the change.
    limit: the change that fails a check. call: what was found in the last attempt; counts: it decides the verdict.
    why: in words, what the call rests on."""

    what: str
    unit: str
    before: float | None = None
    after: float | None = None
    change: float | None = None
    interval: Interval | None = None
    limit: float
    call: Call
    counts: bool = True
    why: str = ""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison from fresh starts. starts: of each version. turns: that each process had. how: whether both were
    alive at once. null: how much slower at most one start of the baseline was than another, as a fraction, None of one
    start: what no change at all looks like here. judged: all quantities. seconds: that it took."""

    starts: int
    turns: int
    how: How
    null: float | None
    judged: tuple[Judged, ...]
    seconds: float


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Where the new version loses the time. before, after: ms a step by phase, in the first start of each. phase: that
    grew most, ms: by so much. findings: that the new version has and the baseline has not, or that cost clearly more
    there, the dearest first."""

    before: Phases
    after: Phases
    phase: str | None
    ms: float
    findings: tuple[Finding, ...] = ()


class Bisected(msgspec.Struct, frozen=True, kw_only=True):
    """The commit that made it slower. commit: None where it was not found, and why says why. subject: its first line.
    faster: it made it faster. tried: number of commits that were measured; of: number of commits between. skipped:
    commits that do not run."""

    commit: str | None
    subject: str = ""
    why: str = ""
    faster: bool = False
    tried: int = 0
    of: int = 0
    skipped: tuple[str, ...] = ()


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A value that the command has to print. metric: the word before it; compare: `>=` or `<=`; wanted: what it
    is compared with; value: the last one that was printed, None where none was. seconds: that the run to its end
    took."""

    metric: str
    compare: Literal[">=", "<="]
    wanted: float
    value: float | None
    seconds: float

    @property
    def met(self) -> bool:
        """Whether it was printed, and is as wanted."""
        if self.value is None:
            return False
        return self.value >= self.wanted if self.compare == ">=" else self.value <= self.wanted


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """`check.json`. verdict: `pass` where a slowdown of the limit is ruled out, `fail` where it was shown twice, each
    time from fresh starts, else `inconclusive`; why: in words. limit: a slowdown as a fraction. seconds: that it took.
    attempts: one, or two where the first showed something.
    parity: whether both compute the same losses; parity_counts: it decides the verdict. trials: all starts. notes: what
    to know about how it was done."""

    version: int = 1
    verdict: Verdict
    why: str
    base: Version
    head: Version
    limit: float
    attempts: tuple[Attempt, ...]
    parity: Parity | None = None
    parity_counts: bool = False
    cause: Cause | None = None
    bisected: Bisected | None = None
    target: Target | None = None
    environment: Environment
    trials: tuple[Trial, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def judged(self) -> tuple[Judged, ...]:
        """Of the last attempt."""
        return self.attempts[-1].judged if self.attempts else ()


def grown(before: Phases, after: Phases) -> list[tuple[str, float]]:
    """By how many ms each phase grew, the most first."""
    found = [(name, (getattr(after, name) or 0.0) - (getattr(before, name) or 0.0)) for name in PHASES]
    return sorted(found, key=lambda one: -one[1])
