"""What the rooms of the search share: trials, the time that is left, what is known and decided so far."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

import msgspec

from hotlap.levers._base import Context, Lever, Settings
from hotlap.records import run as records
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.durations import ms, three
from hotlap.records.errors import NothingMeasured
from hotlap.records.files import read_facts
from hotlap.records.run import Facts
from hotlap.records.tune import Dropped, Fitted, Interval, Kept, Parity, Reference, Trial

from .budget import Budget, BudgetSpent
from .objective import Objective, peak_bytes
from .proof import Proof
from .remember import Remembered
from .trials import Special, Trials

if TYPE_CHECKING:
    from .whatif import WhatIf


TOO_SLOW: Final = 3.0
"""Times the bare command's step: a try whose steps take longer is ended after a few."""

ALIKE: Final = 1.1
"""Times as many rows a step as the bare command's that a trial may have, beside what its own runs differ by."""


@dataclass(frozen=True)
class Asked:
    """What the user wants of the search."""

    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    semantic: bool = False
    objective: Objective = field(default_factory=Objective)


@dataclass
class Incumbent:
    """The best so far. value: what the objective makes of it, smoothed over second looks."""

    levers: list[records.Lever]
    trial: Trial
    diagnosis: Diagnosis
    facts: Facts
    value: float


@dataclass
class Found:
    """What the search knows; filled as it goes, so that an interruption loses nothing."""

    baseline: Diagnosis | None = None
    kept: list[Kept] = field(default_factory=list)
    dropped: dict[str, Dropped] = field(default_factory=dict)
    tuned: Diagnosis | None = None
    parity: Parity | None = None
    speedup: float | None = None
    interval: Interval | None = None
    pairs: int = 0
    before_ms: float | None = None
    after_ms: float | None = None
    not_done: str = ""
    noise: float | None = None
    break_even: int | None = None
    seeded: bool = False
    gain: bool = False
    memory: tuple[float | None, float | None] = (None, None)
    costs: dict[str, Any] = field(default_factory=dict)
    unproved: tuple[float, ...] = ()
    fitted: list[Fitted] = field(default_factory=list)
    reference: Reference | None = None
    no_reference: str = ""
    reused: list[str] = field(default_factory=list)

    def forget_confirmation(self) -> None:
        """What was measured was of levers that are not kept."""
        self.tuned = self.parity = self.speedup = self.interval = None
        self.before_ms = self.after_ms = self.break_even = None
        self.pairs, self.memory, self.costs, self.unproved = 0, (None, None), {}, ()


