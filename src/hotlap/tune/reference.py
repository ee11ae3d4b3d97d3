"""A command that does not fit, where it does: with a smaller batch, beside the same with the levers that made it fit.

Both in fresh processes, in ABBA order: what the levers cost a sample in time, both peaks, and parity as of any trial.
Where the batch can't be made smaller from outside, `numeric` levers are not used to fit, since nothing would show that
learning is unchanged, and `exact` ones by their risk alone.
"""

from collections.abc import Sequence
from statistics import geometric_mean
from typing import Final

from hotlap.levers._base import Context
from hotlap.levers._batches import standard
from hotlap.levers._smaller_batch import LEVER, NAME
from hotlap.records import run as records
from hotlap.records.tune import Parity, Reference, Trial

from .budget import FEWEST_PAIRS, BudgetSpent
from .confirm import MOST_PAIRS
from .objective import typical_bytes
from .proof import Proof
from .state import State
from .statistics import abba, narrow, ratio_interval
from .trials import Special, names

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
        self.why = standard(context.training_loader) or ""
        """Why there are none; empty where there are, or may be."""
        self.parts = 0
        self.unpaired: list[Trial] = []
        """The run that found the part, until it is one of a pair."""
        self.proof = Proof(state.trials, {**state.levers, NAME: LEVER}, self._run)

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
            raise NoReference("with these levers a step holds other samples")
        self._find()
        before, self.unpaired = self.unpaired, []
        after: list[Trial] = []
        told: Reference | None = None
        try:
            for letter in abba(MOST_PAIRS)[len(before) :]:
                trial = self._run("reference", (*self.proof.given, *(uses if letter == "B" else ())))
                if trial.outcome != "measured":
                    raise NoReference(f"with 1/{self.parts} of the batch a run {_ended(trial)}")
                (before if letter == "A" else after).append(trial)
                if len(before) == len(after) >= FEWEST_PAIRS:
                    told = self._compare(uses, before, after)
                if told is not None and (not told.parity.ok or narrow(told.time_ratio, told.interval)):
                    break
        except BudgetSpent:
            if told is None:
                raise
        if told is None:  # pairs that sessions have ended in the middle of
            raise BudgetSpent
        return told

    def _find(self) -> None:
        """The largest part of the batch that fits. Raises NoReference, BudgetSpent."""
        if self.parts:
            return
        for parts in PARTS if not self.why else ():
            smaller = records.Lever(name=NAME, settings={"parts": parts, **self.settings})
            trial = self._run("reference", (smaller,))
            measured = trial.outcome == "measured"
            came_of_it = self.state.shown(trial) if measured else trial.outcome
            self.state.say(f"reference  the command alone with 1/{parts} of the batch  {came_of_it}")
            if measured:
                self.state.budget.baseline_took(trial.wall_s, trial.warmup_s)
                self.parts, self.unpaired, self.proof.given, self.why = parts, [trial], (smaller,), ""
                return
            self.why = f"the command alone with 1/{parts} of the batch {_ended(trial)}"
            if trial.outcome != "memory":
                break
        raise NoReference(self.why)

    def _compare(self, uses: Sequence[records.Lever], before: list[Trial], after: list[Trial]) -> Reference | None:
        """What the pairs show, None where too few are of one session. Raises BudgetSpent."""
        pairs = [(one, two) for one, two in zip(before, after, strict=True) if one.session == two.session]
        if len(pairs) < FEWEST_PAIRS:
            return None
        a, b = [self.state.time(one) for one, _ in pairs], [self.state.time(two) for _, two in pairs]
        time_ratio, interval = ratio_interval(b, a)
        self.proof.base, self.proof.again = map(self.state.trials.evidence, before[:2])
        judged: list[Parity] = []
        for trial in after:
            judged.append(self._judge(uses, trial))
            if not judged[-1].ok:
                break
        return Reference(
            parts=self.parts,
            levers=tuple(uses),
            time_ratio=time_ratio,
            interval=interval,
            pairs=len(pairs),
            before_ms=geometric_mean(a),
            after_ms=geometric_mean(b),
            memory_before_bytes=typical_bytes(before),
            memory_after_bytes=typical_bytes(after),
            parity=judged[-1],
        )

    def _judge(self, uses: Sequence[records.Lever], trial: Trial) -> Parity:
        return self.proof.judge((*self.proof.given, *uses), trial)

    def _at_fault(self, told: Reference) -> list[tuple[records.Lever, Parity]]:
        """Levers that fail parity by themselves; where none of several does, the last of them, with theirs together."""
        last = [(told.levers[-1], told.parity)]
        if len(told.levers) == 1:
            return last
        try:
            alone = [(use, self._judge([use], self._run("reference", (*self.proof.given, use)))) for use in told.levers]
        except BudgetSpent:
            return last
        return [(use, parity) for use, parity in alone if not parity.ok] or last

    def _run(self, purpose: str, levers: Sequence[records.Lever], special: Special | None = None) -> Trial:
        """Make a run. Raises BudgetSpent where the share of the budget does not last for it."""
        budget, trials = self.state.budget, self.state.trials
        beside_s = SHARE * budget.seconds
        if budget.left() < beside_s + budget.trial_s and not trials.knows(purpose, levers):
            raise BudgetSpent
        timeout_s = budget.timeout(levers, beside_s)
        trial = trials.run(purpose, levers, special or Special(), timeout_s)
        if trial.outcome == "timeout" and timeout_s < budget.patience(levers):
            raise BudgetSpent
        return trial


def _ended(trial: Trial) -> str:
    """How a run ended that was not measured, in words that follow its name."""
    if trial.outcome == "memory":
        return "runs out of memory too"
    if trial.outcome == "refused":
        return f"was refused: {trial.why.removeprefix(f'{NAME} could not be put in: ')}"
    return f"came to nothing ({trial.outcome}: {trial.why})"


def _told(told: Reference) -> str:
    """A line of what was measured."""
    low, high = told.interval.low, told.interval.high
    none = "no difference shown, " if low <= 1 <= high else ""
    return (
        f"{names(told.levers)} beside the command alone, with 1/{told.parts} of the batch: "
        f"{none}{told.time_ratio:.2f}× of the time ({low:.2f}–{high:.2f})  {told.parity.level}"
    )
