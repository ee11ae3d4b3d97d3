"""The patched source measured: its speed against the recipe's, its learning against the bare command's."""

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Final

from hotlap.experiment.judge import Judge
from hotlap.experiment.side import SECONDS, SEED, STEPS, Bench, Side, Special
from hotlap.experiment.statistics import Effect, between_processes, effects
from hotlap.experiment.turns import LEAST_ROUNDS, take_turns
from hotlap.experiment.watch import Listener
from hotlap.launch.environment import environment
from hotlap.launch.supervise import adopt_orphans
from hotlap.levers import _pinned_draws, _same_random, all_levers
from hotlap.records.durations import ms
from hotlap.records.files import new_folder
from hotlap.records.patch import Verification
from hotlap.records.run import Lever
from hotlap.records.tune import Interval, Parity, Trial
from hotlap.runs.folder import TuneFolder
from hotlap.runs.plan import RunPlan

from .copy import Copy, copy
from .patch import Patched

STARTS: Final = 2
"""Of each: the bare command, the command under the recipe, the patched source."""
LEAST_S: Final = 30.0
"""For turns, where the budget ended before."""
SLOWER: Final = 0.95
"""The patched source is as fast as the recipe where the interval of the ratio stays above this."""


def verify(
    patched: Patched, levers: Sequence[Lever], folder: Path, listener: Listener, budget_s: float, steps: int = STEPS
) -> Verification:
    """The bare command, the command under the recipe, and the patched source, alive at once and taking turns.

    levers: those of the recipe that fit this machine; folder: for the records, must exist. Raises RecordError.
    """
    adopt_orphans()
    new_folder(TuneFolder(folder).trials)
    deadline = time.monotonic() + budget_s
    with tempfile.TemporaryDirectory(prefix="hotlap-patch-") as name:
        place = copy(patched.after, patched.record.command, Path(name).resolve())
        variables = tuple(f"{key}={value}" for key, value in patched.record.variables.items())
        command = ("env", *variables, *place.command) if variables else place.command
        cwd = Path(patched.record.cwd)
        plan = RunPlan(
            patched.record.command, folder, environment(cwd), steps=steps, seconds=SECONDS, seed=SEED, cwd=cwd
        )
        with Bench(plan, listener) as bench:
            return _Verification(bench, Copy(place.cwd, command), levers, patched.levers, deadline).run()


@dataclass
class _Verification:
    """patched: how the patched source is started. levers: of the recipe; written: of the patch."""

    bench: Bench
    patched: Copy
    levers: Sequence[Lever]
    written: Sequence[Lever]
    deadline: float

    def run(self) -> Verification:
        """Start all, let them take turns, judge what the patched source learns."""
        sides: dict[str, list[Side]] = {"bare command": [], "recipe": [], "patched": []}
        folder = str(self.bench.plan.folder)
        for _ in range(STARTS):
            for what, started in sides.items():
                side = self._start(what, self.levers if what == "recipe" else (), copied=what == "patched")
                if side.measured.outcome != "measured":
                    return Verification(why=self._why(what, side.measured), folder=folder)
                started.append(side)
        bare, recipe, patched = sides.values()
        seconds = max(LEAST_S, self.deadline - time.monotonic())
        every = [*recipe, *patched, *bare]
        rounds = take_turns(self.bench, every, seconds=seconds) if all(side.ready for side in every) else []
        self.bench.end_all()
        if len(rounds) >= LEAST_ROUNDS:
            logs = effects(rounds)
            recipe_ms = geometric_mean(turn[side.number] for turn in rounds for side in recipe)
        else:  # the command ended by itself: whole runs are compared
            rounds = []
            logs = {side.number: Effect(math.log(_step_ms(side))) for side in every}
            recipe_ms = geometric_mean(map(_step_ms, recipe))
        before, after = ([logs[side.number] for side in two] for two in (recipe, patched))
        found = between_processes(before, after)
        return Verification(
            ratio=found.ratio,
            interval=found.interval,
            turns=len(rounds),
            recipe_ms=recipe_ms,
            patched_ms=recipe_ms / found.ratio,
            same_speed=as_fast(found.interval) if found.interval else None,
            parity=self._parity(bare, patched),
            folder=folder,
        )

    def _start(
        self, purpose: str, levers: Sequence[Lever], special: Special | None = None, copied: bool = False
    ) -> Side:
        command, cwd = (self.patched.command, self.patched.cwd) if copied else (None, None)
        side = self.bench.start(purpose, levers, special, command=command, cwd=cwd)
        self.bench.ready(side)
        trial = side.measured
        self.bench.listener.result(f"{purpose}  {ms(trial.step_ms) if trial.step_ms else trial.outcome}")
        return side

    def _why(self, what: str, trial: Trial) -> str:
        """Why a start was not measured."""
        said = trial.why or trial.outcome
        if trial.outcome == "memory" and trial.id:
            said = f"it does not fit in memory together with the others ({said})"
        output = self.bench.run(trial).output
        return f"a run of the {what} was not measured: {said} (see {output})"

    def _parity(self, bare: Sequence[Side], patched: Sequence[Side]) -> Parity:
        """Of the patched source against the bare command; the first that fails, else the last."""
        judge = Judge(self.bench, all_levers(), self._for_judge)
        judge.base, judge.again = (self.bench.evidence(side.measured) for side in (bare[0], bare[-1]))
        found = judge.judge(self.written, patched[0].measured)
        return judge.judge(self.written, patched[-1].measured) if found.ok and len(patched) > 1 else found

    def _for_judge(self, purpose: str, levers: Sequence[Lever], special: Special) -> Trial:
        """A run that a judgement needs: where it has levers of the recipe, the patched source stands for them."""
        hidden = [lever for lever in levers if lever.name == _pinned_draws.NAME]
        ours = [lever for lever in levers if lever.name != _pinned_draws.NAME]
        other_draws = [lever.name for lever in ours if lever.settings.get(_same_random.SETTING)]
        if other_draws:
            hidden.append(Lever(name=_same_random.NAME, settings={"levers": other_draws}))
        side = self._start(f"patched: {purpose}" if ours else purpose, hidden, special, copied=bool(ours))
        self.bench.end(side)
        return side.measured


def _step_ms(side: Side) -> float:
    return side.measured.step_ms or math.nan


def as_fast(interval: Interval) -> bool | None:
    """Whether the patched source is as fast as the recipe; None where the runs differ too much to tell."""
    if interval.low >= SLOWER:
        return True
    return False if interval.high < 1 else None
