"""Records of a tune: `tune.json`, `recipe.toml`, and the journal that `--resume` reads."""

from typing import Any, Final, Literal

import msgspec

from .diagnosis import Diagnosis, Place
from .run import Environment, LeftOut, Lever, Versions

Risk = Literal["exact", "numeric", "semantic"]
Outcome = Literal["measured", "crashed", "timeout", "memory", "too few steps", "too slow", "refused"]


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A 95% interval of a ratio. low, high: an end of it."""

    low: float
    high: float


WEAK: Final = 0.1
"""Loss gap that is allowed, from which on parity is said to be weak. The tolerances of levers are 0.03 at most."""


NEAR: Final = 0.1
"""Loss gap over the loss's own change, up to which a trial is seen to learn as the command does, however much is
allowed."""


class Parity(msgspec.Struct, frozen=True, kw_only=True):
    """Whether learning is unchanged.

    ok: learning is unchanged. level: what held ("bitwise", "run-to-run", "numeric", "redraw"), or what failed; why:
    that level, in words. loss_gap: root mean square of the loss difference over the mean loss; allowed: what loss_gap
    had to stay under; gradient_gap, update_gap: relative, of the first steps; samples: whether both saw the same, in
    words; steps: how many were compared. change: how far the loss itself gets over the steps, over its mean.
    """

    ok: bool
    level: str
    why: str
    loss_gap: float | None = None
    allowed: float | None = None
    gradient_gap: float | None = None
    update_gap: float | None = None
    samples: str | None = None
    steps: int = 0
    change: float | None = None

    @property
    def weak(self) -> bool:
        """Whether runs that ought to be equal lie so far apart here that the losses could hide a fault."""
        return bool(self.weakness)

    @property
    def weakness(self) -> str:
        """Why the losses could hide a fault, "" where they could not."""
        if self.allowed is None:
            return ""
        if self.allowed > WEAK:
            return f"a weak test: {self.allowed:.0%} of the loss is allowed, which can hide a fault"
        if self.change is None or self.change >= self.allowed or (self.loss_gap or 0.0) <= NEAR * self.change:
            return ""
        return (
            f"a weak test: the loss changes by only {self.change:.1%} over these steps and {self.allowed:.1%} is "
            "allowed, which can hide a fault"
        )


class LeverLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `rank-K/levers.jsonl`: a lever took hold, or left itself out.

    left_out: why it left itself out, None where it did not; nothing was changed until then. step: the one in which it
    left itself out; it and those before are not quoted. nothing: why it had nothing to change in the first loader,
    module or optimizer that it was given; it may yet take hold.
    """

    lever: str
    left_out: str | None = None
    nothing: str | None = None
    step: int = 0


class ProbeLine(msgspec.Struct, frozen=True):
    """A line of `rank-K/probe.jsonl`. gradient_norm: of what the update used; unclipped_norm: before the script clipped
    it, None where it did not. rounding: places in `update` of elements whose gradient was but rounding."""

    what: str
    batch: int = 0
    leaves: tuple[dict[str, Any], ...] = ()
    draws: bool | None = None
    optimizer: int = 0
    step: int = 0
    gradient_norm: float | None = None
    unclipped_norm: float | None = None
    update_norm: float | None = None
    update: tuple[float | None, ...] = ()
    rounding: tuple[int, ...] = ()


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A start of the command with some levers, to measure it.

    id: the trial's number. purpose: why it was made, in words. folder: the run folder. levers: those that were in;
    left_out: others that were asked for. outcome: `measured`, or why it was not. step_ms: of typical steps, before it
    took turns; mean_ms: of all steady steps, likewise; rows: a step has, over all ranks, None unknown. warmup_s:
    seconds before its steady steps; wall_s: seconds in all. peak_memory_bytes: of torch's CUDA allocator, None without;
    peak_rss_bytes: resident memory, the largest of a rank's process. where: the innermost line of the user's that its
    output shows of a crash. lever: the one that could not be put in. parity: known once its learning is compared, in
    `tune.json` only. ended: why it ended before it was told to, "" where it did not, in `tune.json` only.
    """

    id: int
    purpose: str
    levers: tuple[Lever, ...]
    folder: str
    outcome: Outcome
    why: str = ""
    where: Place | None = None
    step_ms: float | None = None
    mean_ms: float | None = None
    parity: Parity | None = None
    warmup_s: float | None = None
    wall_s: float = 0.0
    peak_memory_bytes: int | None = None
    peak_rss_bytes: int | None = None
    rows: float | None = None
    lever: str | None = None
    ended: str = ""
    left_out: tuple[LeftOut, ...] = ()

    @property
    def requested(self) -> tuple[Lever, ...]:
        """The levers that the trial was begun with."""
        return (*self.levers, *(one.lever for one in self.left_out))


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `turns.jsonl`: a side made some steps while all others stood still. side: the id of its trial. first,
    last: its steps before and after. levers: those that were in. step_ms: mean of those that count, None where none
    do; rows: a step has, over all ranks, None unknown. wall_ms: from the word to go until it stood still again."""

    side: int
    first: int
    last: int
    levers: tuple[str, ...] = ()
    step_ms: float | None = None
    rows: float | None = None
    wall_ms: float = 0.0


