"""What the rooms of the search share: sides, the time that is left, what is known and decided so far."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from hotlap.experiment.judge import Judge
from hotlap.experiment.outcome import names, same_levers
from hotlap.experiment.side import Bench, Side, Special
from hotlap.experiment.statistics import LEAST_GAIN
from hotlap.experiment.switching import Switching
from hotlap.experiment.turns import PLACED_ROUNDS, take_turns
from hotlap.levers._base import Context, Lever, Settings
from hotlap.records import run as records
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.durations import ms, three
from hotlap.records.errors import NothingMeasured
from hotlap.records.run import Facts
from hotlap.records.tune import Dropped, Fitted, Interval, Kept, Open, Proof, Reference, Trial, Worth

from .budget import Budget
from .objective import TuneRequest, peak_bytes

CACHED: Final = 0.25
"""Of the seconds in which a live process compiled, what a start takes that finds it cached: it is traced again."""
WARM: Final = 0.5
"""Of the first warm-up with something that compiles, what the next one takes: much is found in the cache."""
PROMISING: Final = 1.1
"""A gain that is looked at longer where turns differ too much to tell."""
NOISY: Final = "steps differ too much to tell"
TOO_SLOW: Final = 3.0
"""Times the bare command's step: a try whose steps take longer is ended after a few."""


@dataclass
class Best:
    """The best set so far, by measurement. Not all of it is proved."""

    levers: list[records.Lever]
    diagnosis: Diagnosis


@dataclass
class Found:
    """What the search knows; filled as it goes, so that an interruption loses nothing. proved: the last proof that
    holds. predicted: of levers, before they were tried."""

    baseline: Diagnosis | None = None
    proofs: list[Proof] = field(default_factory=list)
    proved: Proof | None = None
    tuned: Diagnosis | None = None
    worth: dict[str, Worth] = field(default_factory=dict)
    predicted: dict[str, float] = field(default_factory=dict)
    dropped: dict[str, Dropped] = field(default_factory=dict)
    unproved: Open | None = None
    not_done: list[str] = field(default_factory=list)
    noise: float | None = None
    break_even: int | None = None
    seeded: bool = False
    memory: tuple[float | None, float | None] = (None, None)
    costs: dict[str, Any] = field(default_factory=dict)
    fitted: list[Fitted] = field(default_factory=list)
    reference: Reference | None = None
    no_reference: str = ""
    reused: list[str] = field(default_factory=list)


