"""Proof: what a comparison of the best set with the bare command says, with parity, and what is made of it."""

import math
from collections.abc import Sequence
from functools import partial
from statistics import median

import msgspec

from hotlap.experiment.outcome import names, same_levers
from hotlap.experiment.side import Side
from hotlap.experiment.statistics import LEAST_GAIN
from hotlap.experiment.turns import LEAST_ROUNDS
from hotlap.records import run as records
from hotlap.records.durations import ms
from hotlap.records.tune import Open, Proof

from .comparison import PACES, Comparison
from .fit import fitted
from .objective import costs, typical_bytes
from .state import State, ratio_text

ENOUGH = 0.6
"""Of the time that a proof is planned to take: what is left of it may do."""


def prove(state: State) -> None:
    """Prove the best set, or go back to what is proved."""
    while state.unproved and state.best.levers:
        paused_s = state.bench.pauses_s([side for side in state.bare if side.ready], LEAST_ROUNDS)
        if state.budget.left < ENOUGH * state.budget.least_proof_s + paused_s:
            _no_time(state)
            return
        culprit = _prove(state)
        if culprit is None:
            break
        state.refuse(*culprit)
        state.keep([use for use in state.best.levers if use.name != culprit[0].name])
        if not state.unproved:
            state.leave_open(None)


def _no_time(state: State) -> None:
    for use in state.proved:  # nothing is proved without them, so none of them is out
        state.found.dropped.pop(use.name, None)
    note, budget = f"no time was left to prove {names(state.best.levers)}", state.budget
    if not any(one.startswith(note) for one in state.found.not_done):
        needs = f"that takes {budget.least_proof_s:.0f} s, and {max(0.0, budget.left):.0f} s are left"
        state.found.not_done.append(f"{note}: {needs}")
        state.say(f"open  {names(state.best.levers)}: measured, and no time is left to prove it: {needs}")


def _prove(state: State) -> tuple[records.Lever, str] | None:
    """One comparison. Returns the lever to go on without, and why, where there is one."""
    state.end_side(state.side)
    state.side = None
    comparison = Comparison(state)
    comparison.run()
    if comparison.untold:
        _end(state, comparison.after)
        _no_time(state)
        return None
    proof = comparison.result()
    state.found.proofs.append(proof)
    if not proof.proved:
        _end(state, comparison.after)
    if comparison.failed or (proof.parity is not None and not proof.parity.ok):
        return _culprit(state, proof, comparison.refused())
    if proof.proved:
        _accept(state, comparison, proof)
        return None
    left = comparison.open()
    if not left and (slowest := _slowest(state, comparison, proof)):
        return slowest
    state.say(f"{'open' if left else 'drop'}  {names(proof.levers)}  {ratio_text(proof)}  {proof.why}")
    _back(state, proof, dropped=not left)
    state.leave_open(_open(proof) if left else None)
    return None


def _open(proof: Proof) -> Open:
    return Open(levers=proof.levers, ratio=proof.ratio, interval=proof.interval, why=proof.why)


def _end(state: State, sides: Sequence[Side]) -> None:
    for side in sides:
        state.bench.end(side)


def narrow_down(state: State, comparison: Comparison) -> None:
    """Add starts to the comparison that proved the best set, where its interval is wide and there is time."""
    if state.memory or state.unproved:
        return
    again = comparison.more_starts()
    if again is None:
        return
    found, shown = state.found, f"{ratio_text(again)} with {again.starts} starts"
    if not comparison.failed:
        found.proofs = [again if one is found.proved else one for one in found.proofs]
    if again.proved:
        _stands(state, comparison, again)
        state.say(f"proved  {names(again.levers)}  {shown}, {_how(again)}")
    elif comparison.failed:
        found.not_done.append(f"one more start with the levers failed: {again.why}")
    else:
        state.say(f"open  {names(again.levers)}  {shown}: {again.why}")
        _withdraw(state, again)
    state.on_proof()


def _withdraw(state: State, again: Proof) -> None:
    """What was proved does not hold with more starts: it is no recipe."""
    found = state.found
    found.proved, found.tuned, found.costs, found.memory = None, None, {}, (None, None)
    found.proofs = [msgspec.structs.replace(one, proved=False) for one in found.proofs]
    state.best.levers = list(state.given)
    if again.parity is None:
        state.leave_open(_open(again))
        return
    for use in again.levers:
        if use not in state.given:
            state.drop(use.name, f"proved, but one more start did not confirm it: {again.why}")


