"""The patched source measured: its speed against the recipe's, its learning against the bare command's."""

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean
from typing import Final

from hotlap.launch.environment import environment
from hotlap.launch.supervise import adopt_orphans
from hotlap.levers import _pinned_draws, _same_random, all_levers
from hotlap.records.files import new_folder
from hotlap.records.patch import Verification
from hotlap.records.run import Lever
from hotlap.records.tune import Interval, Parity, Trial
from hotlap.tune.budget import COMPILE_TIMEOUT_S
from hotlap.tune.proof import Proof
from hotlap.tune.statistics import abba, half_width, ratio_interval
from hotlap.tune.trials import SECONDS, SEED, STEPS, Listener, Plan, Special, Trials

from .copy import copy
from .patch import Patched

PAIRS: Final = (3, 8)
NARROW: Final = 0.02
"""Half-width of the interval at which pairs end."""
SLOWER: Final = 0.95
"""The patched source is as fast as the recipe where the interval of the ratio stays above this."""


def verify(
    patched: Patched, levers: Sequence[Lever], folder: Path, listener: Listener, budget_s: float, steps: int = STEPS
) -> Verification:
    """Run the bare command, the command under the recipe, and the patched source, each several times.

    levers: those of the recipe that fit this machine; folder: for the records, must exist. Raises RecordError.
    """
    adopt_orphans()
    new_folder(folder / "trials")
    with tempfile.TemporaryDirectory(prefix="hotlap-patch-") as name:
        place = copy(patched.after, patched.record.command, Path(name).resolve())
        variables = tuple(f"{key}={value}" for key, value in patched.record.variables.items())
        command = ("env", *variables, *place.command) if variables else place.command
        machine = environment(Path(patched.record.cwd))
        bare = Trials(
            Plan(patched.record.command, folder, machine, steps, SECONDS, SEED, Path(patched.record.cwd)), listener
        )
        own = Trials(Plan(command, folder, machine, steps, SECONDS, SEED, place.cwd), listener)
        return _Verification(bare, own, tuple(levers), patched.levers, time.monotonic() + budget_s).run()


@dataclass
class _Verification:
    """bare: runs the user's source; own: the patched one. levers: of the recipe; written: of the patch."""

    bare: Trials
    own: Trials
    levers: tuple[Lever, ...]
    written: tuple[Lever, ...]
    deadline: float
    before: list[Trial] = field(default_factory=list)
    after: list[Trial] = field(default_factory=list)
    timeout_s: float = 600.0

    def run(self) -> Verification:
        folder = str(self.bare.plan.folder)
        bases = [self._made("baseline", (), Special()) for _ in range(2)]
        wrong = next((trial for trial in bases if trial.outcome != "measured"), None)
        if wrong is not None:
            return Verification(why=f"the bare command was not measured: {wrong.why}", folder=folder)
        self.timeout_s = 4 * max(trial.wall_s for trial in bases) + 30 + COMPILE_TIMEOUT_S
        why = self._pairs()
        if why:
            return Verification(why=why, folder=folder)
        ratio, interval = ratio_interval(self._times(self.before), self._times(self.after))
        return Verification(
            ratio=ratio,
            interval=interval,
            pairs=len(self.after),
            recipe_ms=geometric_mean(self._times(self.before)),
            patched_ms=geometric_mean(self._times(self.after)),
            same_speed=as_fast(interval),
            parity=self._parity(bases),
            folder=folder,
        )

    def _pairs(self) -> str:
        """Make pairs until the interval is narrow or the time is up; why it went wrong, or "" ."""
        for letter in abba(PAIRS[1]):
            count = len(self.after)
            if len(self.before) == count and count >= 2 and self._enough(count):
                break
            if letter == "A":
                trial = self._made("recipe", self.levers, Special())
            else:
                trial = self._patched("patched", (), Special())
            if trial.outcome != "measured":
                what = "command under the recipe" if letter == "A" else "patched source"
                output = self.bare.plan.folder / trial.folder / "output.txt"
                return f"a run of the {what} was not measured: {trial.why or trial.outcome} (see {output})"
            (self.before if letter == "A" else self.after).append(trial)
        return ""

    def _enough(self, count: int) -> bool:
        if self.deadline - time.monotonic() < self.before[-1].wall_s + self.after[-1].wall_s:
            return True
        _, interval = ratio_interval(self._times(self.before), self._times(self.after))
        return count >= PAIRS[0] and half_width(interval) < NARROW

    @staticmethod
    def _times(trials: Sequence[Trial]) -> list[float]:
        return [trial.step_ms or math.nan for trial in trials]

    # parity

    def _parity(self, bases: Sequence[Trial]) -> Parity:
        """Of the patched source against the bare command; the first that fails, else the last."""
        proof = Proof(self.bare, all_levers(), self._for_proof)
        proof.base, proof.again = (self.bare.evidence(trial) for trial in bases)
        parity: Parity | None = None
        for trial in self.after:
            self.bare.done.append(trial)
            parity = proof.judge(self.written, trial)
            if not parity.ok:
                break
        assert parity is not None
        return parity

    def _for_proof(self, purpose: str, levers: Sequence[Lever], special: Special) -> Trial:
        """A run that a judgement asks for: where it has levers of the recipe, the patched source stands for them."""
        hidden = [lever for lever in levers if lever.name == _pinned_draws.NAME]
        ours = [lever for lever in levers if lever.name != _pinned_draws.NAME]
        if not ours:
            return self._made(purpose, hidden, special)
        other_draws = [lever.name for lever in ours if lever.settings.get(_same_random.SETTING)]
        if other_draws:
            hidden.append(Lever(name=_same_random.NAME, settings={"levers": other_draws}))
        trial = self._patched(f"patched: {purpose}", hidden, special)
        self.bare.done.append(trial)
        return trial

    # runs

    def _made(self, purpose: str, levers: Sequence[Lever], special: Special) -> Trial:
        return self.bare.run(purpose, tuple(levers), special, self.timeout_s)

    def _patched(self, purpose: str, levers: Sequence[Lever], special: Special) -> Trial:
        return self.own.run(purpose, tuple(levers), special, self.timeout_s)


def as_fast(interval: Interval) -> bool | None:
    """Whether the patched source is as fast as the recipe; None where the runs differ too much to tell."""
    if interval.low >= SLOWER:
        return True
    return False if interval.high < 1 else None