class State:
    """One tune of one command."""

    best: Best
    reference: Side
    """The bare command's first process: all others have turns beside it."""

    def __init__(
        self, bench: Bench, request: TuneRequest, levers: Mapping[str, Lever], clock: Callable[[], float]
    ) -> None:
        self.bench, self.request, self.levers = bench, request, levers
        self.memory = request.objective == "memory"
        """Whether memory is what counts."""
        cores = bench.plan.environment.usable_cores or bench.plan.environment.cores
        self.budget = Budget(request.budget_s, clock, cores)
        self.found = Found()
        self.judge = Judge(bench, levers, self.run)
        self.bare: list[Side] = []
        """Processes of the bare command that never had a lever, the reference first."""
        self.side: Side | None = None
        """One that has the best levers, or can be switched to them."""
        self.sequential = ""
        """Why two sides can't be alive at once; "" where they can."""
        self.facts: Facts
        self.refused: set[str] = set()
        self.turns_differ = 0.0
        """By how much turns of one process do: the standard deviation of the logarithm of step time."""
        self.unsure: Open | None = None
        """The last that promised a gain by itself, and could not be told from the noise."""
        self.open_ratio = 1.0
        """What was measured of the best set over the one that is proved."""
        self.compiled_s = 0.0
        """The longest that a lever took to be at its pace when it was switched on."""
        self.tried: set[tuple[str, str]] = set()
        """Levers, each with the bound under which it is not to be tried again."""
        self.on_proof: Callable[[], object] = lambda: None
        self.narrow_down: Callable[[], None] = lambda: None
        """Adds starts to the comparison that proved the best set: see `prove.narrow_down`."""

    # sides

    def run(self, purpose: str, levers: Sequence[records.Lever], special: Special | None = None) -> Trial:
        """A run that is ended when it is ready, whatever it costs."""
        self.make_room()
        return self.bench.once(purpose, levers, self._special(levers, special), self.timeout(levers))

    def start(self, purpose: str, levers: Sequence[records.Lever], special: Special | None = None) -> Side:
        """Start a side; it is not waited for."""
        self.make_room()
        return self.bench.start(purpose, levers, self._special(levers, special), self.timeout(levers))

    def _special(self, levers: Sequence[records.Lever], special: Special | None) -> Special:
        return replace(special or Special(), together=self.together(levers))

    def started(self, purpose: str, levers: Sequence[records.Lever], special: Special | None = None) -> Side:
        """Start a side and wait for it. Where memory does not hold it beside others, these end first."""
        side = self.start(purpose, levers, special)
        self.ready(side)
        if side.measured.outcome == "memory" and any(one.alive for one in self.bench.sides):
            self.bench.end_all(keep=[self.reference] if self.reference.alive and not self.sequential else [])
            self.side = None
            side = self.start(purpose, levers, special)
            self.ready(side)
        return side

    def ready(self, *sides: Side) -> None:
        """Wait until they are, or have failed; later starts are planned by how long that took."""
        self.bench.ready(*sides)
        self.budget.crowded, self.budget.crowded_steps = self.bench.crowded, self.bench.crowded_steps
        if began := [side.until_s for side in sides if side.measured.warmup_s is not None]:
            self.budget.start_took(max(began))

    def make_room(self) -> None:
        """Where two can't be alive at once, end those that are."""
        if self.sequential:
            self.bench.end_all()

    def timeout(self, levers: Sequence[records.Lever]) -> float:
        """Seconds after which a start with these levers counts as hung."""
        return self.budget.timeout(self.compiles(levers))

    def compiles(self, levers: Sequence[records.Lever]) -> bool:
        """Whether one of these does."""
        return any(self.levers[lever.name].compiles for lever in levers if lever.name in self.levers)

    def together(self, levers: Sequence[records.Lever]) -> bool:
        """Whether sides with these make their first steps at once: those that compile. Not where cuDNN looks for its
        fastest kernels in them: it has to find the device idle."""
        known = self.found.baseline is not None
        searches = known and self.facts.device == "cuda" and self.facts.cudnn_benchmark
        return self.compiles(levers) and not searches

    def trying(self, uses: Sequence[records.Lever], spare: bool = True) -> Special:
        """Of a side that is about these levers. Steps that are much slower than the bare command's end it."""
        usual = self.reference.measured.step_ms
        slow_ms = None if not usual or self.resized(uses) or self.memory else TOO_SLOW * usual
        return Special(trying=tuple(use.name for use in uses) if spare else (), slow_ms=slow_ms)

    def resized(self, levers: Sequence[records.Lever]) -> bool:
        """Whether a step holds another number of samples with these levers."""
        return any(self.levers[lever.name].resizes_step for lever in levers if lever.name in self.levers)

    def incumbent(self) -> Side:
        """A live side with the best levers in. Raises NothingMeasured where none can be started."""
        wanted = {lever.name: lever.settings for lever in self.best.levers}
        if self.side is not None and self.side.ready:
            if self.side.in_now == wanted:
                return self.side
            if self.bench.turn(self.side, levers=wanted) is not None:
                return self.side
        self.side = self.started("incumbent", self.best.levers)
        if self.side.measured.outcome != "measured":
            raise NothingMeasured(f"{names(self.best.levers)}: {self.side.measured.why}")
        return self.side

    def take_turns(self, sides: Sequence[Side], rounds: int, seconds: float, **more: Any) -> list[dict[int, float]]:
        """`experiment.turns.take_turns` of these; later turns are planned by how long they took, but for pauses that
        these can be placed between."""
        bench, pauses = self.bench, self.bench.pauses
        begun, before, paused = self.budget.spent, len(bench.turns), pauses.total_s
        found = take_turns(bench, sides, rounds, seconds, **more)
        placed = bench.placeable(sides[0], PLACED_ROUNDS, pause=True)
        took = self.budget.spent - begun - (pauses.total_s - paused if placed else 0.0)
        self.budget.turns_took(took, len(bench.turns) - before)
        return found

    def switching(self, uses: Iterable[records.Lever] = ()) -> Switching:
        """A live process with the best levers in, in which these can be switched too. Raises NothingMeasured."""
        return Switching(self.bench, self.incumbent(), [*self.best.levers, *uses])

    def value(self, side: Side) -> float:
        """What the objective makes smaller: ms a step, or bytes."""
        return float(peak_bytes(side.measured)) if self.memory else side.step_ms

    def end_side(self, side: Side | None) -> None:
        """End one that is not needed any more, unless it is of the bare command."""
        if side is not None and side not in self.bare:
            self.bench.end(side)

    # decisions

    @property
    def given(self) -> tuple[records.Lever, ...]:
        """Levers without which the command does not run."""
        return self.judge.given

    @property
    def proved(self) -> tuple[records.Lever, ...]:
        """The levers of the proof that holds; where there is none, those without which the command does not run."""
        return self.found.proved.levers if self.found.proved else self.given

    @property
    def unproved(self) -> bool:
        """Whether the best set is another than the one that is proved."""
        return not same_levers(self.best.levers, self.proved)

    def context(self, active: Mapping[str, Settings] | None = None) -> Context:
        """What levers decide from; active: levers to suppose, by default the best."""
        own = {lever.name: lever.settings for lever in self.best.levers}
        chosen = own if active is None else dict(active)
        return Context(self.best.diagnosis, self.facts, self.bench.plan.environment, chosen)

    def keep(self, uses: Sequence[records.Lever], side: Side | None = None, ratio: float = 1.0) -> None:
        """These are the best levers from here on. side: one that started with them, by which they are diagnosed.
        ratio: over those before."""
        self.best.levers = list(uses)
        self.open_ratio = self.open_ratio * ratio if self.unproved else 1.0
        for use in uses:
            self.found.dropped.pop(use.name, None)
        boot_s, warmup_s, together = self.budget.boot_s, self.budget.warmup_s, self.together(uses)
        if side is not None:
            self.best.diagnosis = self.bench.diagnosis(side.measured)
            first_s = max(0.0, side.until_s - boot_s) if together else 0.0
            self.budget.best_took(WARM * first_s, max(warmup_s, WARM * side.rest_s))
        elif self.compiles(uses):
            cached_s = CACHED * self.compiled_s
            self.budget.best_took(*((cached_s, warmup_s) if together else (0.0, warmup_s + cached_s)))
        elif all(self.levers[use.name].stage != "graphs" for use in uses):
            self.budget.best_took(0.0, warmup_s)
        self.budget.to_prove = self.unproved
        self.budget.bare = sum(one.ready for one in self.bare)
        self.plan_turns()

    def plan_turns(self) -> None:
        """By the bare command's last turn: the machine's pace may have changed since it was measured."""
        given = {lever.name: lever.settings for lever in self.given}
        turns = (turn.step_ms for both, turn in reversed(self.bench.turns) if both == given and turn.step_ms)
        bare_s = next(turns, self.reference.step_ms) / 1000
        self.budget.step_s = bare_s * (1 + 1 / max(1.0, self.open_ratio)) / 2

    def leave_open(self, found: Open | None) -> None:
        """A gain was measured that is not proved. One that was before, and is in no set any more, is told."""
        before, self.found.unproved = self.found.unproved, found
        if before is None:
            return
        told = [*self.best.levers, *self.proved, *self.given, *(found.levers if found else ())]
        for use in before.levers:
            if use not in told and use.name not in self.found.dropped:
                self.drop(use.name, f"measured, and not proved: {ratio_text(before)}")

    def one_after_another(self, why: str) -> None:
        """From here on no two sides are alive at once."""
        self.sequential, self.budget.alone = why, True
        self.say(f"one after another  {why}; from here on each side runs alone, in pairs")
        self.bench.end_all()
        self.side = None

    def drop(
        self, name: str, why: str, worth: Worth | None = None, trial: Trial | None = None, remembered: bool = False
    ) -> None:
        """A lever is not in the recipe. A measured reason stands against one that was not measured. trial: the one that
        failed with it."""
        known = self.found.dropped.get(name)
        if known is not None and known.ratio is not None and worth is None:
            return
        self.found.worth.pop(name, None)
        self.found.dropped[name] = Dropped(
            lever=name,
            why=why,
            ratio=worth.ratio if worth else None,
            interval=worth.interval if worth else None,
            remembered=remembered,
            trial=trial.id if trial is not None else None,
        )

    def no_gain(self, uses: Sequence[records.Lever], worth: Worth, how: str = "beside the others") -> None:
        """Levers that are worth nothing, or of which that can't be told here."""
        most = worth.interval.high if worth.interval is not None else worth.ratio
        slower = most < 1 and worth.interval is not None  # one pair tells of no gain, not that it is slower
        why = "slower" if slower else "no gain" if most < PROMISING else NOISY
        alone = {*worth.beside} <= {one.name for one in (*self.given, *uses)}
        least = max(LEAST_GAIN, self.unsure.ratio if self.unsure is not None else 0.0)
        if alone and why == NOISY and worth.ratio >= least:
            levers = (*self.given, *uses)
            self.unsure = Open(levers=levers, ratio=worth.ratio, interval=worth.interval, why=why)
        for use in uses:
            self.drop(use.name, f"{why} {how}".strip(), worth)
        self.say(f"drop  {' + '.join(map(use_text, uses))}  {worth_text(worth)}{why} {how}".rstrip())

    def refuse(self, use: records.Lever, why: str, worth: Worth | None = None, trial: Trial | None = None) -> None:
        """A lever that can't be used here; it is not tried again."""
        self.drop(use.name, why, worth, trial)
        self.refused.add(use.name)
        self.say(f"drop  {use_text(use)}  {worth_text(worth)}{why[:200]}")

    def blamed(self, said: str, uses: Iterable[records.Lever]) -> records.Lever | None:
        """Of levers that failed together, the one at which the error points: of several, the one that costs least to do
        without. None where it points at none."""
        named = [use for use in uses if any(sign in said for sign in self.levers[use.name].signs)]
        return min(named, key=lambda use: self.levers[use.name].costs_s, default=None)

    def leave_out(self, trial: Trial) -> None:
        """Levers that a side could do without are not tried again."""
        for one in trial.left_out:
            self.drop(one.lever.name, f"{'refused' if one.was_in else 'nothing to change'}: {one.why}")
            self.refused.add(one.lever.name)
            self.say(f"left out  {use_text(one.lever)}  {one.why[:160]}")

    def kept(self) -> list[Kept]:
        """The levers that are proved, with what is known of each."""
        found = self.found
        return [
            Kept(
                lever=use.name,
                settings=use.settings,
                risk=lever.risk,
                meaning=lever.meaning,
                predicted=found.predicted.get(use.name),
                worth=found.worth.get(use.name),
                source=lever.source(use.settings),
            )
            for use in self.proved
            if use not in self.given and (lever := self.levers[use.name])
        ]

    def say(self, text: str) -> None:
        """A line for the listener."""
        self.bench.listener.result(text)