CAP: Final = 20.0
"""Of what a lever's share of the step lets it win: of nearly all of the step, any ratio would be."""


def foretold(ratio: float | None) -> float | None:
    """A predicted ratio; None where none is known, or only that it is beyond the cap."""
    return None if ratio is None or ratio > 0.999 * CAP else ratio


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """What one lever is worth. ratio: step time without it over with it, beside the others. interval: 95%, of the
    ratio. beside: the levers that were in with it. by: how it was measured: switched on and off in one live process
    ("switching"), two live processes that took turns ("turns"), or two processes, one after another."""

    ratio: float
    interval: Interval | None = None
    beside: tuple[str, ...] = ()
    by: Literal["switching", "turns", "one after another"] = "turns"


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A lever in the recipe. meaning: what it does. predicted: the most that it could win by its share of the step, as
    a ratio; None unknown. worth: measured; None where the tune ended before. source: how it is written by hand."""

    lever: str
    settings: dict[str, Any]
    risk: Risk
    meaning: str
    predicted: float | None = None
    worth: Worth | None = None
    source: str = ""


NOT_TRIED: Final = "before it was tried"
"""Ends why a lever was dropped that applies and had no turn."""


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """A lever that is not in the recipe, and why. ratio, interval: step time without it over with it, 95%, if it was
    measured; remembered: in an earlier session of the tune. trial: the id of the trial that failed with it, None where
    none did."""

    lever: str
    why: str
    ratio: float | None = None
    interval: Interval | None = None
    remembered: bool = False
    trial: int | None = None


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """A lever without which the command runs out of memory. meaning: what it does; source: how it is written by hand,
    in the user's own source."""

    lever: str
    settings: dict[str, Any]
    risk: Risk
    meaning: str
    source: str = ""


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """What levers that made a command fit do to it where it fits without them: both with batches of one part of as many
    samples, alive at once and taking turns.

    parts: 2 is half of the batch. time_ratio: how many times as long a sample takes with the levers (above 1 they cost
    time), interval: 95%, of the ratio; turns: number that each had, 0: one ran after another; before_ms, after_ms: ms a
    step of such a batch, without and with the levers; memory_before_bytes, memory_after_bytes: peak, without and with
    the levers.
    """

    parts: int
    levers: tuple[Lever, ...]
    time_ratio: float
    interval: Interval | None
    turns: int
    before_ms: float
    after_ms: float
    memory_before_bytes: float | None = None
    memory_after_bytes: float | None = None
    parity: Parity


How = Literal["turns", "one after another"]


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison of the bare command with a set of levers, both started afresh.

    ratio, interval: step time before over after, 95%. starts: fresh processes with the levers; bare_starts: fresh
    processes without. turns: rounds in which each process had one. how: whether both were alive at once. before_ms,
    after_ms: ms a step, their ratio is the ratio. proved: by the rule in docs/tune.md, with parity; why: it is not
    proved. at_s: seconds since the tune began. paces: where the machine's pace changed, so that the comparison
    told clearly more than turns before it: ms a step of the bare command, before and in it. The lesser ratio is told.
    """

    levers: tuple[Lever, ...]
    ratio: float
    interval: Interval | None = None
    proved: bool
    why: str = ""
    starts: int = 0
    bare_starts: int = 0
    turns: int = 0
    how: How = "turns"
    before_ms: float | None = None
    after_ms: float | None = None
    parity: Parity | None = None
    at_s: float = 0.0
    paces: tuple[float, float] | None = None


class Open(msgspec.Struct, frozen=True, kw_only=True):
    """Levers of which a gain was measured and is not proved. over: levers that were in on both sides; none: the bare
    command. ratio, interval: step time without the levers over with them, 95%."""

    levers: tuple[Lever, ...]
    over: tuple[str, ...] = ()
    ratio: float
    interval: Interval | None = None
    why: str = ""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Memory and time with some levers: medians over the starts with them. step_ms: of typical steps, for as
    many rows as a step of the first trial has, where rows are known. memory_bytes: at the peak. starts: number."""

    levers: tuple[Lever, ...]
    step_ms: float
    memory_bytes: float
    starts: int = 1


