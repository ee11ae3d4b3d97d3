"""Switchable levers in one live process: put in one after another, then each taken out again and put back in turn.

First one on top of the other, a few steps each, so that one that crashes, hangs or makes steps slower is known by name;
then cycles of blocks of the whole set and of none, and where that is a gain, of the set without each. What is not worth
it beside the others goes out, and the rest is measured again.
"""

from collections.abc import Sequence
from typing import Final

from hotlap.experiment.outcome import names
from hotlap.experiment.statistics import Ratio
from hotlap.experiment.switching import CYCLES, LEAST_BLOCK, SideLost, Switching, Variant
from hotlap.experiment.watch import Spare, left_out
from hotlap.records import run as records
from hotlap.records.errors import NothingMeasured
from hotlap.records.run import REFUSED
from hotlap.records.tune import Open, Trial, Worth
from hotlap.runs.folder import RunFolder

from .budget import COMPILE_SHARE, BudgetSpent
from .candidates import Candidate, compatible
from .starts import other_work
from .state import PROMISING, TOO_SLOW, State, use_text, worth_text

SETTLE_S: Final = 20.0
"""For the first steps with a lever that compiles nothing."""
PASS_S: Final = 20.0
"""Of cycles, in one pass."""
LONG_S: Final = 2 * PASS_S
"""Cycles that take longer wait for the first proof."""
PASSES: Final = 4
SLOWER: Final = 1.07
"""Times as long as before that steps take with a lever just switched on, from which blocks with and without it take
turns at once: one that is slower spoils what the others win."""
CLEAR: Final = 1.01
"""What is worth less than this is not looked at any longer to see whether it is worth anything."""


def screen(state: State, group: Sequence[Candidate], at_once: bool = False, again: bool = False) -> bool:
    """Find out which of these are worth it together; they are the best then. Whether any are. Raises BudgetSpent.

    at_once: all or none: where each set is compiled anew, it would take too long to find out which. again: a script
    that came to its end meanwhile is started once more.
    """
    start_s = 0.0 if state.side is not None and state.side.ready else state.budget.best_start_s
    state.budget.afford(start_s + _pass_s(state), names([one.use for one in group]))
    bound = state.best.diagnosis.bound
    state.tried |= {(one.lever.name, bound) for one in group}
    state.found.predicted |= {one.lever.name: one.predicted for one in group}
    base = tuple(use.name for use in state.best.levers)
    try:
        live = _put_in(state, group, at_once)
        if live is None:
            return False
        switching, full = live
        _measure(state, switching, [base, full], [(base, full)])
        whole = _worth(switching.ratio(base, full), full)
        added = [name for name in full if name not in base]
        spoilt = whole.interval is not None and whole.interval.high < 1  # by one of them: others may win beside it
        one_by_one = len(added) > 1 and not at_once and (spoilt or _before_proof(state, switching, len(added) + 1))
        if not _surely(whole) and not (one_by_one and spoilt):
            state.no_gain([switching.known[name] for name in added], whole, "all together" if len(added) > 1 else "")
            return False
        worth = {added[0]: _worth(switching.ratio(base, full), full, added[0])} if len(added) == 1 else {}
        if one_by_one:
            full, worth = _eliminate(state, switching, base, full)
            if full == base:
                return False
            if len(full) < len(base) + len(added) or spoilt:
                _measure(state, switching, [base, full], [(base, full)] if spoilt else [])
                whole = _worth(switching.ratio(base, full), full)
            if spoilt and not _surely(whole):
                state.no_gain([switching.known[name] for name in full if name not in base], whole)
                return False
    except NothingMeasured:
        return False
    except SideLost as end:
        assert state.side is not None
        lost, state.side = state.side.measured, None
        if end.by_itself:
            if not again:
                return screen(state, group, at_once, again=True)
            state.one_after_another("the command ends by itself before levers can be switched")
            state.tried -= {(one.lever.name, bound) for one in group}
            return False
        if len(group) == 1:
            state.refuse(group[0].use, lost.ended, trial=lost)
            return False
        return _without_culprit(state, group, lost, at_once)
    uses = [*state.best.levers, *(switching.known[name] for name in full if name not in base)]
    state.keep(uses, ratio=whole.ratio)
    state.found.worth |= worth
    for name, one in worth.items():
        state.say(f"keep  {use_text(switching.known[name])}  {worth_text(one)}beside the others")
    state.leave_open(Open(levers=tuple(uses), over=base, ratio=whole.ratio, interval=whole.interval))
    state.say(f"measured  {names(uses)}  {worth_text(whole)}in one process; not proved yet")
    return True


def _without_culprit(state: State, group: Sequence[Candidate], lost: Trial, at_once: bool) -> bool:
    """Screen the others where the error says which lever ended the process, else each half by itself."""
    uses = [one.use for one in group]
    if blamed := state.blamed(lost.ended, uses):
        state.refuse(blamed, lost.ended, trial=lost)
        return screen(state, [one for one in group if one.lever.name != blamed.name], at_once)
    state.say(f"lost  {names(uses)}: {lost.ended[:160]}; trying them in two halves")
    middle = len(group) // 2
    return bool(screen(state, group[:middle], at_once) | screen(state, group[middle:], at_once))


