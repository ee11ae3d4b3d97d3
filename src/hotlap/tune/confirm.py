"""Confirmation: the bare command and the recipe in fresh processes, in ABBA order, with parity of every run.

Where the machine is still, the second run of the baseline is the first A, so that the whole is A, the search, B B A,
and so on. It counts only if the A that is made at the end agrees with it; else the machine has drifted, and it is left
out. Where there seemed to be no time for that, and after one pair only a B fits, it may still be its A. Where the last
run before was a nudged twin, which is the bare command with its weights rounded once, that is the first A, on any
machine. No trial of the search is a B: those were chosen for being fast.

A pair is begun only where there is time for both of its runs. Pairs that are slower, by an A of now where there is time
for it, end it: what won in the search then is tried in parts (`Search.part`). Where the budget ends before pairs that
each show a gain prove it, they are kept in the journal, and `--resume` goes on with more of them.
"""

import math
from collections.abc import Sequence
from statistics import fmean, geometric_mean
from typing import Final

from hotlap.records import run as records
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.tune import Trial

from .budget import FEWEST_PAIRS, LONGER, MARGIN, compiles, log_ratio
from .candidates import LEAST_GAIN
from .objective import costs, peak_bytes, typical_bytes
from .pairs import all_gain, earlier_pairs
from .proof import NUDGES
from .state import State
from .statistics import abba, narrow, ratio_interval
from .trials import Special, names

MOST_PAIRS: Final = 8
PATIENCE: Final = 3.0
"""A run of the confirmation may take so many times what such a run took before, budget or not."""
OVER: Final = 0.05
"""Of the budget, by which pairs may exceed it without which what was found is lost: the fewest, and one more where all
of them show a gain and do not prove it."""
AGREES: Final = 0.01
LOST: Final = (3.0, 0.1)
"""One pair shows a loss where it is beyond this many times the noise, and beyond this (as logarithms)."""
REUSED: Final = "the first A of the confirmation is the baseline's second run, which agrees with a later one within 1%"
REUSED_TWIN: Final = "the first A of the confirmation is the nudged twin of the bare command that ran right before it"


def confirm(state: State) -> Trial | None:
    """Measure the incumbent against the bare command; what is not borne out is dropped. Returns the last run of a
    recipe that turned out to be slower."""
    state.confirming = True
    confirmation = Confirmation(state)
    confirmation.run()
    state.confirming = False
    return confirmation.after[-1] if confirmation.lost else None


def unconfirmed(state: State, why: str, measured: bool = True, ended: bool = True) -> None:
    """Nothing that was not proven goes into a recipe. What the command needs to fit is in again: see `fit.fitted`.
    measured: whether what the search measured of a lever still stands. ended: resuming does not go on with it."""
    state.found.gain = False
    for use in state.given:
        state.found.dropped.pop(use.name, None)
    for kept in state.found.kept:
        state.drop(kept.lever, why, kept.measured if measured else None)
    state.found.kept = []
    state.say(f"{'drop' if ended else 'open'}  all: {why}")


