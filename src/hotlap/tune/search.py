"""The search: the bare command, then stage by stage what is cheap first, and a proof after each stage.

First what costs no compilation, then compilers on top of what is proved, then CUDA graphs. Within a stage, levers that
can be switched are screened in one live process (`screening.py`), others get a start of their own (`starts.py`).
Whatever a stage wins is proved (`prove.py`) before the next begins. At the end each kept lever is measured beside all
the others (`worth.py`).
"""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from statistics import pstdev
from typing import Final

from hotlap.experiment.evidence import gaps
from hotlap.experiment.outcome import names, same_levers
from hotlap.experiment.side import TOO_LONG, Bench, Side, Special
from hotlap.experiment.statistics import center
from hotlap.experiment.turns import log_ratios
from hotlap.levers import all_levers
from hotlap.levers._base import STAGES, Lever, Stage
from hotlap.records import run as records
from hotlap.records.diagnosis import bound_text
from hotlap.records.errors import CommandFailed, NothingMeasured
from hotlap.records.tune import NOT_TRIED, Tune, Worth

from .budget import COMPILE_SHARE, BudgetSpent
from .candidates import Candidate, candidate_of, candidates, compatible, excluded, together, untried
from .fit import fit, fitted
from .objective import TuneRequest
from .prove import prove
from .recipe import clashing
from .reference import NO_TIME
from .remember import Remembered, of_earlier
from .screening import screen, switch_in_place, switchable
from .starts import try_start, try_together
from .state import Best, Found, State, by_text, value_text
from .worth import each_for_itself

FIRST_S: Final = 2.0
"""Of steady steps of the bare command's first run, which is diagnosed."""
MOST: Final = 1 / (1 - 0.3)
"""What an input lever has to promise, 30% of the step, to hide what all others are worth: it comes before them."""
LAUNCHES: Final = 0.5
"""Of the step, in which the device waits for the host, from which CUDA graphs come first: to record costs a start, to
compile up to a third of the budget, and what makes kernels shorter shows only where none waits for its launch."""
AGAIN: Final = 1.15
"""What a lever has to promise for a second look."""
WORTH_A_PROOF: Final = 1.1
"""A gain that is smaller waits for what the next stage adds to it: a proof takes as long as a stage."""
MOST_EXCHANGES: Final = 2
ROUNDS: Final = 4


