"""The bare command and the best set, both started afresh, alive at once and taking turns.

Two starts of each at least; more where two do not tell, as often as `statistics.LOOKS` allows and the budget lasts.
Nothing that chose the set is used again. Processes of the bare command are kept for the next proof: they stand still.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean, median

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
    of_pairs,
)
from hotlap.experiment.turns import LEAST_ROUNDS, PLACED_ROUNDS
from hotlap.experiment.turns import ROUNDS as TURNS
from hotlap.records.run import Lever
from hotlap.records.tune import Parity, Proof

from .budget import MARGIN
from .objective import peak_bytes
from .starts import other_work
from .state import State

STARTS = 2
MOST_STARTS = 8
"""Of each, where the interval stays wide."""
MOST_BARE = 4
"""Until it is decided."""
ROUNDS = (8, 8, 12, 16)
"""Of turns of all, at most, by look: where starts do not tell, it is mostly turns that differ."""
MOST_ROUNDS = 40
"""Where the budget allows for no more looks."""
NARROW_ENOUGH = 0.05
"""Half-width of an interval."""
BESIDE_BYTES = 2**30
"""What a process holds beside what its allocator, or its peak, tells: CUDA's context, libraries."""
SURE = 0.004
OF_GAIN = 0.05
"""Standard error of what a process's turns say of it, as a logarithm; or of the gain's own, where that is more."""
UNSURE = "not sure enough: a proof needs 99% confidence"
"""The levels of all looks together (`statistics.LOOKS`); the interval that is shown is of 95%."""
NOISE = "fresh starts differ too much to tell it from no gain"
PACES = 1.25
"""What a comparison tells at least over what turns before it do, from which the machine's pace changed in it."""