class Confirmation:
    """The pairs of one confirmation."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.levers = list(state.best.levers)
        self.before: list[Trial] = []
        self.after: list[Trial] = []
        self.took_s = {"A": state.budget.bare_s, "B": state.budget.best_s}
        """Wall time of a run of each side, the last that was made."""
        self.short = False
        """Whether the budget ended it."""
        self.reused = len(state.found.reused)

    def run(self) -> None:
        """Pairs until the interval is narrow or the time is up; then parity."""
        self._take_over()
        if self._twin_just_made():
            self.before.append(self.state.trials.done[-1])
            self.state.found.reused.append(REUSED_TWIN)
        elif self._may_reuse():
            self.before.append(self.state.bases[-1])
        against = "the bare command" if not self.state.given else names(self.state.given)
        self.state.say(f"confirm  {names(self.levers)} against {against}, in ABBA pairs")
        while letter := self._next():
            if self.lost or self._enough() or not (self._fits(letter) or self._takes_baseline(letter)):
                break
            if not self._made(letter):
                return
            if self.lost and self._beside_baseline() and not self._made("A"):
                return
        self._conclude()
        if self.lost:
            ratios = _ratios(*self._times())
            unconfirmed(self.state, f"not confirmed: slower beside the bare command, {ratios}", measured=False)
        else:
            self._parity()

    def _next(self) -> str:
        """The side to run: ABBAABBA..., or the one that a pair lacks; "" after the most pairs."""
        a, b = len(self.before), len(self.after)
        if a == b:
            return abba(a + 1)[2 * a] if a < MOST_PAIRS else ""
        return "A" if a < b else "B"

    @property
    def lost(self) -> bool:
        """Whether the pairs so far show a loss: all of the fewest, or one beyond what noise makes."""
        before, after = self._times()
        if self.state.objective.memory or not after or len(before) != len(after):
            return False
        least = min(math.log(two / one) for one, two in zip(before, after, strict=True))
        beyond = max(LOST[0] * (self.state.budget.noise or 0.0), LOST[1])
        return least > (0.0 if len(after) >= FEWEST_PAIRS else beyond)

    def _beside_baseline(self) -> bool:
        """Whether its only A is the baseline's second run, since which the machine may have slowed down; it is left
        out then, where there is time for another."""
        if len(self.before) > 1 or self.before[0] != self.state.bases[-1]:
            return False
        if self.state.budget.left() < self.took_s["A"]:
            return False
        self.before.clear()
        return True

    def _times(self) -> tuple[list[float], list[float]]:
        """Ms a step of the runs that were made: without the levers, with them."""
        return [self.state.time(one) for one in self.before], [self.state.time(two) for two in self.after]

    def _take_over(self) -> None:
        """Pairs of earlier sessions count."""
        trials, found = self.state.trials, self.state.found
        pairs = earlier_pairs(trials, self.state.given, self.levers)
        for before, after in pairs:
            trials.take(before)
            trials.take(after)
            self.before.append(before)
            self.after.append(after)
        if pairs:
            they_are = "is" if len(pairs) == 1 else "are"
            found.reused.append(
                f"{len(pairs)} of the confirmation's pairs {they_are} of an earlier session on this machine"
            )

    def _twin_just_made(self) -> bool:
        """Whether a nudged twin is the neighbour of the first B, with a step as long as that of the bare command. Its
        memory may differ, by what nudging took."""
        state, done = self.state, self.state.trials.done
        if self.before or state.objective.memory or not done or done[-1].purpose not in NUDGES:
            return False
        return done[-1].outcome == "measured" and done[-1].id not in state.trials.recalled

    def _may_reuse(self) -> bool:
        """Whether the baseline's second run can be an A: of this session, on a machine that is still, with time for the
        A that it has to agree with."""
        return self._stands(self.took_s["A"] + 2 * self.took_s["B"]) and not self.before

    def _stands(self, wanted_s: float) -> bool:
        state = self.state
        made_now = len(state.bases) > 1 and state.bases[-1].id not in state.trials.recalled
        in_time = state.budget.left() + OVER * state.budget.seconds >= wanted_s
        return state.budget.quiet and made_now and in_time

    def _takes_baseline(self, letter: str) -> bool:
        """Whether the baseline's second run is the A of the last of the fewest pairs, where only a B can be made."""
        baseline, missing = self.state.bases[-1], FEWEST_PAIRS - len(self.after)
        if letter != "B" or missing != 1 or baseline in self.before or not self._stands(self.took_s["B"]):
            return False
        if any(log_ratio(baseline.step_ms or math.nan, run.step_ms or math.nan) > AGREES for run in self.before):
            return False
        self.before.insert(0, baseline)
        self.state.found.reused.append(REUSED)
        return True

    def _made(self, letter: str) -> bool:
        state = self.state
        levers: Sequence[records.Lever] = state.given if letter == "A" else self.levers
        usual = max(state.budget.bare_s, state.budget.best_s)
        timeout = max(state.budget.timeout(levers), PATIENCE * usual)
        trying = tuple(kept.lever for kept in state.found.kept) if letter == "B" else ()
        trial = state.trials.run("confirm", levers, Special(longer_s=self._longer_s(), trying=trying), timeout)
        if trial.left_out:
            self._begin_anew(trial)
        if trial.outcome != "measured":
            unconfirmed(state, f"a confirmation run was not measured: {trial.why}")
            return False
        if any(one.was_in for one in trial.left_out):  # its first steps, of which parity is judged, are not the others'
            return True
        (self.before if letter == "A" else self.after).append(trial)
        self.took_s[letter] = trial.wall_s
        if letter == "A":
            self._check_reused(trial)
        return True

    def _begin_anew(self, trial: Trial) -> None:
        """Levers left themselves out of a run: it is one of the others, and no pair so far is."""
        state, found = self.state, self.state.found
        state.leave_out(trial)
        self.levers = list(trial.levers)
        self.after.clear()
        self.before = [one for one in self.before[-1:] if one.id not in state.trials.recalled]
        found.forget_confirmation()
        del found.reused[self.reused :]
        if self.before and self.before[0].purpose in NUDGES:
            found.reused.append(REUSED_TWIN)

    def _longer_s(self) -> float:
        """Seconds that its run measures beyond those of a trial, as long as that leaves time for the least pairs."""
        budget, mean_s = self.state.budget, sum(self.took_s.values()) / 2
        runs = max(1, 2 * budget.least_pairs - len(self.before) - len(self.after))
        return max(0.0, min(LONGER * mean_s, budget.left() / runs - mean_s))

    def _fits(self, letter: str) -> bool:
        """Whether there is time for a pair that begins, or for the rest of one."""
        done = min(len(self.before), len(self.after))
        wanted_s = sum(self.took_s.values()) if len(self.before) == len(self.after) else self.took_s[letter]
        budget = self.state.budget
        over_s = OVER * budget.seconds if done < FEWEST_PAIRS or self._open() else (1 - MARGIN) * wanted_s
        self.short = budget.left() + over_s < wanted_s
        return not self.short

    def _open(self) -> bool:
        """Whether all pairs show a gain, and do not prove it."""
        self._conclude()
        return self._not_proven() is not None and all_gain(*self._values())

    def _check_reused(self, trial: Trial) -> None:
        """The baseline's run stays if it agrees with the first A made now."""
        first = self.before[0]
        if first != self.state.bases[-1] or len(self.before) != 2:
            return
        if log_ratio(first.step_ms or math.nan, trial.step_ms or math.nan) <= AGREES:
            self.state.found.reused.append(REUSED)
        else:
            self.before.remove(first)

    def _enough(self) -> bool:
        pairs = len(self.after)
        if len(self.before) != pairs or pairs < FEWEST_PAIRS:
            return False
        self._conclude()
        return pairs >= self.state.budget.least_pairs and self._narrow()

    def _conclude(self) -> None:
        found, count = self.state.found, min(len(self.before), len(self.after))
        found.pairs = count
        if count < FEWEST_PAIRS:
            return
        before, after = self.before[:count], self.after[:count]
        a, b = [self.state.time(trial) for trial in before], [self.state.time(trial) for trial in after]
        found.speedup, found.interval = ratio_interval(a, b)
        found.before_ms, found.after_ms = geometric_mean(a), geometric_mean(b)
        found.memory = typical_bytes(before), typical_bytes(after)
        found.costs = costs(self.state.objective, before, after)
        found.baseline, found.tuned = self._typical(before, found.before_ms), self._typical(after, found.after_ms)
        found.break_even = self._break_even(fmean(a) - fmean(b))

    def _typical(self, runs: Sequence[Trial], mean_ms: float) -> Diagnosis:
        """Of the run whose step is nearest to what is said of all of them, so that its phases add up to about that."""
        nearest = min(runs, key=lambda run: abs(self.state.time(run) - mean_ms))
        return self.state.trials.diagnosis(nearest)

    def _narrow(self) -> bool:
        speedup, interval = self.state.found.speedup, self.state.found.interval
        return speedup is not None and interval is not None and narrow(speedup, interval)

    def _break_even(self, saved_ms: float) -> int | None:
        """Steps after which the recipe's first start, with what was not compiled yet, has paid for itself."""
        final = {lever.name for lever in self.levers}
        climbed = [t for t in self.state.trials.done if compiles(t.levers) and {x.name for x in t.levers} <= final]
        starts = climbed if compiles(self.levers) else self.after
        cold_s = max([trial.warmup_s or 0.0 for trial in starts], default=0.0)
        extra_s = cold_s - fmean(trial.warmup_s or 0.0 for trial in self.before)
        return max(0, math.ceil(extra_s / (saved_ms / 1000))) if saved_ms > 0 else None

    # verdict

    def _parity(self) -> None:
        for trial in self.after:
            other = self.state.other_work(trial)
            if other is not None:
                self.state.found.speedup = self.state.found.interval = None  # a ratio of unlike work is none
                unconfirmed(self.state, other)
                return
            parity = self.state.proof.judge(self.levers, trial)
            self.state.found.parity = parity
            if not parity.ok:
                unconfirmed(self.state, f"parity in a confirmation run: {parity.why}")
                return
        why = self._not_proven()
        self.state.found.gain = why is None
        if why is not None:
            early = self._ended_early()
            unconfirmed(self.state, early or f"not confirmed: {why}", ended=early is None)

    def _ended_early(self) -> str | None:
        """What to say where every pair that was made shows a gain and the budget ended before they proved it."""
        found, (before, after) = self.state.found, self._values()
        if not self.short or not (found.pairs == 0 or all_gain(before, after)):
            return None
        found.unproved = tuple(a / b for a, b in zip(before, after, strict=True))
        few = "1 pair was" if found.pairs == 1 else f"{found.pairs} pairs were"
        enough = f"{few} not enough for an interval above 1: {_ratios(before, after)}"
        unproved = enough if before else "no time was left for pairs"
        found.not_done = "; ".join(filter(None, (found.not_done, f"{unproved}; resuming goes on with them")))
        return f"not confirmed yet: {unproved}"

    def _values(self) -> tuple[list[float], list[float]]:
        """What counts, of the pairs that were made: without the levers, with them."""
        pairs, value = self.state.found.pairs, self.state.value
        return [value(one) for one in self.before[:pairs]], [value(two) for two in self.after[:pairs]]

    def _not_proven(self) -> str | None:
        """Why the pairs do not show what was to be gained, None if they do."""
        interval, objective = self.state.found.interval, self.state.objective
        if interval is None:
            return f"too few pairs for an interval: {_ratios(*self._values()) or 'none'}"
        shown = f"{interval.low:.2f}–{interval.high:.2f}"
        if not (objective.memory or interval.low > 1):
            return f"the 95% interval of the speed-up is {shown}"
        if not objective.memory:
            return None
        if interval.high < 1 / (1 + objective.slowdown):
            return f"a step is slower than is allowed; the 95% interval of the speed-up is {shown}"
        pairs = zip(self.before, self.after, strict=False)
        if any(peak_bytes(a) < LEAST_GAIN * peak_bytes(b) for a, b in pairs):
            return "less than 2% of memory saved in one of the pairs"
        return None


def _ratios(before: Sequence[float], after: Sequence[float]) -> str:
    """What each pair shows, as words."""
    return " and ".join(f"{a / b:.2f}×" for a, b in zip(before, after, strict=True))
