"""Proof: the bare command and the best set, both started afresh, alive at once and taking turns; then parity.

Two starts of each at least; more where two do not tell, as often as `statistics.LOOKS` allows and the budget lasts.
Nothing that chose the set is used again. Processes of the bare command are kept for the next proof: they stand still.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import msgspec

from hotlap.experiment.outcome import names, same_levers
from hotlap.experiment.side import Side, Special
from hotlap.experiment.statistics import (
    LEAST_GAIN,
    LOOKS,
    Effect,
    Ratio,
    between_processes,
    center,
    effects,
    half_width,
    narrow,
    of_pairs,
)
from hotlap.experiment.turns import LEAST_ROUNDS, ROUNDS, take_turns
from hotlap.records import run as records
from hotlap.records.tune import Open, Parity, Proof

from .fit import fitted
from .objective import costs, peak_bytes, typical_bytes
from .starts import other_work
from .state import State, interval_text

STARTS = 2
MOST_BARE = 3
ENOUGH = 0.6
"""Of the time that a proof is planned to take: what is left of it may do."""
NARROW_ENOUGH = 0.05
"""Half-width of an interval."""
NEARLY = 0.98
"""Of what was proved before, that a set with fewer levers has to reach."""
SURE = 0.004
OF_GAIN = 0.05
"""Standard error of what a process's turns say of it, as a logarithm; or of the gain's own, where that is more."""
NOT_ENOUGH = "the interval is too wide, and the budget ended"


def prove(state: State) -> None:
    """Prove the best set, or go back to what is proved."""
    while state.unproved and state.best.levers:
        if state.budget.left < ENOUGH * state.budget.proof_s:
            note = f"the budget ended the search before a proof of {names(state.best.levers)}"
            if note not in state.found.not_done:
                state.found.not_done.append(note)
                state.say(f"open  {names(state.best.levers)}: measured, and no time is left to prove it")
            return
        culprit = _prove(state)
        if culprit is None:
            break
        state.refuse(*culprit)
        state.keep([use for use in state.best.levers if use.name != culprit[0].name])
        if not state.unproved:
            state.leave_open(None)


def _prove(state: State) -> tuple[records.Lever, str] | None:
    """One comparison. Returns the lever to go on without, and why, where there is one."""
    state.end_side(state.side)
    state.side = None
    comparison = Comparison(state)
    comparison.run()
    proof = comparison.result()
    state.found.proofs.append(proof)
    if not proof.proved:
        for side in comparison.after:
            state.bench.end(side)
    if comparison.failed or (proof.parity is not None and not proof.parity.ok):
        return _culprit(state, proof, comparison.refused())
    if proof.proved:
        _accept(state, comparison, proof)
        return None
    left = comparison.open()
    shown = f"{proof.ratio:.2f}×{interval_text(proof.interval)}"
    state.say(f"{'open' if left else 'drop'}  {names(proof.levers)}  {shown}  {proof.why}")
    _back(state, proof, dropped=not left)
    state.leave_open(
        Open(levers=proof.levers, ratio=proof.ratio, interval=proof.interval, why=proof.why) if left else None
    )
    return None


def narrow_down(state: State) -> None:
    """Prove what is proved once more, with more starts, where its interval is wide and there is time."""
    proof = state.found.proved
    if proof is None or proof.interval is None or state.sequential or state.objective.memory:
        return
    cost_s = state.budget.starts_s(4) + state.budget.turns_s(5)
    if half_width(proof.interval) <= NARROW_ENOUGH or state.budget.left < cost_s:
        return
    state.end_side(state.side)
    state.side = None
    comparison = Comparison(state, least=1)
    comparison.run()
    again = comparison.result()
    state.found.proofs.append(again)
    if again.proved and again.interval is not None and half_width(again.interval) < half_width(proof.interval):
        _accept(state, comparison, again)
        return
    for side in comparison.after:
        state.bench.end(side)
    shown = f"{again.ratio:.2f}×{interval_text(again.interval)}"
    state.say(f"again  {names(again.levers)}  {shown}  {again.why or 'no narrower'}")
    if again.parity is not None and not again.parity.ok:
        _withdraw(state, again)
    elif not again.proved:
        state.found.not_done.append(f"a second proof, with more starts, came to {shown}: {again.why}")


def _withdraw(state: State, again: Proof) -> None:
    """What was proved computes something else in another start: it is no recipe."""
    found = state.found
    found.proved, found.tuned, found.costs, found.memory = None, None, {}, (None, None)
    found.proofs = [msgspec.structs.replace(one, proved=False) for one in found.proofs]
    for use in again.levers:
        if use not in state.given:
            state.drop(use.name, f"proved, and then it did not hold in other starts: {again.why}")
    state.best.levers, state.budget.to_prove, state.open_ratio = list(state.given), False, 1.0
    state.on_proof()


def _accept(state: State, comparison: "Comparison", proof: Proof) -> None:
    before = state.found.proved
    shorter = before is not None and all(use in before.levers for use in proof.levers)
    least = before.ratio * (NEARLY if shorter else 1.0) if before is not None else 0.0
    if before is not None and same_levers(before.levers, proof.levers):  # proved once more: the later figure counts
        least = 0.0
    if before is not None and proof.ratio < least and not state.objective.memory:
        no_faster = f"{proof.ratio:.2f}× is no faster than the {before.ratio:.2f}× proved before"
        state.say(f"drop  {names(proof.levers)}  {no_faster}")
        state.found.proofs[-1] = msgspec.structs.replace(proof, proved=False, why=no_faster)
        _back(state, proof, dropped=True, why=no_faster)
        for side in comparison.after:
            state.bench.end(side)
        return
    found = state.found
    found.proved = proof
    state.leave_open(None)
    found.tuned = state.bench.diagnosis(comparison.after[0].measured)
    one, two = [side.measured for side in comparison.before], [side.measured for side in comparison.after]
    found.memory = typical_bytes(one), typical_bytes(two)
    found.costs = costs(state.objective, one, two, proof.ratio)
    found.break_even = comparison.break_even(proof)
    state.keep(proof.levers, comparison.after[0])
    state.side = comparison.after[0] if comparison.after[0].alive else None
    for side in comparison.after[1:]:
        state.bench.end(side)
    state.say(
        f"proved  {names(proof.levers)}  {proof.ratio:.2f}×{interval_text(proof.interval)} over the bare command, "
        f"{proof.starts} starts, {_how(proof)}; parity {proof.parity.level if proof.parity else 'not asked for'}"
    )
    found.fitted = fitted(state)
    state.on_proof()


def _how(proof: Proof) -> str:
    return f"{proof.turns} turns each" if proof.how == "turns" else "one after another"


def _back(state: State, proof: Proof, dropped: bool, why: str = "") -> None:
    """The best set is what is proved. why: the others are dropped."""
    kept = list(state.found.proved.levers) if state.found.proved else list(state.given)
    shown = f"{proof.ratio:.2f}×{interval_text(proof.interval)}"
    what = proof.why if state.objective.memory else "no gain"
    for use in proof.levers if dropped else ():
        if use not in kept:
            state.drop(
                use.name,
                why or f"{what} in a comparison from fresh starts: {shown}",
                state.found.worth.get(use.name),
            )
    state.best.levers = kept
    state.budget.to_prove, state.open_ratio = False, 1.0


class Comparison:
    """The best set beside the bare command. least: the look at which it may end, though the gain is proved before."""

    def __init__(self, state: State, least: int = 0) -> None:
        self.state, self.least = state, least
        self.fresh: list[Side] = []
        """What was started for it."""
        self.levers = list(state.best.levers)
        self.before: list[Side] = [side for side in state.bare if side.alive]
        self.after: list[Side] = []
        self.effects: dict[int, Effect] = {}
        self.bare_logs: list[float] = []
        """Logarithms of ms a step of the bare command, of each of its turns or runs."""
        self.rounds = 0
        self.pairs: list[float] = []
        self.ratio = Ratio(math.nan, None)
        self.failed = ""
        self.short = False

    def run(self) -> None:
        """Looks, one after the other, until one of them decides."""
        state, budget = self.state, self.state.budget
        against = names(state.given) if state.given else "the bare command"
        state.say(f"prove  {names(self.levers)} against {against}, from fresh starts")
        for look in range(len(LOOKS)):
            cost_s = budget.starts_s(1 if look else 3) + budget.turns_s(3, LEAST_ROUNDS)
            if look and budget.left < cost_s:
                self.short = True
                return
            (self._sequential if state.sequential else self._turns)(look)
            if self.failed or self._decided(look):
                return

    def _decided(self, look: int) -> bool:
        found = self.ratio
        if found.interval is None:
            return False
        if self.state.objective.memory:
            return half_width(found.interval) < 0.1
        if found.proved:
            return look >= self.least or narrow(found.ratio, found.interval)
        return found.interval.high < LEAST_GAIN

    # alive at once

    def _turns(self, look: int) -> None:
        state = self.state
        wanted = STARTS + look
        bare = max(0, min(wanted, MOST_BARE) - len(self.before))
        todo = [True] * (wanted - len(self.after)) + [False] * bare
        while todo:
            batch, todo = todo[: state.budget.at_once], todo[state.budget.at_once :]
            begun = [self._start(with_levers) for with_levers in batch]
            state.bench.ready(*begun)
            self.fresh += begun
            for side in begun:
                self._arrived(side)
                if self.failed or state.sequential:
                    break
            if state.sequential:
                self._sequential(look)
                return
            if self.failed:
                return
        self._settle_reference()
        if state.sequential or self.failed:
            return
        others = [side for side in (*self.before, *self.after) if side.alive and side.number not in self.effects]
        per_row = state.resized(self.levers)
        sides = [state.reference, *(side for side in others if side is not state.reference)]
        seconds = state.budget.turns_s(len(sides), ROUNDS)
        rounds = take_turns(state.bench, sides, ROUNDS, seconds, self._sure, per_row)
        self.rounds += len(rounds)
        rows = (state.reference.measured.rows or 1.0) if per_row else 1.0
        untouched = [side.number for side in sides if side in self.before]
        self.bare_logs += [math.log(turn[one] * rows) for turn in rounds for one in untouched]
        if len(rounds) < LEAST_ROUNDS:
            self._too_few(look, sides)
            return
        self.effects |= effects(rounds, state.reference.number)
        self.ratio = between_processes(self._effects(self.before), self._effects(self.after), look)

    def _too_few(self, look: int, sides: Sequence[Side]) -> None:
        """A side ended in its turns. One that came from before had made its steps: another one takes its place."""
        ended = [side for side in sides if not side.alive]
        if ended and not any(side in self.fresh for side in ended):
            self.before, self.after = [[s for s in all_ if s.alive] for all_ in (self.before, self.after)]
            self._turns(look)
            return
        why = next((side.measured.ended for side in ended), "a turn took too long")
        self._give_up_turns(f"a side did not last for its turns: {why}")
        self._sequential(look)

    def _sure(self, rounds: list[dict[int, float]]) -> bool:
        """Whether more turns would tell nothing beside what differs from start to start."""
        if len(rounds) < LEAST_ROUNDS:
            return False
        known = effects(rounds, self.state.reference.number)
        ours, theirs = self._mean(known, self.after), self._mean(known, self.before)
        return all(one.error < max(SURE, OF_GAIN * abs(ours - theirs)) for one in known.values())

    @staticmethod
    def _mean(known: Mapping[int, Effect], sides: Sequence[Side]) -> float:
        logs = [known[side.number].log for side in sides if side.number in known]
        return fmean(logs) if logs else 0.0

    def _effects(self, sides: Sequence[Side]) -> list[Effect]:
        return [self.effects[side.number] for side in sides if side.number in self.effects]

    def _settle_reference(self) -> None:
        """The bare command's process that all have turns with."""
        state = self.state
        if state.reference.ready:
            return
        state.bare = [side for side in state.bare if side.ready]
        self.before, self.after = list(state.bare), [side for side in self.after if side.ready]
        self.effects.clear()
        if not self.before:
            self._arrived(state.started("bare", state.given))
        if self.before:
            state.reference = self.before[0]

    def _start(self, with_levers: bool) -> Side:
        state = self.state
        if with_levers:
            return state.start("prove", self.levers, Special(trying=tuple(use.name for use in self.levers)))
        return state.start("bare", state.given)

    def _arrived(self, side: Side) -> None:
        """A side is there, or came to nothing."""
        state, trial = self.state, side.measured
        bare = list(side.requested) == list(state.given)
        if trial.outcome == "memory" and any(one.alive for one in state.bench.sides):
            self._give_up_turns("memory does not hold several of them")
        elif trial.outcome != "measured" and bare:
            self._give_up_turns(f"the bare command does not run beside itself: {trial.outcome}: {trial.why}")
        elif trial.outcome != "measured":
            self.failed = f"{trial.outcome}: {trial.why}"
        elif trial.left_out:
            state.leave_out(trial)
            self.levers = list(trial.levers)
            state.best.levers = list(trial.levers)
            self.after = [side]
        else:
            (self.before if bare else self.after).append(side)
            if bare:
                state.bare.append(side)

    # one after another

    def _give_up_turns(self, why: str) -> None:
        state = self.state
        state.one_after_another(why)
        self.before, self.after, self.effects, self.bare_logs, self.rounds = [], [], {}, [], 0

    def _sequential(self, look: int) -> None:
        """Pairs of whole runs, ABBA."""
        state = self.state
        while len(self.pairs) < STARTS + 1 + look and not self.failed:
            first = len(self.pairs) % 2 == 0
            if self.pairs and state.budget.left < 2 * state.budget.best_start_s:
                self.short = True
                return
            made = {}
            for with_levers in (False, True) if first else (True, False):
                side = self._start(with_levers)
                state.bench.ready(side)
                state.bench.end(side)
                if side.measured.outcome != "measured":
                    self.failed = f"{side.measured.outcome}: {side.measured.why}"
                    return
                (self.after if with_levers else self.before).append(side)
                made[with_levers] = side.measured.step_ms or math.nan
            self.pairs.append(math.log(made[False] / made[True]))
            self.bare_logs.append(math.log(made[False]))
            self.ratio = of_pairs(self.pairs, look)

    # what came of it

    def refused(self) -> str | None:
        """The lever that could not be put in, where a start failed by that."""
        return next((one.lever for side in self.fresh if (one := side.measured).outcome == "refused"), None)

    def open(self) -> bool:
        """Whether more time may prove it."""
        found = self.ratio
        return (
            not self.failed
            and found.ratio >= LEAST_GAIN
            and (found.interval is None or found.interval.high > LEAST_GAIN)
        )

    def result(self) -> Proof:
        """With parity, where there is a gain."""
        state, found = self.state, self.ratio
        proved, why = self._gain()
        parity = self._parity() if proved else None
        if parity is not None and not parity.ok:
            proved, why = False, f"parity: {parity.why}"
        before_ms = math.exp(center(self.bare_logs)) if self.bare_logs else None
        return Proof(
            levers=tuple(self.levers),
            ratio=found.ratio if math.isfinite(found.ratio) else 0.0,
            interval=found.interval,
            proved=proved,
            why=why,
            starts=len(self.after),
            bare_starts=len(self.before),
            turns=self.rounds,
            how="one after another" if self.pairs else "turns",
            before_ms=before_ms,
            after_ms=before_ms / found.ratio if before_ms and math.isfinite(found.ratio) else None,
            parity=parity,
            at_s=state.budget.spent,
        )

    def _gain(self) -> tuple[bool, str]:
        state, found = self.state, self.ratio
        if self.failed:
            return False, self.failed
        if state.objective.memory:
            return self._saves()
        if found.proved:
            works = (other_work(state, side.measured.rows, side.requested) for side in self.after)
            work = next(filter(None, works), None)
            return work is None, work or ""
        if found.interval is not None and found.interval.high < LEAST_GAIN:
            return False, "no gain"
        return False, NOT_ENOUGH if self.short else "the interval is too wide"

    def _saves(self) -> tuple[bool, str]:
        state, interval = self.state, self.ratio.interval
        least = min(peak_bytes(side.measured) for side in self.before)
        most = max(peak_bytes(side.measured) for side in self.after)
        if least < LEAST_GAIN * most:
            return False, "less than 2% of memory saved"
        if interval is not None and interval.high < 1 / (1 + state.objective.slowdown):
            return False, "a step is slower than is allowed"
        return True, ""

    def _parity(self) -> Parity:
        """Of all processes with the levers; the first that fails, else the last."""
        state = self.state
        state.judge.base, state.judge.again = (state.bench.evidence(side.measured) for side in self._two())
        parity: Parity | None = None
        for side in self.after:
            parity = state.judge.judge(self.levers, side.measured)
            state.bench.amend(side.measured, parity=parity)
            if not parity.ok:
                break
        assert parity is not None
        return parity

    def _two(self) -> tuple[Side, Side]:
        return self.before[0], self.before[1] if len(self.before) > 1 else self.before[0]

    def break_even(self, proof: Proof) -> int | None:
        """Steps after which what a first start compiles has paid for itself; None where nothing is compiled."""
        final = {use.name for use in self.levers}
        compile_ = {name for name in final if self.state.levers[name].compiles}
        if not compile_ or proof.before_ms is None or proof.after_ms is None or proof.before_ms <= proof.after_ms:
            return None
        had = [(one.warmup_s or 0.0, {use.name for use in one.levers}) for one in self.state.bench.done]
        longest = max([warmup_s for warmup_s, names_ in had if names_ <= final and names_ & compile_], default=0.0)
        extra_s = max(longest, self.state.compiled_s) - fmean(side.measured.warmup_s or 0.0 for side in self.before)
        return max(0, math.ceil(1000 * extra_s / (proof.before_ms - proof.after_ms)))


def _culprit(state: State, proof: Proof, refused: str | None) -> tuple[records.Lever, str] | None:
    """The lever without which a start is measured and parity holds, and what was wrong; None where there is none to go
    on without. Each that is looked at takes a run: first those that take longest to start or are allowed most. Without
    time for that, the first of them."""
    own = [use for use in proof.levers if use not in state.given]
    proved = state.found.proved.levers if state.found.proved else ()
    suspects = [use for use in own if use not in proved] or own
    if not suspects:
        return None
    known = next((use for use in suspects if use.name == refused), None)
    if known is not None or len(suspects) == 1:
        return known or suspects[0], proof.why

    def order(use: records.Lever) -> tuple[float, bool, float]:
        lever = state.levers[use.name]
        return -lever.costs_s, lever.risk == "exact", -lever.tolerance

    suspects.sort(key=order)
    for use in suspects[:-1]:
        if state.budget.left < 2 * state.budget.best_start_s:
            return use, proof.why
        rest = [one for one in proof.levers if one != use]
        trial = state.run(f"without {use.name}", rest)
        if trial.outcome == "measured" and (proof.parity is None or state.judge.judge(rest, trial).ok):
            return use, proof.why
    return suspects[-1], proof.why
