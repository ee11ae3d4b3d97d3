"""The search: which lever next, keep or drop, until nothing is left that could win.

Greedy, by what each lever can still win: after every kept lever the bound is read again from the trial that kept it,
so that a lever whose bound has come up is tried even if it could not win before. Then leave-one-out, so that no
passenger stays, and confirmation in ABBA pairs of fresh processes.
"""

import math
import time
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from hotlap.levers import _pinned_draws, all_levers
from hotlap.levers._base import Context, Lever, Settings
from hotlap.records import run as records
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.errors import CommandFailed, NothingMeasured
from hotlap.records.files import read_facts
from hotlap.records.run import Facts
from hotlap.records.tune import Dropped, Interval, Kept, Parity, Trial

from .parity import MOST_TOLERANCE, Evidence, Rule, Twins, gaps, judge
from .statistics import abba, half_width, ratio_interval
from .trials import Special, Trials, names

LEAST_GAIN: Final = 1.02
UNSURE: Final = (1.03, 1.12)
"""Ratios within three times the noise of two baselines, and within these bounds, are measured again before they decide:
the least is for machines that are still, the most for noisy ones (where noise itself exceeds it, noise decides)."""
BEYOND: Final = 3.0
"""A gain beyond this many times (in logarithms) what its lever can win at most is measured again: more likely the
machine was slow when the incumbent was measured."""
LEAST_SHARE: Final = 0.02
NUDGE: Final = 2.0**-9
"""Half a unit in the last place of bfloat16 (8 significant bits), relative."""
SAME_RANDOM: Final = "in a run of its own that draws the same random numbers as without the lever"
PAIRS: Final = (3, 8)
NARROW: Final = (0.03, 0.1)
"""Confirmation ends early where the interval's half-width is below 3%, or below a tenth of the gain's logarithm."""
COMPILE_TIMEOUT_S: Final = 300.0


class BudgetSpent(Exception):
    """No time is left for another trial."""


@dataclass
class Incumbent:
    """The best so far."""

    levers: list[records.Lever]
    trial: Trial
    diagnosis: Diagnosis
    facts: Facts
    step_ms: float


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