def _accept(state: State, comparison: Comparison, proof: Proof) -> None:
    before = state.found.proved
    again = before is not None and same_levers(before.levers, proof.levers)  # the later figure counts
    shorter = before is not None and all(use in before.levers for use in proof.levers)
    reached = proof.interval.high if shorter and proof.interval is not None else proof.ratio  # not clearly slower
    if before is not None and not again and reached < before.ratio and not state.memory:
        no_faster = f"{proof.ratio:.2f}× is no faster than the {before.ratio:.2f}× proved before"
        state.say(f"drop  {names(proof.levers)}  {no_faster}")
        state.found.proofs[-1] = msgspec.structs.replace(proof, proved=False, why=no_faster)
        _back(state, proof, dropped=True, why=no_faster)
        _end(state, comparison.after)
        return
    tuned = state.bench.diagnosis(comparison.after[0].measured)  # before it stands: Ctrl-C may come here
    _stands(state, comparison, proof)
    state.leave_open(None)
    state.found.tuned = tuned
    state.narrow_down = partial(narrow_down, state, comparison)
    state.budget.set_aside(comparison.wide and not state.memory)
    state.keep(proof.levers, comparison.after[0])
    state.side = comparison.after[0] if comparison.after[0].alive else None
    _end(state, comparison.after[1:])
    state.say(
        f"proved  {names(proof.levers)}  {ratio_text(proof)} over the bare command, "
        f"{proof.starts} starts, {_how(proof)}; parity {proof.parity.level if proof.parity else 'not asked for'}"
    )
    state.found.fitted = fitted(state)
    state.on_proof()


def _stands(state: State, comparison: Comparison, proof: Proof) -> None:
    """What is known of a set that is proved."""
    found = state.found
    found.proved, state.budget.proved = proof, True
    one, two = [side.measured for side in comparison.before], [side.measured for side in comparison.after]
    found.memory = typical_bytes(one), typical_bytes(two)
    found.costs = costs(state.request.price, one, two, proof.ratio)
    found.break_even = comparison.break_even(proof)


def _how(proof: Proof) -> str:
    return f"{proof.turns} turns each" if proof.how == "turns" else "one after another"


def _back(state: State, proof: Proof, dropped: bool, why: str = "") -> None:
    """The best set is what is proved. why: the others are dropped."""
    kept = list(state.proved)
    what = proof.why if state.memory else "no gain"
    why = why or f"{what} in a comparison from fresh starts: {ratio_text(proof)}"
    for use in proof.levers if dropped else ():
        if use not in kept:
            state.drop(use.name, why, state.found.worth.get(use.name))
    for use in kept:
        state.found.dropped.pop(use.name, None)  # it was to go, and the set without it is no better
    state.best.levers = kept
    state.budget.to_prove, state.open_ratio = False, 1.0


def _suspects(state: State, proof: Proof) -> list[records.Lever]:
    """Of a set that is no good, the levers that may be at fault: those that are not proved, where there are any."""
    own = [use for use in proof.levers if use not in state.given]
    return [use for use in own if use not in state.proved] or own


def _slowest(state: State, comparison: Comparison, proof: Proof) -> tuple[records.Lever, str] | None:
    """Of a set that is no faster in fresh starts, though it was in a live process: the lever without which a start is
    faster by the most, and what was seen; None where none is, or no time is left for a run without each and a proof.
    Seen: threads that meet others' at the cores, beside levers that win 1.4 and 1.5 times."""
    suspects, budget = _suspects(state, proof), state.budget
    needed = len(suspects) * budget.best_start_s + ENOUGH * budget.least_proof_s
    if len(suspects) < 2 or proof.how != "turns" or state.memory or budget.left < needed:
        return None
    if comparison.promised < PACES * max(proof.ratio, LEAST_GAIN):
        return None
    with_all = median(side.measured.step_ms or math.nan for side in comparison.after)
    without: dict[str, float] = {}
    for use in suspects:
        trial = state.run(f"without {use.name}", [one for one in proof.levers if one != use])
        without[use.name] = (trial.step_ms if trial.outcome == "measured" else None) or math.inf
    use = min(suspects, key=lambda one: without[one.name])
    if with_all < PACES * without[use.name]:
        return None
    return use, f"slower in fresh starts beside the others: {ms(with_all)} with it, {ms(without[use.name])} without"


def _culprit(state: State, proof: Proof, refused: str | None) -> tuple[records.Lever, str] | None:
    """The lever without which a start is measured and parity holds, and what was wrong; None where there is none to go
    on without. Each that is looked at takes a run: first the one at which the error points, then those that take
    longest to start or are allowed most. Without time for that, the first of them."""
    suspects = _suspects(state, proof)
    if not suspects:
        return None
    if refused in {use.name for use in suspects}:
        suspects = [use for use in suspects if use.name == refused]

    blamed = state.blamed(proof.why, suspects) if proof.parity is None else None

    def order(use: records.Lever) -> tuple[bool, float, bool, float]:
        lever = state.levers[use.name]
        return use is not blamed, -lever.costs_s, lever.risk == "exact", -lever.tolerance

    suspects.sort(key=order)
    for use in suspects[:-1]:
        if state.budget.left < 2 * state.budget.best_start_s:
            return use, proof.why
        rest = [one for one in proof.levers if one != use]
        trial = state.run(f"without {use.name}", rest)
        if trial.outcome == "measured" and (proof.parity is None or state.judge.judge(rest, trial).ok):
            return use, proof.why
    return suspects[-1], proof.why