class State:
    """One tune of one command."""

    best: Incumbent

    def __init__(
        self, trials: Trials, asked: Asked, levers: Mapping[str, Lever], budget_s: float, clock: Callable[[], float]
    ) -> None:
        self.trials, self.asked, self.levers = trials, asked, levers
        self.objective = asked.objective
        self.budget = Budget(budget_s, clock)
        self.found = Found()
        self.proof = Proof(trials, levers, self.prove)
        self.confirming = False
        self.unproved: tuple[records.Lever, ...] | None = None
        """The levers that the last session could not confirm in its time. Until they are, no other trial is made."""
        self.bases: list[Trial] = []
        """The runs of the bare command with which it began."""
        self.facts: Facts
        self.refused: set[str] = set()
        self.blamed: dict[str, Trial] = {}
        """The trial for whose crash a lever is blamed, while the rest of its levers is tried."""
        self.showed: dict[str, tuple[str, Trial]] = {}
        """What a trial showed of a lever that is not tried to its end."""
        self.whatif: WhatIf | None = None
        self.remembered = Remembered()

    # trials

    def run(self, purpose: str, levers: Sequence[records.Lever], special: Special | None = None) -> Trial:
        """Make a trial, whatever it costs."""
        timeout = self.budget.timeout(levers)
        return self.trials.run(purpose, levers, special or Special(), timeout)

    def prove(self, purpose: str, levers: Sequence[records.Lever], special: Special) -> Trial:
        """Make a run that parity is judged by. Raises BudgetSpent; in the confirmation it is made in any case."""
        if not self.confirming and not self.trials.knows(purpose, levers):
            self.budget.afford_proof()
        return self.run(purpose, levers, special)

    def second_look(self, purpose: str, levers: Sequence[records.Lever], seconds: float) -> None:
        """Raises BudgetSpent where a second look that begins with this trial can't be afforded."""
        if self.trials.knows(purpose, levers):
            return
        if self.unproved is not None:
            raise BudgetSpent
        self.budget.afford_second_look(seconds)

    def trial(
        self,
        purpose: str,
        levers: Sequence[records.Lever],
        brief: bool = False,
        trying: Sequence[records.Lever] = (),
        likely: float = 1.0,
        spare: Sequence[records.Lever] = (),
    ) -> Trial:
        """Make a trial if it can be afforded. Raises BudgetSpent, also where the budget ended it early.

        trying: the levers that it is about; of several some may leave themselves out, as those in spare may. likely:
        the ratio to reckon with.
        """
        if not self.trials.knows(purpose, levers):
            if self.unproved is not None:
                raise BudgetSpent
            self.budget.afford(likely)
        timeout = self.budget.timeout(levers, self.budget.reserve(likely))
        special = Special(
            brief=brief and self.budget.quiet,
            trying=tuple(lever.name for lever in (*trying, *spare)),
            slow_ms=self._too_slow(levers) if trying else None,
        )
        trial = self.trials.run(purpose, levers, special, timeout)
        if trial.outcome == "timeout" and timeout < self.budget.patience(levers):
            raise BudgetSpent
        return trial

    def _too_slow(self, levers: Sequence[records.Lever]) -> float | None:
        """Ms a step from which on a try has lost; None where steps may be longer."""
        step_ms = max((base.step_ms or 0.0 for base in self.bases), default=0.0)  # where they differ, the machine does
        return None if not step_ms or self._resized(levers) or self.objective.memory else TOO_SLOW * step_ms

    def _resized(self, levers: Sequence[records.Lever]) -> bool:
        return any(self.levers[lever.name].resizes_step for lever in levers if lever.name in self.levers)

    def value(self, trial: Trial) -> float:
        """What is to be small, of a trial that was measured. A price is a factor, so cost orders trials as time does.
        Raises NothingMeasured where memory counts and is not known."""
        return float(peak_bytes(trial)) if self.objective.memory else self.time(trial)

    def time(self, trial: Trial) -> float:
        """Ms a step; where a step holds another number of rows than the bare command's, ms for as many rows."""
        return (trial.step_ms or 0.0) * self.row_scale(trial)

    def row_scale(self, trial: Trial) -> float:
        """Steps of a trial that hold as many rows as one of the bare command's: 1 where no lever resizes them."""
        rows = self.bases[0].rows if self.bases else None
        return rows / trial.rows if rows and trial.rows and self._resized(trial.levers) else 1.0

    def other_work(self, trial: Trial) -> str | None:
        """Why its steps can't be compared with the bare command's: they held other numbers of rows, though no lever
        resizes them. In reinforcement learning, say, how long an episode lasts hangs on what the model computes."""
        known = [base.rows for base in self.bases if base.rows]
        if not trial.rows or not known or self.objective.memory or self._resized(trial.levers):
            return None
        most = ALIKE * max(known) / min(known)
        if min(known) / most <= trial.rows <= max(known) * most:
            return None
        held = f"its steps held {trial.rows:.3g} rows each, the bare command's {fmean(known):.3g}"
        return f"{held}: how much a step does hangs on what is computed, so their times can't be compared"

    def incumbent(self, levers: Sequence[records.Lever], trial: Trial, value: float) -> Incumbent:
        """A measured trial as the one to beat."""
        self.gained(trial)
        return Incumbent(list(levers), trial, self.trials.diagnosis(trial), self._facts_with(trial), value)

    def _facts_with(self, trial: Trial) -> Facts:
        """Those of the bare command, and of its masks what only a lever sees that is in."""
        seen = read_facts(self.trials.rank(trial).folder)
        empty: dict[str, float] = {}
        for root in seen.roots if seen else ():
            empty[root.name] = max(root.empty_blocks, empty.get(root.name, 0.0))
        roots = (msgspec.structs.replace(root, empty_blocks=empty.get(root.name, 0.0)) for root in self.facts.roots)
        return msgspec.structs.replace(self.facts, roots=tuple(roots))

    def gained(self, trial: Trial) -> None:
        """A trial showed a gain; what it took is what runs of the confirmation will take."""
        bare = fmean(self.value(base) for base in self.bases)
        self.budget.best_took(trial.wall_s, trial.warmup_s, bare / self.value(trial), trial.levers)

    def read_facts(self, trial: Trial) -> Facts:
        """What the script is made of: from the bare command, since levers change what is seen of it."""
        facts = read_facts(self.trials.rank(trial).folder)
        if facts is None:
            raise NothingMeasured(f"{trial.folder}: it was not told what the script is made of")
        return facts

    # decisions

    @property
    def given(self) -> tuple[records.Lever, ...]:
        """Levers without which the command does not run."""
        return self.proof.given

    def context(
        self, incumbent: Incumbent, active: Mapping[str, Settings] | None = None, left_ms: float | None = None
    ) -> Context:
        """What levers decide from; active: levers to suppose, by default the incumbent's. left_ms: the step that these
        are predicted to leave."""
        own = {lever.name: lever.settings for lever in incumbent.levers}
        chosen = own if active is None else dict(active)
        return Context(incumbent.diagnosis, incumbent.facts, self.trials.plan.environment, chosen, left_ms)

    def drop(
        self, name: str, why: str, ratio: float | None = None, remembered: bool = False, trial: Trial | None = None
    ) -> None:
        """A lever is not in the recipe. A measured reason stands against one that was not measured. trial: the one that
        failed with it."""
        known = self.found.dropped.get(name)
        if known is None or known.ratio is None or ratio is not None:
            failed = trial.id if trial is not None else None
            self.found.dropped[name] = Dropped(lever=name, why=why, ratio=ratio, remembered=remembered, trial=failed)

    def may_help_now(self, name: str) -> None:
        """Why a lever could not help an earlier incumbent is no reason any more: should the budget end before it is
        tried, that is told."""
        known = self.found.dropped.get(name)
        if known is not None and known.ratio is None and known.trial is None:
            del self.found.dropped[name]

    def refuse(self, use: records.Lever, why: str, ratio: float | None = None, trial: Trial | None = None) -> None:
        """A variant that can't be used; the lever is not tried again when the bound moves."""
        self.drop(use.name, why, ratio, trial=trial)
        self.refused.add(use.name)
        self.say(f"drop  {use_text(use)}  {f'{ratio:.2f}×  ' if ratio else ''}{why[:160]}")

    def blame(self, name: str, why: str, failed: Trial, ratio: float | None = None) -> None:
        """A set failed by this lever of it, which stands from here on: the budget may end before another trial does."""
        self.drop(name, why, ratio, trial=failed)
        self.refused.add(name)
        self.blamed[name] = failed

    def acquit(self, failed: Trial) -> None:
        """Levers that are blamed for what came without them too are not to blame."""
        without = [name for name in self.blamed if name not in {lever.name for lever in failed.levers}]
        for name in [name for name in without if _crashed_alike(self.blamed[name], failed)]:
            self.say(f"not so  {name} is not to blame: without it too {failed.why[:160]}")
            del self.blamed[name], self.found.dropped[name]
            self.refused.remove(name)

    def told_of(self, name: str) -> tuple[str, Trial | None]:
        """What was seen of a lever that is not tried to its end, and in which trial; nothing where another one of that
        trial has turned out to be at fault."""
        what, trial = self.showed.get(name, ("", None))
        if trial is None or any(lever.name in self.refused for lever in trial.levers):
            return "", None
        return f"; {what}", trial

    def leave_out(self, trial: Trial) -> None:
        """Levers that a trial could do without are not tried again, and not kept."""
        for one in trial.left_out:
            if one.lever.name in self.refused and one.lever.name in self.found.dropped:
                continue
            self.drop(one.lever.name, f"{'refused' if one.was_in else 'nothing to change'}: {one.why}")
            self.refused.add(one.lever.name)
            self.found.kept = [kept for kept in self.found.kept if kept.lever != one.lever.name]
            self.say(f"left out  {use_text(one.lever)}  {one.why[:160]}")

    def note(self, name: str, **changes: Any) -> None:
        """More is known of a kept lever."""
        at = next(i for i, kept in enumerate(self.found.kept) if kept.lever == name)
        self.found.kept[at] = msgspec.structs.replace(self.found.kept[at], **changes)

    def say(self, text: str) -> None:
        """A line for the listener."""
        self.trials.listener.result(text)

    def shown(self, trial: Trial) -> str:
        """What the objective measures of a trial, for a line."""
        return value_text(self.value(trial), self.objective)


def _crashed_alike(one: Trial, other: Trial) -> bool:
    """Whether two trials crashed of the same: a compiler tells it in other words, but names the same line."""
    same = one.why == other.why or (one.where is not None and one.where == other.where)
    return one.outcome == other.outcome == "crashed" and same


def value_text(value: float, objective: Objective) -> str:
    """A step time or a peak of memory."""
    return f"{three(value / 2**20)} MiB" if objective.memory else ms(value)


def by_text(share: float, decimals: int) -> str:
    """By how much two runs differ, in percent. What these digits can not show is not nothing."""
    if not share:
        return "not at all"
    shown = f"{share:.{decimals}%}"
    return f"by {shown}" if float(shown[:-1]) else f"by less than {10.0**-decimals:.{decimals}f}%"


def use_text(lever: records.Lever) -> str:
    """A lever with its settings."""
    settings = ", ".join(f"{key}={value}" for key, value in lever.settings.items())
    return f"{lever.name} ({settings})" if settings else lever.name