class Search:
    """One tune of one command."""

    def __init__(
        self, trials: Trials, budget_s: float, only: tuple[str, ...], without: tuple[str, ...], semantic: bool = False
    ) -> None:
        self.trials = trials
        self.budget_s = budget_s
        self.deadline = time.monotonic() + budget_s
        self.only, self.without, self.semantic = only, without, semantic
        self.found = Found()
        self.base: Evidence = Evidence(())
        self.again: Evidence = Evidence(())
        self.base_trial: Trial | None = None
        self.best: Incumbent
        self._twins: dict[str, Evidence | None] = {}
        self.base_wall_s = 0.0
        self.refused: set[str] = set()
        self._proven: dict[str, Parity] = {}

    # the whole

    def run(self) -> Found:
        """Baseline, search, leave-one-out, confirmation. KeyboardInterrupt leaves `found` as far as it got."""
        self.best = self.baseline()
        try:
            self.climb()
            self.leave_one_out()
        except BudgetSpent:
            self._note_unfinished()
        if self.best.levers:
            try:
                self.confirm(self.best)
            except BudgetSpent:
                self._unconfirmed("no time was left to prove parity in the confirmation")
        return self.found

    def baseline(self) -> Incumbent:
        """Two runs of the bare command. Raises CommandFailed, NothingMeasured."""
        first = self.trials.run("baseline", (), timeout_s=self._left() / 2)
        if first.outcome in {"crashed", "memory"}:
            raise CommandFailed(f"the command itself fails, without any lever: {first.why} (see {self._output(first)})")
        if first.outcome != "measured":
            raise NothingMeasured(f"{first.why} (see {self._output(first)})")
        self.base_wall_s = first.wall_s
        self.trials.timeout_s = 4 * first.wall_s + 30
        second = self.trials.run("baseline", (), timeout_s=self._timeout([]))
        if second.outcome != "measured":
            raise CommandFailed(f"the command does not run twice alike: {second.why} (see {self._output(second)})")
        self.base, self.again = self.trials.evidence(first), self.trials.evidence(second)
        self.base_trial = first
        diagnosis, facts = self.trials.diagnosis(second), self._facts(second)
        times = [t.step_ms for t in (first, second) if t.step_ms is not None]
        self.found.baseline = diagnosis
        self.found.noise = abs(math.log(times[0] / times[1]))
        self.found.seeded = facts.seeded
        own = gaps(self.base, self.again)
        in_loss = "not at all" if own.none else f"by {own.loss:.2%}"
        self._say(
            f"baseline  {_ms(_mean(times))}  {diagnosis.bound}-bound; "
            f"two runs differ by {self.found.noise:.1%} in time, {in_loss} in loss"
        )
        return Incumbent([], second, diagnosis, facts, _mean(times))

    def climb(self) -> None:
        """Try levers until none is left that could win; `best` moves as they are kept."""
        tried: set[tuple[str, str]] = set()
        while True:
            choice = self._next(self.best, tried)
            if choice is None:
                return
            lever, share = choice
            tried.add((lever.name, self.best.diagnosis.bound))
            self.best = self._try(self.best, lever, share)

    def leave_one_out(self) -> None:
        """Take out each lever without which the step is no slower. The last one in was just measured so."""
        for kept in list(self.found.kept)[:-1]:
            rest = [lever for lever in self.best.levers if lever.name != kept.lever]
            if kept.lever == "loader-workers" and any(lever.name == "device-prefetch" for lever in rest):
                continue  # the one needs the other
            trial = self._trial(f"without {kept.lever}", rest)
            if trial.outcome != "measured" or trial.step_ms is None:
                continue
            worth = trial.step_ms / self.best.step_ms
            if self._unsure(worth):
                worth = 1 / self._again(self.best, rest, f"without {kept.lever}", trial)
            self._note_alone(kept, worth)
            if worth >= LEAST_GAIN:
                continue
            self._drop(
                kept.lever, f"no gain beside the others: without it a step takes {worth:.2f} of the time", kept.measured
            )
            self._say(f"drop  {kept.lever}  no gain beside the others ({worth:.2f}×)")
            self.found.kept = [other for other in self.found.kept if other.lever != kept.lever]
            step_ms = min(self.best.step_ms, trial.step_ms)
            self.best = Incumbent(rest, trial, self.trials.diagnosis(trial), self._facts(trial), step_ms)
            self.found.tuned = self.best.diagnosis

    def confirm(self, incumbent: Incumbent) -> None:
        """ABBA pairs of fresh processes: the speed-up with its interval, and parity of every run."""
        self._say(f"confirm  {names(incumbent.levers)} against the bare command, in ABBA pairs")
        before: list[Trial] = []
        after: list[Trial] = []
        for letter in abba(PAIRS[1]):
            paired = min(len(before), len(after))
            if len(before) == len(after) and paired >= 2:
                self._conclude(before, after)
                left_short = self._left() < 1.1 * (before[-1].wall_s + after[-1].wall_s)
                if left_short or (paired >= PAIRS[0] and self._narrow()):
                    break
            levers: list[records.Lever] = [] if letter == "A" else incumbent.levers
            trial = self.trials.run("confirm", levers, timeout_s=max(self._timeout(levers), 2 * self.base_wall_s))
            if trial.outcome != "measured":
                self._unconfirmed(f"a confirmation run was not measured: {trial.why}")
                return
            (before if letter == "A" else after).append(trial)
        self._conclude(before, after)
        self._parity_of_confirmation(incumbent, after)

    # steps of the climb

    def _next(self, incumbent: Incumbent, tried: set[tuple[str, str]]) -> tuple[Lever, float] | None:
        """The lever that can win most, of those that apply and were not tried under this bound."""
        context = self._context(incumbent)
        best: tuple[Lever, float] | None = None
        for lever in all_levers().values():
            if lever.name in context.active or (lever.name, context.diagnosis.bound) in tried:
                continue
            if lever.name in self.refused:
                continue
            why = self._excluded(lever, context)
            if why is not None:
                self._drop(lever.name, why)
                continue
            share = lever.share(context)
            if share < LEAST_SHARE:
                self._drop(lever.name, f"could win at most {share:.1%} of the step here")
                continue
            if best is None or share > best[1]:
                best = (lever, share)
        return best

    def _excluded(self, lever: Lever, context: Context) -> str | None:
        if self.only and lever.name not in self.only:
            return "left out by --only"
        if lever.name in self.without:
            return "left out by --without"
        if lever.risk == "semantic" and not self.semantic:
            return "changes training; only with --allow semantic"
        clash = [name for name in context.active if name in lever.excludes or lever.name in all_levers()[name].excludes]
        if clash:
            return f"can't be used with {clash[0]}"
        applies = lever.applies(context)
        return None if applies.yes else applies.why

    def _try(self, incumbent: Incumbent, lever: Lever, share: float) -> Incumbent:
        """Try a lever's variants; returns the new incumbent."""
        predicted = 1 / (1 - min(share, 0.95))
        variants = lever.variants(self._context(incumbent))
        best: tuple[Trial, float, Settings, Parity] | None = None
        try:
            for settings in variants[:3]:
                use = records.Lever(name=lever.name, settings=settings)
                levers = [*incumbent.levers, use]
                trial = self._trial(f"try {lever.name}", levers)
                if trial.outcome != "measured" or trial.step_ms is None:
                    self._refuse(lever, use, f"{trial.outcome}: {trial.why}")
                    continue
                ratio = incumbent.step_ms / trial.step_ms
                if self._unsure(ratio) or math.log(ratio) > BEYOND * math.log(predicted):
                    ratio = self._again(incumbent, levers, f"try {lever.name}", trial)
                if ratio < LEAST_GAIN or (best is not None and ratio < best[1] * LEAST_GAIN):
                    if best is None:
                        self._drop(lever.name, "slower" if ratio < 1 / LEAST_GAIN else "no gain", ratio)
                        self._say(f"drop  {_use(use)}  {_ms(trial.step_ms)}  {ratio:.2f}×")
                    if ratio < LEAST_GAIN and best is None:
                        continue
                    break
                parity = self._judge(levers, trial)
                trial = self.trials.amend(trial, ratio=ratio, parity=parity)
                if not parity.ok:
                    self._refuse(lever, use, f"parity: {parity.why}", ratio)
                    continue
                best = (trial, ratio, settings, parity)
                if not lever.compare_variants:
                    break
        except BudgetSpent:
            if best is None:
                raise  # a variant that was measured and judged stands, whatever others might have been worth
        if best is None:
            return incumbent
        return self._keep(incumbent, lever, best, predicted)

    def _unsure(self, ratio: float) -> bool:
        """Whether noise could have made this ratio."""
        noise = self.found.noise or 0.0
        if ratio < 1:  # a gain that noise has hidden; nothing is kept for being slower
            return -math.log(ratio) < min(2 * noise, math.log(UNSURE[1]))
        return math.log(ratio) < max(noise, min(max(3 * noise, math.log(UNSURE[0])), math.log(UNSURE[1])))

    def _refuse(self, lever: Lever, use: records.Lever, why: str, ratio: float | None = None) -> None:
        """A variant that can't be used; the lever is not tried again when the bound moves."""
        self._drop(lever.name, why, ratio)
        self.refused.add(lever.name)
        self._say(f"drop  {_use(use)}  {f'{ratio:.2f}×  ' if ratio else ''}{why[:160]}")

    def _keep(
        self, incumbent: Incumbent, lever: Lever, best: tuple[Trial, float, Settings, Parity], predicted: float
    ) -> Incumbent:
        trial, ratio, settings, parity = best
        use = records.Lever(name=lever.name, settings=settings)
        self.found.dropped.pop(lever.name, None)
        self.found.kept.append(
            Kept(
                lever=lever.name,
                settings=settings,
                risk=lever.risk,
                meaning=lever.meaning,
                predicted=predicted,
                measured=ratio,
                parity=parity,
                source=lever.source(settings),
            )
        )
        self.found.parity = parity
        diagnosis = self.trials.diagnosis(trial)
        self.found.tuned = diagnosis
        step_ms = incumbent.step_ms / ratio
        self._say(
            f"keep  {_use(use)}  {_ms(step_ms)}  {ratio:.2f}× (at most {predicted:.2f}× predicted)  "
            f"{parity.level}; now {diagnosis.bound}-bound"
        )
        return Incumbent([*incumbent.levers, use], trial, diagnosis, self._facts(trial), step_ms)

    def _again(self, incumbent: Incumbent, levers: list[records.Lever], purpose: str, first: Trial) -> float:
        """A second look at an uncertain ratio: incumbent and candidate once more, one after the other.

        Two looks that disagree about the direction are no gain. Raises BudgetSpent before the pair, not in its middle.
        """
        ratio = incumbent.step_ms / (first.step_ms or math.nan)
        self._afford(incumbent.trial.wall_s + first.wall_s)
        one = self._trial("incumbent again", incumbent.levers)
        two = self._trial(f"{purpose} again", levers)
        if one.step_ms is None or two.step_ms is None:
            return ratio
        second = one.step_ms / two.step_ms
        return math.sqrt(ratio * second) if (ratio - 1) * (second - 1) > 0 else min(ratio, second, 1.0)

    def _afford(self, seconds: float) -> None:
        """Raises BudgetSpent where so many seconds are not left beside the confirmation."""
        if self._left() < self._reserve() + seconds:
            raise BudgetSpent

    # parity

    def _judge(self, levers: list[records.Lever], trial: Trial) -> Parity:
        evidence = self.trials.evidence(trial)
        parity = judge(self._rule(levers), self.base, self.again, evidence, self._twin_runs(levers))
        if parity.ok or not self.base.draws:
            return parity
        same = [_for_parity(lever) for lever in levers]
        if same == levers or parity.level == "refused":
            return parity
        key = repr(same)
        if key not in self._proven:
            own = self._trial("parity", same)
            if own.outcome != "measured":
                return parity
            proof = judge(self._rule(levers), self.base, self.again, self.trials.evidence(own), self._twin_runs(same))
            self.trials.amend(own, parity=proof)
            self._proven[key] = msgspec.structs.replace(proof, why=f"{proof.why} ({SAME_RANDOM})")
        return self._proven[key]

    @staticmethod
    def _rule(levers: list[records.Lever]) -> Rule:
        known = [all_levers()[lever.name] for lever in levers]
        tolerance = min(MOST_TOLERANCE, sum(lever.tolerance for lever in known))
        return Rule(any(lever.risk != "exact" for lever in known), tolerance, any(lever.redraws for lever in known))

    def _twin_runs(self, levers: list[records.Lever]) -> Twins:
        return Twins(
            nudged=[
                lambda: self._twin("nudged twin", Special(nudge=NUDGE)),
                lambda: self._twin("second nudged twin", Special(nudge=-NUDGE)),
            ],
            redrawn=[
                lambda: self._twin("redrawn twin", Special(redraw=self.trials.plan.seed + 4049)),
                lambda: self._twin("second redrawn twin", Special(redraw=self.trials.plan.seed + 8101)),
            ],
            pinned=lambda: self._pinned(levers),
        )

    def _pinned(self, levers: list[records.Lever]) -> tuple[Evidence, Evidence] | None:
        """The bare command and the trial again, with the random draws of each sample pinned; each made once."""
        pin = records.Lever(name=_pinned_draws.NAME)
        one = self._twin("pinned twin", Special(), [pin])
        two = self._twin(f"pinned {names(levers)}", Special(), [*levers, pin])
        return None if one is None or two is None else (one, two)

    def _twin(self, purpose: str, special: Special, levers: list[records.Lever] | None = None) -> Evidence | None:
        key = f"{purpose} {levers}"
        if key not in self._twins:
            trial = self.trials.run(purpose, levers or [], special, self._timeout(levers or []))
            self._twins[key] = self.trials.evidence(trial) if trial.outcome == "measured" else None
        return self._twins[key]

    # confirmation

    def _conclude(self, before: list[Trial], after: list[Trial]) -> None:
        count = min(len(before), len(after))
        if count < 2:
            return
        a = [trial.step_ms or math.nan for trial in before[:count]]
        b = [trial.step_ms or math.nan for trial in after[:count]]
        self.found.speedup, self.found.interval = ratio_interval(a, b)
        self.found.pairs = count
        self.found.before_ms, self.found.after_ms = _geometric(a), _geometric(b)
        self.found.tuned = self.trials.diagnosis(after[-1])
        saved_s = (_mean(a) - _mean(b)) / 1000
        extra_s = self._cold_start_s(after) - _start_s(before)
        self.found.break_even = max(0, math.ceil(extra_s / saved_s)) if saved_s > 0 else None

    def _narrow(self) -> bool:
        """Whether another pair would tell the user nothing: by the width, whatever the direction of the change."""
        speedup, interval = self.found.speedup, self.found.interval
        if speedup is None or interval is None:
            return False
        return half_width(interval) < max(NARROW[0], NARROW[1] * abs(math.log(speedup)))

    def _parity_of_confirmation(self, incumbent: Incumbent, after: list[Trial]) -> None:
        for trial in after:
            parity = self._judge(incumbent.levers, trial)
            self.found.parity = parity
            if not parity.ok:
                self._unconfirmed(f"parity in a confirmation run: {parity.why}")
                return
        interval = self.found.interval
        if interval is None or interval.low <= 1:
            shown = f"{interval.low:.2f}–{interval.high:.2f}" if interval else "none"
            self._unconfirmed(f"not confirmed: the 95% interval of the speed-up is {shown}")

    def _unconfirmed(self, why: str) -> None:
        """Nothing that was not proven goes into a recipe."""
        for kept in self.found.kept:
            self._drop(kept.lever, why, kept.measured)
        self.found.kept = []
        self._say(f"drop  all: {why}")

    # small things

    def _trial(self, purpose: str, levers: list[records.Lever]) -> Trial:
        if purpose != "parity":
            self._afford(1.1 * max(self.base_wall_s, self.best.trial.wall_s))
        return self.trials.run(purpose, levers, timeout_s=self._timeout(levers))

    def _timeout(self, levers: list[records.Lever]) -> float:
        compiling = any(lever.name == "compile" for lever in levers)
        limit = self.trials.timeout_s + (COMPILE_TIMEOUT_S if compiling else 0)
        return max(30.0, min(limit, self._left()))

    def _reserve(self) -> float:
        """Seconds that the confirmation needs, at most half of the budget."""
        pairs_s = 1.1 * PAIRS[0] * (self.base_wall_s + max(self.base_wall_s, self.best.trial.wall_s))
        return min(pairs_s, 0.5 * self.budget_s)

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    def _cold_start_s(self, after: list[Trial]) -> float:
        """Warm-up of the recipe's first start, s: with what torch.compile had not cached yet, as the climb saw it."""
        final = {lever.name for lever in after[0].levers}
        climbed = [trial for trial in self.trials.done if trial.levers and {x.name for x in trial.levers} <= final]
        return max([trial.warmup_s or 0.0 for trial in climbed], default=_start_s(after))

    def _note_unfinished(self) -> None:
        """The budget ended the search: what was not tried to its end is said, each lever by name."""
        context = self._context(self.best)
        open_levers = [
            lever.name
            for lever in all_levers().values()
            if lever.name not in context.active
            and lever.name not in self.refused
            and lever.name not in self.found.dropped
            and self._excluded(lever, context) is None
        ]
        for name in open_levers:
            self._drop(name, "the budget ended before it was tried to the end")
        untried = f"; not tried to the end: {', '.join(open_levers)}" if open_levers else ""
        self.found.not_done = f"the budget ended the search before leave-one-out was done{untried}"
        self._say(f"budget  {self.found.not_done}")

    def _context(self, incumbent: Incumbent) -> Context:
        active: dict[str, Any] = {lever.name: lever.settings for lever in incumbent.levers}
        return Context(incumbent.diagnosis, incumbent.facts, self.trials.plan.environment, active)

    def _facts(self, trial: Trial) -> Facts:
        """What the script is made of: from the bare command, since levers change what is seen of it."""
        assert self.base_trial is not None
        facts = read_facts(self.trials.rank(self.base_trial).folder)
        if facts is None:
            raise NothingMeasured(f"{trial.folder}: the process died before it could say what the script is made of")
        return facts

    def _drop(self, name: str, why: str, ratio: float | None = None) -> None:
        known = self.found.dropped.get(name)
        if known is None or known.ratio is None or ratio is not None:
            self.found.dropped[name] = Dropped(lever=name, why=why, ratio=ratio)

    def _note_alone(self, kept: Kept, worth: float) -> None:
        at = next(i for i, other in enumerate(self.found.kept) if other.lever == kept.lever)
        self.found.kept[at] = msgspec.structs.replace(kept, leave_one_out=worth)

    def _output(self, trial: Trial) -> str:
        return str(self.trials.plan.folder / trial.folder / "output.txt")

    def _say(self, text: str) -> None:
        self.trials.listener.result(text)


def _for_parity(lever: records.Lever) -> records.Lever:
    settings = all_levers()[lever.name].for_parity(lever.settings)
    return lever if settings is None else records.Lever(name=lever.name, settings=settings)


def _use(lever: records.Lever) -> str:
    settings = ", ".join(f"{key}={value}" for key, value in lever.settings.items())
    return f"{lever.name} ({settings})" if settings else lever.name


def _ms(value: float) -> str:
    return f"{value:.4g} ms"


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _geometric(values: list[float]) -> float:
    return math.exp(_mean([math.log(value) for value in values]))


def _start_s(trials: list[Trial]) -> float:
    """Mean seconds that steady steps did not take: start, compilation, warm-up."""
    return _mean([trial.warmup_s or 0.0 for trial in trials])
