"""A command that does not fit, where it does: with a smaller batch, beside the same with the levers that made it fit.

Both alive at once and taking turns: what the levers cost a sample in time, both peaks, and parity as of any side.
Where the batch can't be made smaller from outside, `numeric` levers are not used to fit, since nothing would show that
learning is unchanged, and `exact` ones by their risk alone.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Final

from hotlap.experiment.judge import Judge
from hotlap.experiment.outcome import names
from hotlap.experiment.side import Side, Special
from hotlap.experiment.statistics import Ratio, within_process
from hotlap.experiment.turns import take_turns
from hotlap.levers._base import Context
from hotlap.levers._batches import standard
from hotlap.levers._smaller_batch import LEVER, NAME
from hotlap.records import run as records
from hotlap.records.durations import ms
from hotlap.records.tune import Parity, Reference, Trial

from .budget import BudgetSpent
from .objective import typical_bytes
from .state import State, interval_text

PARTS: Final = (2, 4, 8)
SHARE: Final = 0.5
"""Of the budget, that making a command fit may take with all that belongs to it."""
NO_TIME: Final = "half of the budget was used up"


class NoReference(Exception):
    """Why a command, or some levers, can't be measured with a smaller batch."""


class SmallerRuns:
    """Runs of the command with the largest part of its batch that fits, which is found when it is first needed."""

    def __init__(self, state: State, context: Context) -> None:
        self.state, self.settings = state, context.for_inference
        self.why = standard(context.facts.feeding) or ""
        """Why there are none; empty where there are, or may be."""
        self.parts = 0
        self.judge = Judge(state.bench, {**state.levers, NAME: LEVER}, self._run)

    def hold(self, uses: Sequence[records.Lever]) -> bool:
        """Measure levers with which the command fits, and note what came of it. Whether they may be used: those that
        fail parity are refused, and so are `numeric` ones of which it can't be known."""
        state, found = self.state, self.state.found
        found.reference, found.no_reference = None, ""
        try:
            told = self._measure([use for use in uses if not state.levers[use.name].resizes_step])
        except BudgetSpent:
            found.no_reference = self.why = NO_TIME
        except NoReference as error:
            found.no_reference = str(error)
        else:
            if told.parity.ok:
                found.reference = told
                state.say(f"reference  {_told(told)}")
                return True
            for use, parity in self._at_fault(told):
                state.refuse(use, f"parity with 1/{told.parts} of the batch: {parity.why}")
            return False
        state.say(f"reference  none: {found.no_reference}")
        numeric = [use for use in uses if state.levers[use.name].risk == "numeric"]
        for use in numeric if not self.why else ():
            state.refuse(use, f"its parity can't be proved: {found.no_reference}")
        return not numeric

    def _measure(self, uses: Sequence[records.Lever]) -> Reference:
        """Raises NoReference, BudgetSpent."""
        if not uses:
            raise NoReference("with these levers a step has other samples")
        self._find()
        self._afford()
        state, given = self.state, self.judge.given
        sets = (given, given, (*given, *uses))
        sides = [state.start("reference", levers) for levers in sets]
        state.bench.ready(*sides)
        rounds: list[dict[int, float]] = []
        if all(side.ready for side in sides):
            rounds = take_turns(state.bench, [sides[0], sides[2]], seconds=state.budget.turns_s(2))
        else:  # memory does not hold them beside each other
            state.bench.end_all()
            for at, levers in enumerate(sets):
                sides[at] = state.start("reference", levers)
                state.bench.ready(sides[at])
                state.bench.end(sides[at])
        for side in sides:
            if side.measured.outcome != "measured":
                raise NoReference(f"with 1/{self.parts} of the batch a run {_ended(side.measured)}")
            state.bench.end(side)
        return self._compare(uses, sides, rounds)

    def _find(self) -> None:
        """The largest part of the batch that fits. Raises NoReference, BudgetSpent."""
        if self.parts:
            return
        for parts in PARTS if not self.why else ():
            smaller = records.Lever(name=NAME, settings={"parts": parts, **self.settings})
            trial = self._run("reference", (smaller,))
            measured = trial.outcome == "measured"
            came_of_it = ms(trial.step_ms or 0.0) if measured else trial.outcome
            self.state.say(f"reference  the command alone with 1/{parts} of the batch  {came_of_it}")
            if measured:
                self.state.budget.run_took(trial)
                self.parts, self.judge.given, self.why = parts, (smaller,), ""
                return
            self.why = f"the command alone with 1/{parts} of the batch {_ended(trial)}"
            if trial.outcome != "memory":
                break
        raise NoReference(self.why)

    def _compare(
        self, uses: Sequence[records.Lever], sides: Sequence[Side], rounds: list[dict[int, float]]
    ) -> Reference:
        """What turns, or else single runs, show."""
        state, (before, again, after) = self.state, sides
        if rounds:
            ratio = within_process([math.log(turn[after.number] / turn[before.number]) for turn in rounds])
        else:
            ratio = Ratio((after.measured.step_ms or math.nan) / (before.measured.step_ms or math.nan), None)
        self.judge.base, self.judge.again = (state.bench.evidence(side.measured) for side in (before, again))
        before_ms = fmean(turn[before.number] for turn in rounds) if rounds else before.measured.step_ms or math.nan
        return Reference(
            parts=self.parts,
            levers=tuple(uses),
            time_ratio=ratio.ratio,
            interval=ratio.interval,
            turns=len(rounds),
            before_ms=before_ms,
            after_ms=before_ms * ratio.ratio,
            memory_before_bytes=typical_bytes([before.measured]),
            memory_after_bytes=typical_bytes([after.measured]),
            parity=self._judge(uses, after.measured),
        )

    def _judge(self, uses: Sequence[records.Lever], trial: Trial) -> Parity:
        return self.judge.judge((*self.judge.given, *uses), trial)

    def _at_fault(self, told: Reference) -> list[tuple[records.Lever, Parity]]:
        """Levers that fail parity by themselves; where none of several does, the last of them, with theirs together."""
        last = [(told.levers[-1], told.parity)]
        if len(told.levers) == 1:
            return last
        try:
            alone = [(use, self._judge([use], self._run("reference", (*self.judge.given, use)))) for use in told.levers]
        except BudgetSpent:
            return last
        return [(use, parity) for use, parity in alone if not parity.ok] or last

    def _run(self, purpose: str, levers: Sequence[records.Lever], special: Special | None = None) -> Trial:
        """Make a run. Raises BudgetSpent where the share of the budget does not last for it."""
        self._afford()
        return self.state.run(purpose, levers, special)

    def _afford(self) -> None:
        budget = self.state.budget
        if budget.left < SHARE * budget.seconds + budget.best_start_s:
            raise BudgetSpent(NO_TIME)


def _ended(trial: Trial) -> str:
    """How a run ended that was not measured, in words that follow its name."""
    if trial.outcome == "memory":
        return "runs out of memory too"
    if trial.outcome == "refused":
        return f"was refused: {trial.why.removeprefix(f'{NAME} could not be put in: ')}"
    return f"failed ({trial.outcome}: {trial.why})"


def _told(told: Reference) -> str:
    """A line of what was measured."""
    shown = interval_text(told.interval)
    none = "no difference shown, " if told.interval and told.interval.low <= 1 <= told.interval.high else ""
    return (
        f"{names(told.levers)} beside the command alone, with 1/{told.parts} of the batch: "
        f"{none}{told.time_ratio:.2f}× of the time{shown}  {told.parity.level}"
    )