def switch_in_place(state: State, candidate: Candidate, instead_of: Sequence[str]) -> bool:
    """Find out whether a lever is better than those that keep it out; whether it is in now. Raises BudgetSpent."""
    use, name = candidate.use, candidate.lever.name
    most_s = COMPILE_SHARE * state.budget.seconds if candidate.lever.compiles else SETTLE_S
    state.budget.afford(candidate.lever.costs_s + _pass_s(state), f"{name} in place of {', '.join(instead_of)}")
    state.tried.add((name, state.best.diagnosis.bound))
    state.found.predicted[name] = candidate.predicted
    try:
        switching = state.switching([use])
        now = tuple(one.name for one in state.best.levers)
        other = (*(one for one in now if one not in instead_of), name)
        _settle(state, switching, other, most_s)
        if why := _not_in(switching, name):
            state.refuse(use, why)
            return False
        switching.settle(now, SETTLE_S)
        switching.measure([now, other], lambda so_far: so_far.clear([(now, other)], CLEAR), PASS_S)
    except (SideLost, NothingMeasured):
        lost, state.side = state.side, None
        state.drop(name, lost.measured.ended if lost else "no process left to switch it in")
        return False
    ratio = switching.ratio(now, other)
    if ratio is None or ratio.interval is None or ratio.interval.low <= 1:
        why = f"no better than {instead_of[0]}, which it can't be used with"
        state.drop(name, why, _worth(ratio, other, name) if ratio else None)
        return False
    state.keep([switching.known[one] for one in other], ratio=ratio.ratio)
    state.say(f"keep  {use_text(use)}  {worth_text(_worth(ratio, other, name))}over {' + '.join(instead_of)}")
    return True


def _settle(state: State, switching: Switching, variant: Variant, most_s: float) -> float | None:
    """Until steps are at their pace; how long that took counts in what a recipe's start costs."""
    begun = state.budget.spent
    now = switching.settle(variant, min(most_s, max(SETTLE_S, state.budget.left - state.budget.proof_s)))
    if any(state.levers[name].compiles for name in variant):
        state.compiled_s = max(state.compiled_s, state.budget.spent - begun)
    return now


def _put_in(state: State, group: Sequence[Candidate], at_once: bool) -> tuple[Switching, Variant] | None:
    """All that can be in together: one on top of the other, where one that ends the process costs a start, or at once.
    None where none is in. Raises NothingMeasured, SideLost."""
    base = tuple(use.name for use in state.best.levers)
    full = base
    switching: Switching | None = None
    uses = [one.use for one in group]
    for some in [list(group)] if at_once else [[one] for one in group]:
        if switching is None or not switching.side.ready:
            switching = state.switching(uses)
            switching.settle(full, SETTLE_S)
        added = tuple(one.lever.name for one in compatible(state, some, full))
        if added and full in switching.last_ms and _switched_on(state, switching, full, added):
            full = (*full, *added)
    if switching is None or full == base:
        return None
    if not switching.side.ready:  # the last one ended it
        switching = state.switching(uses)
        if switching.settle(full, SETTLE_S) is None:
            return None
    return switching, full


def _switched_on(state: State, switching: Switching, full: Variant, added: Variant) -> bool:
    """Switch levers on; whether they are in, and steps no slower. Why not is noted."""
    state.bench.listener.trial("switch on", " + ".join(added))
    uses = [switching.known[name] for name in added]
    compiles = any(state.levers[name].compiles for name in (*full, *added))
    try:
        now = _settle(state, switching, (*full, *added), COMPILE_SHARE * state.budget.seconds if compiles else SETTLE_S)
    except SideLost as end:
        trial = switching.side.measured
        best = {use.name for use in state.best.levers}
        before = [switching.known[name] for name in full if name not in best]
        if end.by_itself or state.blamed(trial.ended, [*uses, *before]) in before:  # it went in before these
            raise
        state.side = None
        for use in uses:
            state.refuse(use, trial.ended if len(uses) == 1 else f"{trial.ended}; with {names(uses)}", trial=trial)
        return False
    for use in uses:
        if why := _not_in(switching, use.name):
            state.refuse(use, why)
            return False
    usual = switching.last_ms[full]
    if now is not None and now > SLOWER * usual and not compiles:
        usual = switching.now_ms(full)  # it may be the machine
    bad, worth = _unfit(state, switching, uses, now, usual)
    if now is None or bad:
        for use in uses:
            state.refuse(use, bad, worth)
        return False
    if now > SLOWER * usual and not compiles:  # blocks in turn tell
        ours = (*full, *added)
        switching.measure([full, ours], lambda so_far: so_far.clear([(full, ours)], CLEAR), PASS_S / 2)
        worth = _worth(switching.ratio(full, ours), ours, added[0])
        if worth.interval is not None and worth.interval.high < 1:
            for name in added:
                state.drop(name, "slower when switched on", worth)
            state.say(f"drop  {' + '.join(added)}  {worth_text(worth)}slower when switched on")
            return False
    return True