def value_text(value: float, memory: bool) -> str:
    """A step time or a peak of memory."""
    return f"{three(value / 2**20)} MiB" if memory else ms(value)


def interval_text(interval: Interval | None) -> str:
    """` (1.21-1.34)`, with a blank before it; "" where none is known."""
    return f" ({interval.low:.2f}–{interval.high:.2f})" if interval else ""


def ratio_text(found: Worth | Proof | Open) -> str:
    """`1.27× (1.21-1.34)`."""
    return f"{found.ratio:.2f}×{interval_text(found.interval)}"


def worth_text(worth: Worth | None) -> str:
    """`1.27× (1.21-1.34)  `, "" where nothing was measured."""
    return f"{ratio_text(worth)}  " if worth else ""


def by_text(share: float, decimals: int) -> str:
    """By how much two runs differ, in percent. What these digits can not show is not nothing."""
    if not share:
        return "not at all"
    shown = f"{share:.{decimals}%}"
    return f"by {shown}" if float(shown[:-1]) else f"by less than {10.0**-decimals:.{decimals}f}%"


def use_text(lever: records.Lever) -> str:
    """A lever with its settings."""
    settings = ", ".join(f"{key}={value}" for key, value in lever.settings.items())
    return f"{lever.name} ({settings})" if settings else lever.name