class Tune(msgspec.Struct, frozen=True, kw_only=True):
    """`tune.json`. speedup, interval, starts, turns, how, before_ms, after_ms and parity are of the last proof, whose
    levers are kept; where nothing is proved, of the last one that was tried, None if none was.

    speedup, interval: step time of the bare command over the recipe's, 95%. starts: fresh ones with the levers. turns:
    number that each side had. how: whether both were alive at once. before_ms, after_ms: ms a step, their ratio is the
    speed-up.

    gain: something is proved. kept: levers of the recipe. proofs: all that were tried, in order. unproved: what was
    measured and is not proved yet; resuming goes on with it. baseline, tuned: diagnoses of one run each. noise: how far
    two runs of the bare command that took turns differ, as a logarithm. seed: of all runs, None where the script sets
    its own. break_even_steps: after how many steps the recipe's longer first start (compiling) has paid for itself.
    trials: all starts. wall_s: seconds, of all sessions. complete: the search left nothing out; why_incomplete: `not
    ended yet`, `interrupted`, or what the budget left out. versions: of the tune's runs. recipe: the recipe's path.

    objective: what was made smaller. memory_before_bytes, memory_after_bytes: median of the peaks of the processes.
    price: dollars an hour; cost_before, cost_after: dollars for a million rows or steps, as cost_unit says. cost_unit:
    `rows` or `steps`. fitted: levers without which the command runs out of memory. They are in every run, and the
    baseline is the command with them. reference: what the levers in `fitted` do to a smaller batch; no_reference: why
    there is no reference. reused: what of an earlier session was not measured anew.
    frontier: with the objective memory, of all that was tried what no other beats in both time and memory, the fastest
    first; times are of single starts, which prove nothing.
    """

    version: int = 2
    command: tuple[str, ...]
    speedup: float | None
    interval: Interval | None
    starts: int = 0
    turns: int = 0
    how: How = "turns"
    before_ms: float | None = None
    after_ms: float | None = None
    gain: bool
    kept: tuple[Kept, ...]
    dropped: tuple[Dropped, ...]
    parity: Parity | None
    baseline: Diagnosis
    tuned: Diagnosis | None
    proofs: tuple[Proof, ...] = ()
    unproved: Open | None = None
    noise: float | None = None
    seed: int | None = None
    break_even_steps: int | None = None
    trials: tuple[Trial, ...] = ()
    wall_s: float = 0.0
    complete: bool = True
    why_incomplete: str = ""
    environment: Environment
    versions: Versions | None = None
    recipe: str | None = None
    objective: Literal["time", "memory", "cost"] = "time"
    memory_before_bytes: float | None = None
    memory_after_bytes: float | None = None
    price: float | None = None
    cost_before: float | None = None
    cost_after: float | None = None
    cost_unit: str = "rows"
    fitted: tuple[Fitted, ...] = ()
    reference: Reference | None = None
    no_reference: str = ""
    reused: tuple[str, ...] = ()
    frontier: tuple[Point, ...] = ()


class RecipeLever(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[lever]]` of a recipe. measured: step time without it over with it, beside the others; low, high: ends of its
    95% interval."""

    name: str
    settings: dict[str, Any] = {}
    risk: Risk = "exact"
    measured: float | None = None
    low: float | None = None
    high: float | None = None


class RecipeEvidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[evidence]`: what was measured when the recipe was made. For the reader: nothing is decided by it.

    speedup: step time without the recipe over with it; low, high: ends of its 95% interval. starts: fresh processes of
    each side; turns: number that each side had; pairs: of processes one after another, in recipes of earlier versions.
    parity: what held, in words. baseline_ms, tuned_ms: ms a step without and with the recipe.
    """

    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    starts: int = 0
    turns: int = 0
    pairs: int = 0
    parity: str = ""
    baseline_ms: float | None = None
    tuned_ms: float | None = None


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`recipe.toml`: data only; reading it runs no code.

    format: of the file, 1. hotlap: the version that wrote it, "" by hand. command: the one that it was made for. lever:
    each is put in. environment: machine and versions that it was made on, for the reader.
    """

    format: int
    hotlap: str = ""
    command: tuple[str, ...] = ()
    lever: tuple[RecipeLever, ...] = ()
    evidence: RecipeEvidence = RecipeEvidence()
    environment: dict[str, Any] = {}