def _unfit(
    state: State, switching: Switching, uses: Sequence[records.Lever], now: float | None, usual: float
) -> tuple[str, Worth | None]:
    """Why steps with levers that were just switched on are no good, with what was measured; "" where they are."""
    if now is None:
        return "no step could be timed", None
    if now > TOO_SLOW * usual:
        return f"much slower: {now:.3g} ms a step, not {usual:.3g}", Worth(ratio=usual / now)
    return other_work(state, switching.rows, uses, switching.settling) or "", None


def _not_in(switching: Switching, name: str) -> str | None:
    """Why a lever is not in though it was put in, as it says itself."""
    folder = switching.side.folder
    for problem in RunFolder(folder).problems:
        if problem.lever in {name, None}:
            return f"refused: {problem.what.removeprefix(REFUSED)[:300]}"
    out = left_out(folder, Spare(frozenset({name}), 1)).get(name)
    return None if out is None else f"nothing to change: {out.why}"


def _eliminate(
    state: State, switching: Switching, base: Variant, full: Variant
) -> tuple[Variant, dict[str, Worth]]:  # fmt: skip
    """Take out what is not worth it beside the others; the set that is left, with what each is worth in it. Of several
    that go out at once it is looked whether one hid another. Raises BudgetSpent, SideLost."""
    larger: Variant = ()
    worth: dict[str, Worth] = {}
    for _ in range(PASSES):
        tested = [name for name in full if name not in base]
        without = {name: tuple(one for one in full if one != name) for name in tested}
        variants = list(dict.fromkeys([full, *without.values(), *([larger] if larger else [])]))
        if worth and not _before_proof(state, switching, len(variants)):
            break
        pairs = [(variant, full) for variant in without.values()]
        _measure(state, switching, variants, pairs)
        worth = {name: _worth(switching.ratio(without[name], full), full, name) for name in tested}
        if larger and _surely(_worth(switching.ratio(full, larger), larger)):
            gone = [name for name in larger if name not in full]
            best = max(gone, key=lambda name: state.found.dropped[name].ratio or 0.0)
            del state.found.dropped[best]
            full, larger = (*full, best), ()
            continue
        out = [name for name in tested if not _may_be(worth[name])]
        for name in out:
            state.no_gain([switching.known[name]], worth[name])
        if not out:
            break
        larger = full if len(out) > 1 else ()
        full = tuple(name for name in full if name not in out)
        if full == base and larger:  # one of them may be worth something where the others are not in
            best = max(out, key=lambda name: worth[name].ratio)
            full = (*base, best)
        if full == base:
            break
    return full, {name: one for name, one in worth.items() if name in full and _surely(one)}


def _measure(state: State, switching: Switching, variants: list[Variant], pairs: list[tuple[Variant, Variant]]) -> None:
    """Cycles of blocks, the fewest where no more time is left beside a proof, until it is known of each pair what the
    second wins. Raises BudgetSpent, SideLost."""
    budget = state.budget
    if budget.left <= budget.proof_s:
        raise BudgetSpent(f"a longer look at {' + '.join(variants[-1])}")
    seconds = max(0.0, min(PASS_S, budget.left - budget.first_proof_s))
    switching.measure(variants, lambda so_far: so_far.clear(pairs, CLEAR), seconds)


def _before_proof(state: State, switching: Switching, variants: int) -> bool:
    """Whether cycles of so many come before a proof: the fewest leave its time, and where nothing is proved yet they
    are short. What is not looked at one by one then has its figures when it is proved."""
    state.plan_turns()
    seconds, budget = variants * CYCLES[0] * switching.block_s, state.budget
    return seconds < budget.left - budget.first_proof_s and (budget.proved or seconds < LONG_S)


def _pass_s(state: State) -> float:
    """Seconds of cycles in one pass, over two variants at least."""
    return max(PASS_S, 2 * CYCLES[0] * (LEAST_BLOCK + 1) * state.budget.step_s)


def _surely(worth: Worth) -> bool:
    """Whether its interval lies above 1."""
    return worth.interval is not None and worth.interval.low > 1


def _may_be(worth: Worth) -> bool:
    """Whether it wins something, or promises to and noise hides how much: then it stays until the whole is proved."""
    noisy = worth.interval is not None and worth.interval.high >= PROMISING
    return _surely(worth) or (noisy and worth.ratio > 1)


def _worth(ratio: Ratio | None, full: Variant, name: str = "") -> Worth:
    beside = tuple(one for one in full if one != name)
    found = ratio or Ratio(0.0, None)
    return Worth(ratio=found.ratio, interval=found.interval, beside=beside, by="switching")


def switchable(state: State, uses: Sequence[records.Lever]) -> bool:
    """Whether other levers can be switched beside these: what a CUDA graph has recorded is fixed."""
    return all(state.levers[use.name].stage != "graphs" for use in uses if use.name in state.levers)