class Search:
    """One tune of one command. earlier: what an earlier session of it found: what it proved stands."""

    def __init__(
        self,
        bench: Bench,
        request: TuneRequest,
        levers: Mapping[str, Lever] | None = None,
        clock: Callable[[], float] = time.monotonic,
        earlier: Tune | None = None,
    ) -> None:
        self.state = State(bench, request, levers or all_levers(), clock)
        self.known = Remembered()
        if earlier is not None:
            self.known = of_earlier(earlier)
            self._take_over(earlier)

    @property
    def found(self) -> Found:
        """What is known so far."""
        return self.state.found

    def run(self) -> Found:
        """The whole search. KeyboardInterrupt leaves `found` as far as it got."""
        state = self.state
        self.bare()
        stages = list(STAGES)
        try:
            if state.found.proved is not None:
                state.keep(state.found.proved.levers)
            self.remember()
            while not self._ended(stages):
                pass
        except BudgetSpent as spent:
            self._spent(str(spent))
        state.narrow_down()
        state.found.fitted = fitted(state)
        if state.found.no_reference == NO_TIME:
            state.found.not_done.append("no time was left to measure the cost of the levers that make it fit")
        return state.found

    def _ended(self, stages: list[Stage]) -> bool:
        """The search, from the first of these stages on, which it takes off the list; whether it came to its end. Where
        what is measured has to be proved before there is time for more, it is. Raises BudgetSpent."""
        proofs = len(self.found.proofs)
        try:
            self._go_on(stages)
        except BudgetSpent:
            prove(self.state)
            if len(self.found.proofs) == proofs:
                raise
            return False
        return True

    def _go_on(self, stages: list[Stage]) -> None:
        state = self.state
        while stages:
            if self.waits_for_launches():
                self._one_by_one("first", True, MOST)
                stages.sort(key=lambda one: one != "graphs")
            self.stage(stages[0])
            del stages[0]
            if state.open_ratio >= WORTH_A_PROOF:
                prove(state)
        prove(state)
        self._one_by_one(None)
        prove(state)
        self.exchange()
        prove(state)
        self.refine()
        self._tell_unsure()
        while each_for_itself(state):
            prove(state)
        self.let_go()

    def _spent(self, was_next: str) -> None:
        """The budget ended the search: what was measured is proved if there is time, and what was not tried is said, or
        else what was to be done next."""
        state = self.state
        prove(state)
        self._tell_unsure()
        with suppress(BudgetSpent):
            while each_for_itself(state):
                prove(state)
        also = self.not_tried("the budget ended") or f"; not done: {was_next}"
        state.found.not_done.insert(0, f"the budget ended the search{also}")
        state.say(f"budget  {state.found.not_done[0]}")

    def not_tried(self, why_not: str) -> str:
        """Notes of each lever that was to be tried why it was not; and which these are, to go behind a sentence."""
        state = self.state
        if not state.bare:  # what applies is not known before the bare command was seen
            return ""
        context = state.context()
        measured = state.found.unproved.levers if state.found.unproved is not None else ()
        known = {*context.active, *state.refused, *state.found.dropped, *(use.name for use in measured)}
        left = {name: excluded(state, lever, context) for name, lever in state.levers.items() if name not in known}
        for name, why in left.items():
            state.drop(name, why or f"{why_not} {NOT_TRIED}")
        untried = [name for name, why in left.items() if why is None]
        return f"; not tried: {', '.join(untried)}" if untried else ""

    # the bare command

    def bare(self) -> None:
        """Two processes of the bare command. Raises CommandFailed, NothingMeasured."""
        state = self.state
        special = Special(seconds=FIRST_S)
        first, second = (state.bench.start("baseline", (), special, state.budget.left / 2) for _ in range(2))
        state.reference = first
        state.bench.ready(first, second)
        if first.measured.outcome != "measured" and second.measured.outcome == "measured":
            first, second = second, first  # it had no room, or both wanted a folder of one name
        if first.measured.outcome == "memory":
            first = state.reference = fit(state, first)
            second = state.started("baseline", state.given)
        state.reference = first
        self._first(first)
        if second.measured.outcome not in {"measured", "memory"}:  # once more: it may be that they began in one second
            second = state.started("baseline", state.given)
        if second.measured.outcome != "measured":
            beside = second.measured
            state.bench.end_all()
            second = state.started("baseline", state.given)
            state.sequential = f"two runs at the same time failed: {beside.outcome}: {beside.why}"
        self._second(first, second)

    def _first(self, first: Side) -> None:
        """What is made of it."""
        state, trial = self.state, first.measured
        output = state.bench.run(trial).output
        if trial.outcome == "crashed":
            raise CommandFailed(f"the command itself fails, without any lever: {trial.why} (see {output})")
        if trial.outcome != "measured":
            raise NothingMeasured(f"{trial.why} (see {output})")
        step_ms = trial.step_ms or 0.0
        state.budget.crowded = state.bench.crowded
        state.budget.baseline_took(first.until_s, first.rest_s, step_ms, first.least_steps)
        facts = state.bench.rank(trial).facts
        if facts is None:
            raise NothingMeasured(f"{trial.folder}: hotlap has no record of the model and loaders (facts.json)")
        state.facts = facts
        diagnosis = state.bench.diagnosis(trial)
        state.best = Best(list(state.given), diagnosis)
        state.found.baseline, state.found.seeded = diagnosis, facts.seeded
        state.bare = [first]
        if not first.alive:
            state.sequential = f"the command ends by itself after {state.bench.rank(trial).steady.seen} steps"

    def _second(self, first: Side, second: Side) -> None:
        """How far two runs differ. The second is the process in which levers are switched first."""
        state, trial = self.state, second.measured
        if trial.outcome != "measured":
            output = state.bench.run(trial).output
            raise CommandFailed(f"a second run of the command failed: {trial.why} (see {output})")
        state.judge.base, state.judge.again = (state.bench.evidence(side.measured) for side in (first, second))
        rounds = []
        if first.ready and second.ready:
            rounds = state.take_turns([first, second], ROUNDS, state.budget.turns_s(2, ROUNDS))
        if len(rounds) >= ROUNDS:
            logs = log_ratios(rounds, first, second)
            differ, state.turns_differ = center(logs), pstdev(logs) / math.sqrt(2)
        else:
            differ = math.log((first.measured.step_ms or 1.0) / (second.measured.step_ms or 1.0))
            if not state.sequential:
                ended = first.measured.ended or second.measured.ended or "a turn takes too long"
                state.sequential = f"two runs at the same time can't take turns: {ended}"
        state.found.noise = abs(differ)
        state.side = second if second.ready and not state.sequential else None
        own = gaps(state.judge.base, state.judge.again)
        how = "taking turns" if not state.sequential else "one after the other"
        value = state.value(first) if state.memory else state.best.diagnosis.step_ms  # a turn's may be another
        state.say(
            f"baseline  {value_text(value, state.memory)}  {bound_text(state.best.diagnosis.bound)}; "
            f"two runs {how} differ {by_text(math.expm1(abs(differ)), 1)} in time, {by_text(own.loss, 2)} in loss"
        )
        if state.sequential:
            state.one_after_another(state.sequential)

    # an earlier session

    def _take_over(self, tune: Tune) -> None:
        """What an earlier session proved stands from the beginning."""
        self.state.found.unproved = tune.unproved
        proved = [proof for proof in tune.proofs if proof.proved] if tune.gain else []
        if not proved or any(use.name not in self.state.levers for use in proved[-1].levers):
            return
        found = self.state.found
        found.proofs, found.proved, found.tuned = list(tune.proofs), proved[-1], tune.tuned
        found.baseline = tune.baseline
        found.worth = {kept.lever: kept.worth for kept in tune.kept if kept.worth is not None}
        found.memory, found.break_even = (tune.memory_before_bytes, tune.memory_after_bytes), tune.break_even_steps

    def remember(self) -> None:
        """What an earlier session kept is proved first; what failed is not tried."""
        state, known = self.state, self.known
        for failed in known.failed:
            if failed.lever in state.levers:
                state.refused.add(failed.lever)
                worth = Worth(ratio=failed.ratio) if failed.ratio else None
                state.drop(failed.lever, f"as in an earlier session: {failed.why}", worth, remembered=True)
        if known.failed:
            lost = ", ".join(failed.lever for failed in known.failed)
            state.found.reused.append(f"not tried again, as they failed in an earlier session: {lost}")
        kept = self._still_apply(known)
        if kept and not same_levers(kept, state.best.levers):
            state.say(f"remembered  {names(kept)}, as in an earlier session: proved first")
            state.keep([*state.given, *kept])
            prove(state)
            proved = state.found.proved
            if proved is not None and same_levers(proved.levers, [*state.given, *kept]):
                state.found.reused.append(f"the set of an earlier session was proved first ({names(kept)})")
            else:
                state.refused -= {failed.lever for failed in known.failed}
                state.found.dropped = {n: one for n, one in state.found.dropped.items() if not one.remembered}
                state.found.reused.clear()
        for line in state.found.reused:
            state.say(f"remembered  {line}")

    def _still_apply(self, known: Remembered) -> list[records.Lever]:
        state = self.state
        active = {use.name: use.settings for use in state.given}
        chosen: list[records.Lever] = []
        for use in [use for use in known.kept if use not in state.given]:
            lever = state.levers.get(use.name)
            if lever is None or excluded(state, lever, state.context(active)) is not None:
                return []
            chosen.append(use)
            active[use.name] = use.settings
        return chosen

    # stages

    def stage(self, stage: Stage) -> None:
        """Try the levers of a stage, again where what was kept has moved the bound."""
        state = self.state
        if state.memory:
            if stage == STAGES[0]:
                self._one_by_one(None)
            return
        while True:
            kept = stage == STAGES[0] and self._one_by_one(stage, True, MOST)
            live = self._can_switch(stage)
            if live:
                kept = self._screened(stage) or kept
                self._prove_first(leaves=0.5)
            least = AGAIN if stage == "first" else 1.0
            kept = self._one_by_one(stage, live and not state.sequential, least) or kept  # that may be known since then
            if not kept:
                return
            if stage in {"compiler", "graphs"}:
                self._once_more()

    def _can_switch(self, stage: Stage) -> bool:
        state = self.state
        return not state.sequential and stage in {"first", "compiler"} and switchable(state, state.best.levers)

    def _screened(self, stage: Stage) -> bool:
        """Levers that can be switched: all at once those that cost nothing to switch, then those that these kept out;
        then the others one after another, the cheapest first: blocks are compiled before the whole."""
        state, kept = self.state, False
        while self._can_switch(stage) and (cheap := [one for one in together(state, stage) if not one.lever.costs_s]):
            kept = screen(state, cheap) or kept
        while self._can_switch(stage) and (dear := self._dear(stage)):
            first = min(dear, key=lambda one: one.lever.costs_s)
            kept = screen(state, [first]) or kept
            self._prove_first(leaves=0.25)
            known = state.found.dropped.get(first.lever.name)
            if first.lever.compiles and known is not None and known.why == TOO_LONG:
                for other in [one for one in dear if one is not first and one.lever.compiles]:
                    state.refuse(other.use, f"{first.lever.name} took more than {COMPILE_SHARE:.0%} of the budget")
        for candidate in self._rivals(stage):
            if candidate.lever.switchable and not candidate.lever.costs_s:
                kept = self._in_place(candidate) or kept
        return kept

    def _dear(self, stage: Stage) -> list[Candidate]:
        """Those that can be switched and cost something to switch."""
        return [one for one in candidates(self.state, stage) if one.lever.switchable and one.lever.costs_s]

    def _once_more(self) -> None:
        """What cost no compilation, when something was compiled or recorded: what won nothing may do so now, as casts
        were kernels of their own, and a step that waited for the host is no more one. All at once."""
        state = self.state
        known = {one.lever for one in state.found.dropped.values() if one.remembered}
        chosen: list[Candidate] = []
        context = state.context()
        for lever in state.levers.values():
            usable = lever.switchable and lever.stage == "first"
            if not usable or lever.name in {*context.active, *state.refused, *known}:
                continue
            if excluded(state, lever, context) is None and (one := candidate_of(state, lever, context)):
                chosen.append(one)
        promising = sorted((one for one in chosen if one.predicted >= AGAIN), key=lambda one: -one.predicted)
        group = compatible(state, promising)
        if group and state.sequential:
            try_start(state, group[0])
        elif group and switchable(state, state.best.levers):
            screen(state, group, at_once=True)
        elif group:
            try_together(state, group)

    def _one_by_one(self, stage: Stage | None, switched: bool = False, least: float = 1.0) -> bool:
        """Levers with a start of their own. switched: those that can be switched have none. least: what they have to
        promise, and to win for a proof at once."""
        kept = False
        while True:
            ordered = [one for one in candidates(self.state, stage) if not (switched and one.lever.switchable)]
            if not ordered or ordered[0].predicted < least:
                return kept
            kept = try_start(self.state, ordered[0]) or kept
            self._prove_first(max(least, WORTH_A_PROOF))
            if kept and stage == "graphs":  # what makes kernels shorter shows now
                return True

    def _prove_first(self, worth: float = WORTH_A_PROOF, leaves: float = 0.0) -> None:
        """The first gain that is worth a proof is proved at once: a budget that ends later then ends with a recipe.
        leaves: so much of the budget is left after it and a second one."""
        budget = self.state.budget
        time = not leaves or budget.left - 2 * budget.proof_s > leaves * budget.seconds
        if self.found.proved is None and self.state.open_ratio >= worth and time:
            prove(self.state)

    def waits_for_launches(self) -> bool:
        """Whether the device waits for the host in so much of the step that CUDA graphs come before compilers."""
        diagnosis = self.state.best.diagnosis
        return sum(finding.share for finding in diagnosis.findings if finding.bound == "launch") >= LAUNCHES

    def _rivals(self, stage: Stage) -> list[Candidate]:
        """Levers of a stage that one in use keeps out."""
        state, own = self.state, self.state.context().active
        found = []
        for lever in untried(state, stage):
            clash = clashing(state.levers, lever, own)
            if not clash or {use.name for use in state.given} & {*clash}:
                continue
            context = state.context({name: use for name, use in own.items() if name not in clash})
            if excluded(state, lever, context) is None and (one := candidate_of(state, lever, context)) is not None:
                found.append(one)
        return found

    def _in_place(self, candidate: Candidate) -> bool:
        """Try a lever in the place of those that keep it out."""
        state = self.state
        clash = clashing(state.levers, candidate.lever, state.context().active)
        live = candidate.lever.switchable and self._can_switch(candidate.lever.stage)
        if not (switch_in_place if live else try_start)(state, candidate, clash):
            return False
        for name in clash:
            state.drop(name, f"{candidate.lever.name}, which it can't be used with, is faster")
        return True

    def exchange(self) -> None:
        """Levers that one in use keeps out get a chance in its place, those first that promise most."""
        rivals = sorted((one for stage in STAGES for one in self._rivals(stage)), key=lambda one: -one.predicted)
        for candidate in rivals[:MOST_EXCHANGES]:
            self._in_place(candidate)

    def refine(self) -> None:
        """Numbers that were put in without a search, such as how many workers: their neighbours are tried."""
        state = self.state
        for use in list(state.best.levers):
            lever, context = state.levers[use.name], state.context()
            if use in state.given or not lever.searched(context):
                continue
            candidate = candidate_of(state, lever, context)
            if candidate is not None and try_start(state, candidate, instead_of=[use.name], now=use):
                prove(state)
            state.refused.discard(use.name)
            state.found.dropped.pop(use.name, None)  # it is in as it was

    def _tell_unsure(self) -> None:
        """Where nothing else is kept, what promised a gain and could not be told from noise is told by a proof, which
        has more starts and turns; without time for that it is told as measured, and a next session begins with it."""
        state, unsure = self.state, self.state.unsure
        if unsure is not None and same_levers(state.best.levers, state.given):
            state.keep(unsure.levers, ratio=unsure.ratio)
            state.leave_open(unsure)
            prove(state)

    def let_go(self) -> None:
        """Levers that made the command fit, where others that were kept since save enough memory to do without."""
        state = self.state
        proved = state.proved
        for use in [use for use in state.given if use in proved and len(proved) > len(state.given)]:
            rest = [other for other in state.best.levers if other != use]
            state.budget.afford(2 * state.budget.best_start_s, f"whether it fits without {use.name}")
            trial = state.run(f"without {use.name}", rest)
            if trial.outcome == "measured":
                state.say(f"fits  without {use.name} too, with the levers that were kept")
                state.keep(rest)
                prove(state)
                if state.found.proved is not None and use not in state.found.proved.levers:
                    state.drop(use.name, "the command fits without it, with the levers that were kept")
