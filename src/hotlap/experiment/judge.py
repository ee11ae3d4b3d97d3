"""Parity of sides: runs the twins that a judgement needs, each once, and remembers what they showed."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from hotlap.levers import _pinned_draws
from hotlap.levers._base import Lever
from hotlap.records import run as records
from hotlap.records.tune import Parity, Trial

from .evidence import Evidence, gaps
from .outcome import names
from .parity import MOST_TOLERANCE, Rule, Twins, judge
from .side import Bench, Special

NUDGE: Final = 2.0**-9
"""Half a unit in the last place of bfloat16 (8 significant bits), relative."""
NUDGES: Final = {
    "nudged twin": NUDGE,
    "second nudged twin": -NUDGE,
    "third nudged twin": NUDGE * (1 + 2.0**-20),
    "fourth nudged twin": -NUDGE * (1 + 2.0**-20),
}
"""Each size has signs of its own (`agent.probe.nudge`)."""
REDRAWS: Final = {"redrawn twin": 4049, "second redrawn twin": 8101}
"""Added to the seed."""
SAME_RANDOM: Final = "in a separate run that draws the same random numbers as without the lever"
RESIZED: Final = "not compared: steps have other samples, as you allowed, so their losses do not compare"
Run = Callable[[str, Sequence[records.Lever], Special], Trial]


class Judge:
    """Judges sides against the baseline. run: makes a run that is ended when it is ready. given: levers that are in the
    baseline too."""

    def __init__(self, bench: Bench, levers: Mapping[str, Lever], run: Run) -> None:
        self.bench, self.levers, self.run = bench, levers, run
        self.base = self.again = Evidence(())
        self.more: list[Evidence] = []
        """Of further runs of the bare command."""
        self.given: tuple[records.Lever, ...] = ()
        self._twins: dict[str, Evidence | None] = {}
        self._proven: dict[str, Parity] = {}
        self._hung = False
        """Whether a twin came to nothing in its time: another one would not either."""

    def runs_left(self, levers: Sequence[records.Lever]) -> int:
        """Runs that judging these is likely to take: a twin, or two with the random draws of samples pinned."""
        rule = self.rule(levers)
        if rule.redraws:
            return sum(_key(purpose, used) not in self._twins for purpose, used in self._pins(levers))
        return int((rule.numeric or not gaps(self.base, self.again).none) and not self._twins)

    def judge(self, levers: Sequence[records.Lever], trial: Trial) -> Parity:
        """Whether learning is unchanged in a trial with these levers."""
        if any(self.levers[lever.name].resizes_step for lever in levers if lever not in self.given):
            return Parity(ok=True, level="semantic", why=RESIZED)
        settings = [(lever, self.levers[lever.name].for_parity(lever.settings)) for lever in levers]
        same = [one if own is None else records.Lever(name=one.name, settings=own) for one, own in settings]
        if not self.base.draws or same == list(levers):
            return self._judged(levers, trial, self._twin_runs(levers))
        # Other random draws are no fault, and twins can't excuse them: one run without them says more than four twins.
        parity = self._judged(levers, trial, self._known_twins())
        if parity.ok or parity.level == "refused":
            return parity
        key = repr(same)
        if key not in self._proven:
            own = self.run("parity", same, Special())
            if own.outcome != "measured":
                return self._judged(levers, trial, self._twin_runs(levers))
            proof = self._judged(levers, own, self._twin_runs(same))
            self.bench.amend(own, parity=proof)
            self._proven[key] = msgspec.structs.replace(proof, why=f"{proof.why} ({SAME_RANDOM})")
        return self._proven[key]

    def _judged(self, levers: Sequence[records.Lever], trial: Trial, twins: Twins) -> Parity:
        return judge(self.rule(levers), self.base, self.again, self.bench.evidence(trial), twins, self.more)

    def rule(self, levers: Sequence[records.Lever]) -> Rule:
        """How these are judged together: by the weakest of them, within the sum of their tolerances."""
        known = [self.levers[lever.name] for lever in levers if lever not in self.given]
        tolerance = min(MOST_TOLERANCE, sum(lever.tolerance for lever in known))
        return Rule(any(lever.risk != "exact" for lever in known), tolerance, any(lever.redraws for lever in known))

    def _twin_runs(self, levers: Sequence[records.Lever]) -> Twins:
        seed = self.bench.plan.seed or 0
        redrawn = [functools.partial(self._twin, name, Special(redraw=seed + by)) for name, by in REDRAWS.items()]
        return Twins(nudged=self._nudged(NUDGES), redrawn=redrawn, pinned=lambda: self._pinned(levers))

    def _known_twins(self) -> Twins:
        """Those that were made already. None that draw otherwise, by which a trial is judged only where there is no
        other way."""
        made = [name for name in NUDGES if _key(name, self.given) in self._twins]
        return Twins(nudged=self._nudged(made), redrawn=[])

    def _nudged(self, wanted: Iterable[str]) -> list[Callable[[], Evidence | None]]:
        return [functools.partial(self._twin, name, Special(nudge=NUDGES[name])) for name in wanted]

    def _pinned(self, levers: Sequence[records.Lever]) -> tuple[Evidence, Evidence] | None:
        """The bare command and the trial again, with the random draws of each sample pinned; each made once."""
        one, two = (self._twin(purpose, Special(), used) for purpose, used in self._pins(levers))
        return None if one is None or two is None else (one, two)

    def _pins(self, levers: Sequence[records.Lever]) -> list[tuple[str, Sequence[records.Lever]]]:
        pin = records.Lever(name=_pinned_draws.NAME)
        return [("pinned twin", (*self.given, pin)), (f"pinned {names(levers)}", (*levers, pin))]

    def _twin(self, purpose: str, special: Special, levers: Sequence[records.Lever] | None = None) -> Evidence | None:
        used = self.given if levers is None else levers
        key = _key(purpose, used)
        if key not in self._twins:
            if self._hung:
                return None
            trial = self.run(purpose, used, special)
            self._hung = trial.outcome == "timeout"
            self._twins[key] = self.bench.evidence(trial) if trial.outcome == "measured" else None
        return self._twins[key]


def _key(purpose: str, levers: Sequence[records.Lever]) -> str:
    return f"{purpose} {levers}"
