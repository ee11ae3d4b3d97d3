"""The search: which levers next, keep or drop, until nothing is left that could win.

By what each can still win, by the replay of the baseline's trace where that knows, and several in one trial where they
go together; after every kept lever the bound is read again from the trial that kept it, so that a lever whose bound has
come up is tried even if it could not win before. Then leave-one-out, so that no passenger stays, and confirmation in
ABBA pairs of fresh processes.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Final

from hotlap.levers import all_levers
from hotlap.levers._base import Lever, Settings
from hotlap.records import run as records
from hotlap.records.errors import CommandFailed, NothingMeasured
from hotlap.records.tune import Trial

from .alone import leave_one_out
from .attempt import UNSETTLED, Success, attempt, keep, noise_within, try_uses
from .budget import LONG, QUIET, BudgetSpent, log_ratio
from .candidates import LEAST_GAIN, LEAST_SHARE, Candidate, candidates, clashing, excluded, predict, together
from .confirm import confirm
from .evidence import gaps
from .fit import fit, fitted
from .group import in_parts, try_together
from .pairs import done_without, left_unproved
from .reference import NO_TIME
from .remember import Remembered
from .state import Asked, Found, Incumbent, State, by_text, use_text, value_text
from .trials import Special, Trials, names, same_levers

PROFILE_SHARE: Final = 0.08
PROFILED_S: Final = 8.0
PROFILED_AS_STEPS: Final = 25
MOST_EXCHANGES: Final = 2


class Search:
    """One tune of one command. recall: what is known of earlier tunes, asked once the baseline is measured."""

    def __init__(
        self,
        trials: Trials,
        budget_s: float,
        asked: Asked | None = None,
        levers: Mapping[str, Lever] | None = None,
        clock: Callable[[], float] = time.monotonic,
        recall: Callable[[records.Facts], Remembered] = lambda facts: Remembered(),
    ) -> None:
        self.state = State(trials, asked or Asked(), levers or all_levers(), budget_s, clock)
        self.recall = recall

    @property
    def found(self) -> Found:
        """What is known so far."""
        return self.state.found

    def run(self) -> Found:
        """Baseline, search, leave-one-out, confirmation. KeyboardInterrupt leaves `found` as far as it got."""
        state = self.state
        self.baseline()
        self.go_on()
        self.hunt(self.remember)
        if state.unproved is not None:
            self.leave_out_again()
        if state.unproved is not None and not same_levers(state.best.levers, state.unproved):  # the way is another now
            state.unproved = None
            self.hunt()
        self.look_again()
        self._note_unsettled()
        if state.found.kept:
            self.prove()
        state.found.fitted = fitted(state)
        if state.found.no_reference == NO_TIME:
            self._note("no time was left to measure what the levers cost that make it fit")
        return state.found

    def go_on(self) -> None:
        """What the last session could not confirm in its time comes first: its trials lead there, and no others."""
        state = self.state
        if not state.trials.proved:
            state.unproved = left_unproved(state.trials, state.given, state.value, state.objective.memory)
        if state.unproved is not None:
            state.say(f"resume  {names(state.unproved)}: goes on with the confirmation")

    def leave_out_again(self) -> None:
        """What left itself out of the confirmation that this one goes on with."""
        state = self.state
        for trial in done_without(state.trials):
            state.leave_out(trial)
            gone = {one.lever.name for one in trial.left_out}
            state.best.levers = [use for use in state.best.levers if use.name not in gone]

    def hunt(self, first: Callable[[], object] = lambda: None, tried: Iterable[tuple[str, str]] = ()) -> None:
        """Search and leave-one-out, as far as the budget goes. tried: see `climb`."""
        state = self.state
        state.found.not_done = ""
        try:
            first()
            self.climb(set(tried))
            self.exchange()
            self.adjust()
            leave_one_out(state)
            self.let_go()
        except BudgetSpent:
            self._note_unfinished()

    def prove(self) -> None:
        """Confirmation; what turns out to be slower is tried in parts, once, and what comes of that confirmed."""
        state, found = self.state, self.state.found
        kept, reused = list(found.kept), len(found.reused)
        lost = confirm(state)
        if lost is None:
            return
        state.budget.gain = False
        try:
            state.budget.afford_second_look(state.budget.trial_s)
        except BudgetSpent:
            self._note("no time was left to try in parts what was slower when it was confirmed")
            return
        found.forget_confirmation()
        del found.reused[reused:]
        self.part([(one.lever, one.settings) for one in kept if one.lever not in state.refused], lost)
        self._note_unsettled()
        if found.kept:
            confirm(state)

    def part(self, kept: Sequence[tuple[str, Settings]], lost: Trial) -> None:
        """Begin anew from the bare command with parts of a set that was faster when it was tried and slower when it was
        confirmed."""
        state = self.state
        mean = fmean(state.value(base) for base in state.bases)
        base = state.bases[-1]
        state.best = Incumbent(list(state.given), base, state.trials.diagnosis(base), state.facts, mean)
        context = state.context(state.best)
        group = [predict(state, state.levers[name], context, [settings]) for name, settings in kept]
        state.say("again  what was slower is tried in parts")
        tried = [(one.lever.name, state.best.diagnosis.bound) for one in group]
        self.hunt(lambda: in_parts(state, group, mean / state.value(lost), lost), tried)

    # the bare command

    def baseline(self) -> None:
        """Two runs of the bare command. Raises CommandFailed, NothingMeasured."""
        state = self.state
        state.trials.long_s = LONG * state.budget.seconds
        first = state.trials.run("baseline", (), Special(), state.budget.left() / 2)
        if first.outcome == "memory":
            first = fit(state, first)
        if first.outcome == "crashed":
            output = state.trials.plan.folder / first.folder / "output.txt"
            raise CommandFailed(f"the command itself fails, without any lever: {first.why} (see {output})")
        if first.outcome != "measured":
            raise NothingMeasured(f"{first.why} (see {state.trials.plan.folder / first.folder / 'output.txt'})")
        state.budget.baseline_took(first.wall_s, first.warmup_s)
        state.facts = state.read_facts(first)
        self._set_length(first)
        second = self._second(first)
        if second.wall_s < first.wall_s:
            state.budget.baseline_took(second.wall_s, second.warmup_s)
        state.bases = [first, second]
        state.proof.base, state.proof.again = state.trials.evidence(first), state.trials.evidence(second)
        self._measured(first, second)

    def _set_length(self, first: Trial) -> None:
        """How many steps trials measure, by what the first baseline took."""
        state, step_s = self.state, (first.step_ms or 0.0) / 1000
        seen = state.trials.diagnosis(first)
        each_s = step_s / (1 - seen.evaluating)
        usual = state.trials.least_steps
        least = state.budget.least_steps(
            first.wall_s, step_s, seen.steady_steps, usual, state.trials.plan.seconds, each_s
        )
        state.trials.long_s, state.trials.least_steps = None, least
        if least < usual:
            state.say(
                f"steps  a trial takes {first.wall_s:.0f} s of the {state.budget.seconds:.0f} s: "
                f"the next ones measure {least} steady steps, not {usual}"
            )

    def _second(self, first: Trial) -> Trial:
        """The bare command again; where a trace of it helps and is cheap, profiled after the steps that are timed."""
        state = self.state
        trial = state.run("baseline", state.given, Special(profiled=self._worth_profiling(first)))
        if trial.outcome != "measured" and self._worth_profiling(first):
            trial = state.run("baseline", state.given)
        if trial.outcome == "timeout" and state.budget.left() <= 0:
            raise NothingMeasured(
                "the budget ended in the second run of the bare command; "
                f"the first one took {first.wall_s:.0f} s: give a larger --budget"
            )
        if trial.outcome != "measured":
            output = state.trials.plan.folder / trial.folder / "output.txt"
            raise CommandFailed(f"the command does not run twice alike: {trial.why} (see {output})")
        return trial

    def _worth_profiling(self, first: Trial) -> bool:
        """Only device work is replayed. A profile costs some seconds and about so many steps."""
        cost_s = PROFILED_S + PROFILED_AS_STEPS * (first.step_ms or 0.0) / 1000
        return self.state.facts.device == "cuda" and cost_s < PROFILE_SHARE * self.state.budget.seconds

    def _measured(self, first: Trial, second: Trial) -> None:
        state = self.state
        diagnosis = state.trials.diagnosis(second)
        values = [state.value(trial) for trial in (first, second)]
        state.best = Incumbent(list(state.given), second, diagnosis, state.facts, fmean(values))
        state.found.baseline = diagnosis
        state.found.seeded = state.facts.seeded
        state.found.noise = log_ratio(first.step_ms or 1.0, second.step_ms or 1.0)
        differ = log_ratio(*values) if state.objective.memory else state.found.noise
        within = 0.0 if state.objective.memory else max(map(noise_within, map(state.trials.diagnosis, state.bases)))
        # Two runs on a restless machine may agree by chance. How restless is not known: steps may differ by nature.
        state.budget.noise = max(differ, min(within, 2 * QUIET))
        own = gaps(state.proof.base, state.proof.again)
        what = "memory" if state.objective.memory else "time"
        state.say(
            f"baseline  {value_text(fmean(values), state.objective)}  {diagnosis.bound}-bound; "
            f"two runs differ {by_text(math.expm1(differ), 1)} in {what}, {by_text(own.loss, 2)} in loss"
        )
        recalled = second.id in state.trials.recalled  # then it may be profiled, whatever the budget is now
        if self._worth_profiling(first) or (recalled and state.facts.device == "cuda"):
            self._read_trace(second)

    def _read_trace(self, trial: Trial) -> None:
        from .whatif import read_whatif  # polars and the trace engine: not for commands without a device

        state = self.state
        waits_ms = state.best.diagnosis.phases.data  # of the same trial
        state.whatif = read_whatif(Path(state.trials.plan.folder / trial.folder), trial.step_ms, waits_ms)
        known = "orders the levers it knows of" if state.whatif else "can't be made; shares of the step stand for it"
        state.say(f"what-if  the replay of {trial.folder} {known}")

    # earlier tunes

    def remember(self) -> None:
        """What an earlier tune of the same code on the same machine kept is tried first and at once."""
        state = self.state
        known = state.remembered = self.recall(state.facts)
        for failed in known.failed:
            if failed.lever in state.levers:
                state.refused.add(failed.lever)
                state.drop(failed.lever, f"as in the tune of {known.date}: {failed.why}", failed.ratio, remembered=True)
        if known.failed:
            lost = ", ".join(failed.lever for failed in known.failed)
            state.found.reused.append(f"not tried again, since they failed in the tune of {known.date}: {lost}")
        kept = self._still_apply(known)
        if kept and not self._take_over(known, kept):
            state.say("remembered  what an earlier tune kept is not borne out now; searching anew")
            state.refused -= {failed.lever for failed in known.failed}
            state.found.dropped = {n: one for n, one in state.found.dropped.items() if not one.remembered}
            state.found.reused.clear()
        for line in state.found.reused:
            state.say(f"remembered  {line}")

    def _still_apply(self, known: Remembered) -> list[Candidate]:
        state, chosen = self.state, []
        active = dict(state.context(state.best).active)
        for use in known.kept:
            context = state.context(state.best, active)
            lever = state.levers.get(use.name)
            if lever is None or use.name in active or excluded(state, lever, context) is not None:
                return []
            chosen.append(predict(state, lever, context, [use.settings]))
            active[use.name] = use.settings
        return chosen

    def _take_over(self, known: Remembered, kept: list[Candidate]) -> bool:
        """Try the remembered set; whether it is one still."""
        state = self.state
        success, _ = try_uses(state, state.best, [one.use for one in kept])
        if success is None:
            return False
        keep(state, state.best, success, kept)
        alone = {name: ratio for name, ratio in known.alone.items() if ratio >= LEAST_GAIN}
        for use in success.uses:
            if use.name in alone:
                state.note(use.name, leave_one_out=alone[use.name], remembered=True)
        state.found.reused.insert(
            0,
            f"the set that the tune of {known.date} kept was tried first ({names(success.uses)}); "
            "what its levers are worth alone is of that tune",
        )
        return True

    # levers

    def climb(self, tried: set[tuple[str, str]]) -> None:
        """Try levers until none is left that could win; `best` moves as they are kept. tried: names of levers, each
        with the bound at which it is not to be tried again."""
        state = self.state
        while ordered := candidates(state, tried):
            group = together(state, ordered, tried)
            tried |= {(one.lever.name, state.best.diagnosis.bound) for one in group}
            if not try_together(state, group) and len(group) == 1:
                self._with_help(group[0])

    def _with_help(self, one: Candidate) -> None:
        """A lever that ran and won nothing, once more beside those that may help it."""
        state, incumbent = self.state, self.state.best
        dropped = state.found.dropped.get(one.lever.name)
        if dropped is None or dropped.ratio is None:
            return
        context = state.context(incumbent, {**state.context(incumbent).active, one.lever.name: one.variants[0]})
        helping = [state.levers[name] for name in one.lever.helped_by if name in state.levers]
        free = [lever for lever in helping if lever.name not in context.active and lever.name not in state.refused]
        helpers = [predict(state, lever, context) for lever in free if excluded(state, lever, context) is None]
        group = [one, *(helper for helper in helpers if helper.variants)]
        if len(group) == 1:
            return
        success, _ = try_uses(state, incumbent, [each.use for each in group])
        if success is not None:
            state.refused -= {each.lever.name for each in group}
            keep(state, incumbent, success, group)

    def exchange(self) -> None:
        """Levers that one in use excludes get a chance in its place, if they promise as much: the two that do most."""
        state = self.state
        shut_out = [lever for lever in state.levers.values() if self._rivals(lever)]
        for lever in sorted(shut_out, key=lambda lever: -lever.share(state.context(state.best)))[:MOST_EXCHANGES]:
            self._in_place(lever, self._rivals(lever))

    def _rivals(self, lever: Lever) -> list[str]:
        """The kept levers that alone keep this one out, and that promise no more than it does; none where that is next
        to nothing."""
        state = self.state
        active = state.context(state.best).active
        fixed = {use.name for use in state.given}
        clash = clashing(state.levers, lever, active)
        if lever.name in active or lever.name in state.refused or not clash or fixed & set(clash):
            return []
        context = state.context(state.best, {name: use for name, use in active.items() if name not in clash})
        if excluded(state, lever, context) is not None:
            return []
        promised = max(state.levers[name].share(context) for name in clash)
        least = 0.0 if state.objective.memory else LEAST_SHARE
        return clash if lever.share(context) >= max(promised, least) else []

    def _in_place(self, lever: Lever, rivals: list[str]) -> None:
        state, incumbent = self.state, self.state.best
        if not rivals:
            return
        rest = [use for use in incumbent.levers if use.name not in rivals]
        context = state.context(incumbent, {use.name: use.settings for use in rest})
        candidate = predict(state, lever, context)
        if not candidate.variants:
            return
        success, ratio = try_uses(state, incumbent, [candidate.use], instead_of=rivals)
        if success is None:
            why = f"no better than {rivals[0]}, which it can't be used with"
            if 0 < ratio < LEAST_GAIN:
                state.found.dropped.pop(lever.name, None)
                state.drop(lever.name, why, ratio)
            return
        for name in rivals:
            state.drop(name, f"{lever.name}, which it can't be used with, is {success.ratio:.2f}× faster still")
        self._put_in(candidate, success, rivals)

    def _put_in(self, candidate: Candidate, success: Success, instead_of: list[str]) -> None:
        state = self.state
        state.found.kept = [kept for kept in state.found.kept if kept.lever not in instead_of]
        keep(state, state.best, success, (candidate,))
        state.note(candidate.lever.name, measured=None, together=(candidate.lever.name,))

    def adjust(self) -> None:
        """Settings that were put in without a search, and turn out not to be the best, are tried anew."""
        state = self.state
        fixed = {use.name for use in state.given}
        for name in [use.name for use in state.best.levers if use.name not in fixed]:
            context = state.context(state.best)
            if not state.levers[name].short(context):
                continue
            candidate = predict(state, state.levers[name], context)
            success, _ = try_uses(state, state.best, [candidate.use], instead_of=[name])
            state.found.dropped.pop(name, None)  # then it stays in as it was
            if success is not None:
                self._put_in(candidate, success, [name])

    def let_go(self) -> None:
        """Levers that made the command fit, where others that were kept since save enough memory to do without."""
        state = self.state
        for use in [use for use in state.given if use in state.best.levers and state.found.kept]:
            rest = [other for other in state.best.levers if other != use]
            try:
                trial = state.trial(f"without {use.name}", rest)
            except BudgetSpent:
                state.found.not_done = f"the budget ended before the command was tried without {use.name}"
                raise
            if trial.outcome == "measured" and state.value(trial) < state.best.value * LEAST_GAIN:
                state.say(f"drop  {use_text(use)}  the command fits without it now, {state.shown(trial)}")
                state.drop(use.name, "the command fits without it, with the levers that were kept")
                state.best = state.incumbent(rest, trial, state.value(trial))
                state.found.tuned = state.best.diagnosis

    def look_again(self) -> None:
        """Where nothing was kept: at what may be noise, with time that would not have done for a confirmation too."""
        state, found = self.state, self.state.found
        open_levers = [one for one in found.dropped.values() if one.why == UNSETTLED and one.lever in state.levers]
        if found.kept or state.unproved is not None or not open_levers:
            return
        lever = state.levers[max(open_levers, key=lambda one: one.ratio or 0.0).lever]
        state.budget.nothing_else = True
        with suppress(BudgetSpent):
            attempt(state, predict(state, lever, state.context(state.best)))

    def _note_unfinished(self) -> None:
        """The budget ended the search: what was not tried to its end is said, each lever by name."""
        state = self.state
        context = state.context(state.best)
        known = {*context.active, *state.refused, *state.found.dropped}
        left = {name: excluded(state, lever, context) for name, lever in state.levers.items() if name not in known}
        open_levers = [name for name, why in left.items() if why is None]
        for name, why in left.items():
            if why is not None:  # it was to be tried beside others that are not in
                state.drop(name, why)
                continue
            told, trial = state.told_of(name)
            state.drop(name, f"the budget ended before it was tried to the end{told}", trial=trial)
        untried = f"; not tried to the end: {', '.join(open_levers)}" if open_levers else ""
        ended = "the budget ended the search"
        before = state.found.not_done or (f"{ended} before leave-one-out was done" if state.found.kept else ended)
        state.found.not_done = f"{before}{untried}"
        state.say(f"budget  {state.found.not_done}")

    def _note_unsettled(self) -> None:
        """A gain that noise may have made was not tried to its end either."""
        names = [one.lever for one in self.state.found.dropped.values() if one.why == UNSETTLED]
        if names:
            self._note(f"no time was left for a second look at {', '.join(names)}")

    def _note(self, what: str) -> None:
        """Something was not done."""
        found = self.state.found
        found.not_done = "; ".join(filter(None, (found.not_done, what)))
        self.state.say(f"budget  {what}")