class Comparison:
    """The best set beside the bare command."""

    def __init__(self, state: State) -> None:
        self.state, self.look, self.began = state, 0, 0
        """The running look, and the first one."""
        self.fresh: list[Side] = []
        """What was started for it."""
        self.levers = list(state.best.levers)
        self.promised = state.open_ratio
        """What was measured of them before, over what is proved."""
        self.in_all = self.promised * (state.found.proved.ratio if state.found.proved is not None else 1.0)
        """The same over the bare command."""
        self._let_go_of_pausing()
        self.before: list[Side] = [side for side in state.bare if side.alive]
        self.after: list[Side] = []
        self.turns_before = len(state.bench.turns)
        self.turns: list[dict[int, float]] = []
        """Ms a step (over the rows of a step, where sides hold other numbers of rows) by side, in each round."""
        self.pairs: list[tuple[float, float]] = []
        """Ms a step of runs one after another: of the bare command, and with the levers."""
        self.ratio = Ratio(math.nan, None)
        self.failed = ""
        self.short = False
        self._judge: Callable[..., Ratio] = lambda last=False: self.ratio
        """What the last look had, judged; once more where the budget allows no other (last)."""

    def run(self) -> None:
        """Looks, one after the other, until one of them decides."""
        state, budget = self.state, self.state.budget
        against = names(state.given) if state.given else "the bare command"
        state.say(f"prove  {names(self.levers)} against {against}, from fresh starts")
        self.began = self._first()
        for look in range(self.began, len(LOOKS)):
            self.look = look
            if look > self.began and budget.left < self._look_s:
                self.short = True
            else:
                (self._sequential if state.sequential else self._turns)(look)
            if self.short and not self.failed and not self.ratio.proved:
                self.ratio = self._judge(last=True)
            if self.short or self.failed or self._decided():
                return

    def _first(self) -> int:
        """The look to begin with. Where there is time, with more than two starts of each: three, where they come at
        once, and where turns differ too much for what was measured to be proved by two and many turns; four, where
        these come at once, memory holds all, and half of the time is left then. Their intervals are a quarter
        narrower."""
        state, budget = self.state, self.state.budget
        if state.sequential or state.memory or budget.left < budget.proof_s:
            return 0
        for look in (2, 1):
            starts = STARTS + look
            if budget.crowded or 2 * starts - len(self.before) > budget.at_once:
                continue
            if look == 1 or (budget.left > 2 * budget.proof_of(starts) and self._fit(2 * starts)):
                return look
        if state.open_ratio == 1:  # of a remembered set nothing is known
            return 0
        error = state.turns_differ / math.sqrt(ROUNDS[0])
        before, after = ([Effect(log, error)] * STARTS for log in (math.log(state.open_ratio), 0.0))
        return 0 if between_processes(before, after).proved else 1

    def _let_go_of_pausing(self) -> None:
        """End processes of the bare command that would soon evaluate, say, for longer than a start takes."""
        bench, budget = self.state.bench, self.state.budget
        for side in [one for one in self.state.bare if one.ready and not self.state.sequential]:
            if bench.pauses_s([side], PLACED_ROUNDS) > MARGIN * (budget.boot_s + budget.warmup_s):
                bench.end(side)

    def _fit(self, sides: int) -> bool:
        """Whether the memory surely holds so many of them."""
        one, host = self.state.best.diagnosis, self.state.bench.plan.environment.memory_gib * 2**30
        if one.peak_bytes is None or one.memory_bytes is None:
            return False
        on_host = self.state.facts.peak_rss_bytes or 0
        return sides * (one.peak_bytes + BESIDE_BYTES) < one.memory_bytes and sides * on_host < host / 2

    @property
    def _look_s(self) -> float:
        """Seconds that another look takes at least."""
        budget = self.state.budget
        if self.state.sequential:
            return 2 * budget.best_start_s
        sides = [side for side in (*self.before, *self.after) if side.ready]
        paused_s = self.state.bench.pauses_s(sides, LEAST_ROUNDS)
        return budget.starts_s(2) + budget.turns_s(len(sides) + 2, LEAST_ROUNDS) + paused_s

    def more_starts(self) -> Proof | None:
        """With more starts of each, while the interval is wide and there is time; None where none was added. What is
        proved stays so as long as the interval of all of them lies above 1."""
        state, budget, before = self.state, self.state.budget, len(self.after)
        while (
            len(self.after) < MOST_STARTS
            and not (self.failed or state.sequential)
            and state.reference.ready
            and self.wide
        ):
            stand = [side for side in self.before if side.ready]
            most = max(1, min(len(stand), budget.at_once) // 2)
            left = budget.left - state.bench.pauses_s(stand[: 2 * most], LEAST_ROUNDS)
            new = next((new for new in range(most, 0, -1) if left >= MARGIN * budget.narrowing_s(new)), 0)
            if not new:
                break
            self.short = False  # it is for a look that no time was left
            known = len(self.fresh)
            self.look += new
            there = self._starts(min(STARTS + self.look, MOST_STARTS), MOST_STARTS)
            added = [side for side in self.fresh[known:] if side.ready]
            # as many stand beside them as they are, else turns tell nothing of them beside those of before
            sides = [*stand[: len(added)], *added]
            seconds = min(budget.turns_s(len(sides)), budget.left)
            there = there and self._take(self.look, sides, TURNS, seconds, enough=self._narrow)
            for side in added:  # their memory is for the next
                state.bench.end(side)
            if not there:
                break
        had = {number for turn in self.turns for number in turn}
        self.after = [side for side in self.after if side.number in had]  # the budget may have ended before their turns
        if (len(self.after) == before and not self.failed) or state.sequential:
            return None
        found = self.ratio
        holds = found.interval is not None and found.interval.low > 1
        self.ratio = Ratio(found.ratio, found.interval, proved=holds)
        return self.result()

    @property
    def wide(self) -> bool:
        """Whether more starts should narrow the interval."""
        return self.ratio.interval is not None and half_width(self.ratio.interval) > NARROW_ENOUGH

    def _decided(self) -> bool:
        found = self.ratio
        if found.interval is None:
            return False
        if self.state.memory:
            return half_width(found.interval) < 0.1
        luck = found.ratio < LEAST_GAIN and found.interval.high < self.promised  # it is what chose them
        return found.proved or found.interval.high < LEAST_GAIN or luck

    # alive at once

    def _starts(self, wanted: int, bare: int) -> bool:
        """Start what is missing of so many with the levers, and of the bare command; whether all are there."""
        state = self.state
        todo = [True] * (wanted - len(self.after)) + [False] * max(0, min(wanted, bare) - len(self.before))
        while todo:
            if self._over():
                return False
            batch, todo = todo[: state.budget.at_once], todo[state.budget.at_once :]
            begun = [self._start(with_levers) for with_levers in batch]
            state.ready(*begun)
            begun = [self._once_more(side, with_levers) for side, with_levers in zip(begun, batch, strict=True)]
            self.fresh += begun
            for side in begun:
                self._arrived(side)
                if self.failed or state.sequential:
                    return False
        return True

    def _turns(self, look: int) -> None:
        state = self.state
        there = self._starts(STARTS + look, MOST_BARE)
        if state.sequential:
            self._sequential(look)
        if not there or state.sequential:
            return
        self._settle_reference()
        if state.sequential or self.failed:
            return
        sides = [side for two in self._both() for side in two if side.ready and side is not state.side]
        most = sum(ROUNDS[: look + 1]) if look == self.began else ROUNDS[min(look, len(ROUNDS) - 1)]
        seconds = state.budget.turns_s(len(sides), most)
        last = state.budget.left - seconds < self._look_s
        if last:  # what parity is likely to take is left for it
            parity_s = MARGIN * state.judge.runs_left(self.levers) * state.budget.best_start_s
            most, seconds = MOST_ROUNDS, state.budget.left - parity_s
        if not self._take(look, sides, most, seconds):
            self._too_few(look, sides)
        elif last:
            self._rest(look + 1, sides)

    def _rest(self, look: int, sides: Sequence[Side]) -> None:
        """After what was to be the last look, parity's time as well where that did not tell: a look of its own."""
        budget = self.state.budget
        open_ = look < len(LOOKS) and not (self._decided() or self._told(self.turns))
        if open_ and all(side.ready for side in sides) and budget.left > budget.turns_s(len(sides), 1):
            self._take(look, sides, MOST_ROUNDS, budget.left, least=1)

    def _take(
        self,
        look: int,
        sides: Sequence[Side],
        most: int,
        seconds: float,
        least: int = LEAST_ROUNDS,
        enough: Callable[[list[dict[int, float]]], bool] | None = None,
    ) -> bool:
        """Turns of these, and what they tell with those before; whether there were enough. least: fewer than
        LEAST_ROUNDS add to a look that there was."""
        state = self.state
        per_row = state.resized(self.levers)
        rounds = state.take_turns(
            sides, most, seconds, enough=enough or self._sure, per_row=per_row, most_s=state.budget.left, least=least
        )
        self.turns += rounds
        if len(rounds) < least:
            return False
        self._judge = partial(between_processes, *self._effects(self.turns), look, first=look == self.began)
        self.ratio = self._judge()
        return True

    def _effects(self, turns: list[dict[int, float]]) -> tuple[list[Effect], list[Effect]]:
        known = effects(turns)
        before, after = ([known[side.number] for side in two if side.number in known] for two in self._both())
        return before, after

    def _over(self) -> bool:
        """Whether no time is left for another start."""
        self.short = self.short or self.state.budget.left < self.state.budget.best_start_s
        return self.short

    def _both(self) -> tuple[list[Side], list[Side]]:
        return self.before, self.after

    def _too_few(self, look: int, sides: Sequence[Side]) -> None:
        """A side ended in its turns. One that came from before had made its steps: another one takes its place."""
        ended = [side for side in sides if not side.alive]
        if not ended:  # the budget did
            self.short = True
        elif not any(side in self.fresh for side in ended):
            self.before, self.after = [[s for s in all_ if s.alive] for all_ in (self.before, self.after)]
            self._turns(look)
        else:
            self._give_up_turns(f"a process ended before its turns were over: {ended[0].measured.ended}")
            self._sequential(look)

    def _sure(self, rounds: list[dict[int, float]]) -> bool:
        """Whether enough turns were made, these among them."""
        return len(rounds) >= LEAST_ROUNDS and self._told([*self.turns, *rounds])

    def _narrow(self, rounds: list[dict[int, float]]) -> bool:
        """Whether the interval is narrow enough with these turns."""
        if len(rounds) < LEAST_ROUNDS:
            return False
        interval = between_processes(*self._effects([*self.turns, *rounds])).interval
        return interval is not None and half_width(interval) <= NARROW_ENOUGH

    def _told(self, turns: list[dict[int, float]]) -> bool:
        """Whether more turns would tell nothing beside what differs from start to start."""
        known = effects(turns)
        theirs, ours = (fmean(known[one.number].log for one in two if one.number in known) for two in self._both())
        return all(one.error < max(SURE, OF_GAIN * abs(ours - theirs)) for one in known.values())

    def _settle_reference(self) -> None:
        """The bare command's process that all have turns with."""
        state = self.state
        if state.reference.ready:
            return
        state.bare = [side for side in state.bare if side.ready]
        self.before, self.after = list(state.bare), [side for side in self.after if side.ready]
        self.turns.clear()
        if not self.before:
            self._arrived(state.started("bare", state.given))
        if self.before:
            state.reference = self.before[0]

    def _start(self, with_levers: bool) -> Side:
        state = self.state
        if with_levers:
            return state.start("prove", self.levers, Special(trying=tuple(use.name for use in self.levers)))
        return state.start("bare", state.given)

    def _once_more(self, side: Side, with_levers: bool) -> Side:
        """A start that came to nothing where others of the same did not is made again, by itself. Seen: scripts that
        began in the same second took the same name for their folder."""
        if side.measured.outcome not in {"crashed", "too few steps"}:
            return side
        same = [one.outcome for one in self.state.bench.done if same_levers(one.levers, side.requested)]
        if "measured" not in same or self._over():
            return side
        again = self._start(with_levers)
        self.state.ready(again)
        return again

    def _arrived(self, side: Side) -> None:
        """A side is there, or came to nothing."""
        state, trial = self.state, side.measured
        bare = list(side.requested) == list(state.given)
        if trial.outcome == "memory" and any(one.alive for one in state.bench.sides):
            self._give_up_turns("several do not fit in memory together")
        elif trial.outcome != "measured" and bare:
            self._give_up_turns(
                f"two runs of the bare command do not work at the same time: {trial.outcome}: {trial.why}"
            )
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
        self.before, self.after, self.turns = [], [], []

    def _sequential(self, look: int) -> None:
        """Pairs of whole runs, ABBA."""
        state = self.state
        while len(self.pairs) < STARTS + 1 + look and not self.failed:
            first = len(self.pairs) % 2 == 0
            if state.budget.left < (2 if self.pairs else 1) * state.budget.best_start_s:
                self.short = True
                return
            made = {}
            for with_levers in (False, True) if first else (True, False):
                side = self._start(with_levers)
                state.ready(side)
                state.bench.end(side)
                if side.measured.outcome != "measured":
                    self.failed = f"{side.measured.outcome}: {side.measured.why}"
                    return
                (self.after if with_levers else self.before).append(side)
                made[with_levers] = side.measured.step_ms or math.nan
            self.pairs.append((made[False], made[True]))
            self._judge = partial(of_pairs, [math.log(bare / ours) for bare, ours in self.pairs], look)
            self.ratio = self._judge()

    # what came of it

    def refused(self) -> str | None:
        """The lever that could not be put in, where a start failed by that."""
        return next((one.lever for side in self.fresh if (one := side.measured).outcome == "refused"), None)

    @property
    def untold(self) -> bool:
        """Whether the budget ended before anything was told."""
        return self.short and not self.failed and math.isnan(self.ratio.ratio)

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
        state = self.state
        lesser = self._by_turns_before()
        self.ratio, paces = lesser or (self.ratio, None)
        found = self.ratio
        proved, why = self._gain()
        parity = self._parity() if proved else None
        if parity is not None and not parity.ok:
            proved, why = False, f"parity: {parity.why}"
        before_ms = self._bare_ms()
        if before_ms is not None and paces is not None:
            before_ms *= paces[0] / paces[1]
        return Proof(
            levers=tuple(self.levers),
            ratio=found.ratio if math.isfinite(found.ratio) else 0.0,
            interval=found.interval,
            proved=proved,
            why=why,
            starts=len(self.after),
            bare_starts=len(self.before),
            turns=len(self.turns),
            how="one after another" if self.pairs else "turns",
            before_ms=before_ms,
            after_ms=before_ms / found.ratio if before_ms and math.isfinite(found.ratio) else None,
            parity=parity,
            at_s=state.budget.spent,
            paces=paces,
        )

    def _by_turns_before(self) -> tuple[Ratio, tuple[float, float]] | None:
        """The ratio to the bare command's turns before the comparison, where that is clearly below the interval: other
        work of the machine that came just then slowed one side more than the other. With medians of the bare command's
        turns, before it and in it. Not where what was measured before says the same: then it slows both alike."""
        ours, known, found = self._levels(self.levers), self._levels(self.state.given, self.turns_before), self.ratio
        if self.pairs or found.interval is None or not ours or len(known) < LEAST_ROUNDS:
            return None
        before, ratio = median(known), median(known) / median(ours)
        if found.interval.low < PACES * max(ratio, self.in_all):
            return None
        interval = msgspec.structs.replace(found.interval, low=ratio)
        mine = {side.number for side in self.before}
        then = median([ms for turn in self.turns for side, ms in turn.items() if side in mine])
        return Ratio(ratio, interval, proved=found.proved and ratio > LEAST_GAIN), (before, then)

    def _levels(self, levers: Sequence[Lever], most: int | None = None) -> list[float]:
        """Ms a step of each turn that was taken with these in. most: of the first so many turns of this session."""
        per_row, wanted = self.state.resized(self.levers), {use.name: use.settings for use in levers}
        turns = [turn for both, turn in self.state.bench.turns[:most] if both == wanted]
        return [turn.step_ms / (turn.rows or 1.0) if per_row else turn.step_ms for turn in turns if turn.step_ms]

    def _bare_ms(self) -> float | None:
        """Of a step of the bare command: what its turns took, or its runs."""
        rows = (self.state.reference.measured.rows or 1.0) if self.state.resized(self.levers) else 1.0
        turns = [rows * turn[side.number] for turn in self.turns for side in self.before if side.number in turn]
        logs = [math.log(one) for one in [bare for bare, _ in self.pairs] or turns]
        return math.exp(center(logs)) if logs else None

    def _gain(self) -> tuple[bool, str]:
        state, found = self.state, self.ratio
        if self.failed:
            return False, self.failed
        if state.memory:
            return self._saves()
        if found.proved:
            works = (other_work(state, side.measured.rows, side.requested) for side in self.after)
            work = next(filter(None, works), None)
            return work is None, work or ""
        if found.interval is not None and found.interval.high < LEAST_GAIN:
            return False, "no gain"
        why = UNSURE if found.interval is not None and found.interval.low > 1 else NOISE
        return False, f"{why}, and the budget ended" if self.short else why

    def _saves(self) -> tuple[bool, str]:
        state, interval = self.state, self.ratio.interval
        least = min(peak_bytes(side.measured) for side in self.before)
        most = max(peak_bytes(side.measured) for side in self.after)
        if least < LEAST_GAIN * most:
            return False, "less than 2% of memory saved"
        if interval is not None and interval.high < 1 / (1 + state.request.slowdown):
            return False, "steps are slower than --slowdown allows"
        return True, ""

    def _parity(self) -> Parity:
        """Of all processes with the levers that were not judged yet; the first that fails, else the last."""
        state = self.state
        bare = self.before if len(self.before) > 1 else self.before * 2  # the same twice where there is but one
        state.judge.base, state.judge.again, *state.judge.more = (state.bench.evidence(one.measured) for one in bare)
        parity: Parity | None = None
        for side in [side for side in self.after if side.measured.parity is None]:
            parity = state.judge.judge(self.levers, side.measured)
            state.bench.amend(side.measured, parity=parity)
            if not parity.ok:
                break
        assert parity is not None
        return parity

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
