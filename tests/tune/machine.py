"""A machine for the search: a `Bench` without processes, on a clock of its own.

Step times follow from the levers that are in, times an effect of the process and noise of the turn, both drawn from a
seed. The clock runs while sides start, warm up, compile and make steps.
"""

import contextlib
import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec

from hotlap.experiment import switching, turns
from hotlap.experiment.evidence import Evidence
from hotlap.experiment.pauses import Pauses
from hotlap.experiment.side import TOO_LONG, Bench, Special
from hotlap.levers._base import Applies, Context, Lever, Settings
from hotlap.records import run as records
from hotlap.records.diagnosis import Diagnosis, Finding, Spread
from hotlap.records.run import Environment, Facts, LeftOut, Phases
from hotlap.records.tune import Trial, Turn
from hotlap.runs.folder import RunFolder
from hotlap.tune import tune as tune_module
from hotlap.tune.objective import TuneRequest
from hotlap.tune.remember import Remembered
from hotlap.tune.search import Search
from hotlap.tune.state import Found

LOSSES = tuple((2.0 - 0.01 * n,) for n in range(40))
BEGAN = 1000.0
BY_ITSELF = "the command ended by itself"


class FakeLever(Lever):
    """Wins what `Machine.step_ms` says; `claimed` is what it promises. Switchable unless said otherwise."""

    meaning = "a lever of the tests"
    risk = "exact"
    switchable = True

    def __init__(self, name: str, claimed: float = 0.5, choices: tuple[Settings, ...] = ({},), **more: Any) -> None:
        self.name, self.claimed, self.choices = name, claimed, choices  # type: ignore[misc]
        for key, value in more.items():
            setattr(self, key, value)

    only_when: str | None = None
    needs: str | None = None

    def applies(self, context: Context) -> Applies:
        if self.needs is not None and self.needs not in context.active:
            return Applies(False, f"it needs {self.needs}")
        yes = self.only_when in (None, context.diagnosis.bound)
        return Applies(yes, "as the test has it" if yes else f"the bound is {context.diagnosis.bound}")

    def variants(self, context: Context) -> list[Settings]:
        return list(self.choices)

    def share(self, context: Context) -> float:
        return self.claimed

    def check(self, settings: Mapping[str, Any]) -> str | None:
        return None

    def source(self, settings: Settings) -> str:
        return f"{self.name}()"


def starter(name: str, claimed: float = 0.5, choices: tuple[Settings, ...] = ({},), **more: Any) -> FakeLever:
    """A lever that needs a start of its own."""
    return FakeLever(name, claimed, choices, switchable=False, **more)


def workers(*numbers: int, claimed: float = 0.8) -> FakeLever:
    """A number that is searched, in starts of its own."""
    choices = tuple({"n": n} for n in numbers)
    return starter("workers", claimed, choices, searched=lambda context: True)


def compiler(name: str = "compile", claimed: float = 0.5, **more: Any) -> FakeLever:
    """One that compiles, in a live process."""
    return FakeLever(
        name, claimed, **{"stage": "compiler", "compiles": True, "costs_s": 30.0, "risk": "numeric", **more}
    )


Uses = dict[str, Settings]
Step = Callable[[Uses], float]


@dataclass(eq=False)
class FakeSide:
    """What the search reads of a side."""

    number: int
    purpose: str
    requested: tuple[records.Lever, ...]
    folder: Path
    special: Special
    timeout_s: float
    begun: float
    effect: float
    trial: Trial | None = None
    alive: bool = True
    first_s: float = 0.0
    until_s: float = 0.0
    in_now: dict[str, Settings] = field(default_factory=dict)
    step_ms: float = 1.0
    least_steps: int = 1
    step: int = 0
    compiled: set[str] = field(default_factory=set)
    turns: dict[str, int] = field(default_factory=dict)
    """That each lever was in for."""

    @property
    def gate(self) -> Any:
        return SimpleNamespace(arrived=self.alive and self.trial is not None, step=self.step)

    @property
    def ready(self) -> bool:
        return self.alive and self.trial is not None

    @property
    def measured(self) -> Trial:
        assert self.trial is not None
        return self.trial

    @property
    def rest_s(self) -> float:
        return self.measured.wall_s - self.until_s


@dataclass
class Machine:
    """Stands in for `Bench`. step_ms: of the levers that are in, with settings."""

    step_ms: Step
    folder: Path
    process_sd: float = 0.0
    turn_sd: float = 0.0
    seed: int = 0
    luck: Callable[["FakeSide", Uses], float] = lambda side, uses: 1.0
    """By which the steps of a process are longer."""
    boot_s: float = 5.0
    cold_s: float = 0.0
    """By how much longer the first two processes take until their loop: they read files that lie in memory then."""
    warmup_s: float = 2.0
    compile_s: Callable[[Uses], float] = lambda uses: 0.0
    """Once in a process for each set of levers; a third of it where another process did so before."""
    outcome: Callable[[Uses], tuple[str, str]] = lambda uses: ("measured", "")
    """Of a start."""
    dies: Callable[[Uses, dict[str, int]], str] = lambda uses, turns: ""
    """Why a process ends in a turn, from the levers that are in and how many turns each was in before."""
    refuses: Callable[[Uses], dict[str, str]] = lambda uses: {}
    """Levers that can't be put in, at the start or later, and why."""
    idle: Callable[[Uses], dict[str, str]] = lambda uses: {}
    """Levers that find nothing to change."""
    evidence_of: Callable[[Uses], Evidence] = lambda uses: Evidence(LOSSES)
    bound: Callable[[Uses], str] = lambda uses: "compute"
    launch: float = 0.0
    """Share of the step in which the device waits for the host."""
    peak_mib: Callable[[Uses], float] = lambda uses: 1000.0
    rows: Callable[[Uses], float | None] = lambda uses: 32.0
    memory_gib: float = 80.0
    room: int = 100
    """Sides that memory holds at once."""
    length: int | None = None
    """Steps after which the script ends by itself."""
    evaluates: tuple[int, float] = (0, 0.0)
    """After how many steps it does each time, and for how many seconds."""
    device: str = "cpu"
    loaders: tuple[records.LoaderFacts, ...] = ()
    cores: int = 4
    interrupt_at: int | None = None
    """The call of the bench at which Ctrl-C comes."""
    now: float = BEGAN
    done: list[Trial] = field(default_factory=list)
    sides: list[FakeSide] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    calls: int = 0
    log: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """Starts by purpose, and `switch` where other levers were put in, with the levers."""

    def __post_init__(self) -> None:
        facts = Facts(
            pid=1, rank=0, world=1, argv=(), python="3", torch="2", mode="train", device=self.device,
            loaders=self.loaders,
        )  # fmt: skip
        (self.folder / "rank-0").mkdir(parents=True, exist_ok=True)
        (self.folder / "rank-0" / "facts.json").write_bytes(msgspec.json.encode(facts))
        machine = Environment(hotlap="0", python="3", os="", cpu="", cores=self.cores, memory_gib=8.0)
        self.plan = SimpleNamespace(folder=self.folder, environment=machine, seed=0, steps=2000, seconds=1.0)
        self.listener = SimpleNamespace(result=self.said.append, trial=lambda *_: None, step=lambda *_: None)
        self.shuffle, self.draw = random.Random(self.seed), random.Random(self.seed + 1)
        self.numbers = itertools.count()
        self.turns: list[tuple[dict[str, Any], Turn]] = []
        self.pauses = Pauses()
        self.crowded = self.crowded_steps = False
        self.cached: set[str] = set()

    def monotonic(self) -> float:
        return self.now

    def _called(self) -> None:
        self.calls += 1
        if self.calls == self.interrupt_at:
            raise KeyboardInterrupt

    def __enter__(self) -> "Machine":
        return self

    def __exit__(self, *_: object) -> None:
        for side in self.sides:
            side.alive = False

    # sides

    def start(
        self, purpose: str, levers: Sequence[records.Lever] = (), special: Special | None = None,
        timeout_s: float = 600.0, **where: Any,
    ) -> FakeSide:  # fmt: skip
        self._called()
        number = next(self.numbers)
        side = FakeSide(
            number, purpose, tuple(levers), self.folder / "trials" / f"{number:03d}", special or Special(), timeout_s,
            self.now, math.exp(self.process_sd * self.draw.gauss(0, 1)),
        )  # fmt: skip
        side.alive = True
        self.sides.append(side)
        self.log.append((purpose, tuple(lever.name for lever in levers)))
        return side

    def ready(self, *sides: FakeSide) -> None:
        self._called()
        waiting = [side for side in sides if side.trial is None]
        if waiting:
            cold = self.cold_s if min(side.number for side in waiting) < 2 else 0.0
            for side in waiting:
                side.first_s = self._compile(side, self._in_at_start(side)) if side.special.together else 0.0
                side.until_s = min(self.boot_s + cold + side.first_s, side.timeout_s)
            self.now = max(self.now, *(side.begun + side.until_s for side in waiting))
        for side in waiting:
            self._warm_up(side)

    def _left_out(self, side: FakeSide, uses: Uses) -> dict[str, str]:
        left = {**self.idle(uses), **self.refuses(uses)}
        if not left.keys() <= {*side.special.trying} or len(left) >= len(side.special.trying):
            left = {}
        return left

    def _in_at_start(self, side: FakeSide) -> Uses:
        uses = uses_of(side.requested)
        left = self._left_out(side, uses)
        return {name: settings for name, settings in uses.items() if name not in left}

    def _warm_up(self, side: FakeSide) -> None:
        left, uses = self._left_out(side, uses_of(side.requested)), self._in_at_start(side)
        took, boot_s = self.warmup_s + self._compile(side, uses), side.until_s
        ms, known = self._ms(side, uses), {}
        outcome, why = self.outcome(uses)
        if refused := self.refuses(uses):
            outcome, why = "refused", "; ".join(f"{name} could not be put in: {no}" for name, no in refused.items())
        elif sum(one.ready for one in self.sides) >= self.room:
            outcome, why = "memory", "torch.OutOfMemoryError: CUDA out of memory"
        elif outcome == "measured" and took + boot_s > side.timeout_s:
            outcome, why, took = "timeout", f"made too few steps within {side.timeout_s:.0f} s", side.timeout_s - boot_s
        elif outcome == "measured" and side.special.slow_ms is not None and ms > side.special.slow_ms:
            outcome, why, known = "too slow", "ended after 5 slow steps", {"step_ms": ms}
        else:
            side.step = max(side.special.least_steps, math.ceil(1000 / ms))
            took += side.step * ms / 1000 + self._evaluated(0, side.step)
        self.now += took
        side.trial = Trial(
            id=side.number, purpose=side.purpose, folder=f"trials/{side.number:03d}", outcome=outcome, why=why,
            levers=tuple(one for one in side.requested if one.name not in left),
            left_out=tuple(LeftOut(lever=one, why=left[one.name]) for one in side.requested if one.name in left),
            wall_s=boot_s + took, **known,
        )  # type: ignore[arg-type]  # fmt: skip
        side.alive = outcome == "measured"
        if outcome == "memory":  # what was seen before it died
            side.folder.mkdir(parents=True, exist_ok=True)
            (side.folder / "seen-1.json").write_bytes((self.folder / "rank-0" / "facts.json").read_bytes())
        if side.alive:
            side.in_now = uses
            side.step_ms = ms
            side.trial = msgspec.structs.replace(
                side.trial, step_ms=ms, mean_ms=ms, warmup_s=side.first_s + took, rows=self.rows(uses),
                peak_memory_bytes=int(self.peak_mib(uses) * 2**20),
            )  # fmt: skip
            side.alive = self.length is None or side.step < self.length
        self.done.append(side.trial)

    def _compile(self, side: FakeSide, uses: Uses) -> float:
        key = json.dumps(sorted(uses.items()))
        if key in side.compiled:
            return 0.0
        side.compiled.add(key)
        known = key in self.cached
        self.cached.add(key)
        return self.compile_s(uses) / (3 if known else 1)

    def _ms(self, side: FakeSide, uses: Uses) -> float:
        return self.step_ms(uses) * self.luck(side, uses) * side.effect * math.exp(self.turn_sd * self.draw.gauss(0, 1))

    def end(self, side: FakeSide, patient: bool = True) -> None:
        self._called()
        side.alive = False

    def once(
        self, purpose: str, levers: Sequence[records.Lever], special: Special | None = None, timeout_s: float = 600.0
    ) -> Trial:
        side = self.start(purpose, levers, special, timeout_s)
        self.ready(side)
        self.end(side)
        return side.measured

    def end_all(self, keep: Sequence[FakeSide] = ()) -> None:
        self._called()
        for side in self.sides:
            side.alive = side.alive and side in keep

    # turns

    turn_steps, placed, placeable, pauses_s = Bench.turn_steps, Bench.placed, Bench.placeable, Bench.pauses_s

    def _evaluated(self, first: int, last: int) -> float:
        """Seconds, in these steps."""
        every, seconds = self.evaluates
        held = [step for step in range(first + 1, last + 1) if every and step % every == 0]
        self.pauses.seconds |= dict.fromkeys(held, seconds)
        self.pauses.total_s += seconds * len(held)
        return seconds * len(held)

    def turn(
        self, side: FakeSide, steps: int | None = None, levers: Mapping[str, Settings] | None = None,
        timeout_s: float | None = None,
    ) -> Turn | None:  # fmt: skip
        self._called()
        assert side.ready, f"side {side.number} ({side.purpose}) can't have a turn"
        count = steps or self.turn_steps(side)
        if levers is not None and levers != side.in_now:
            side.in_now = {name: dict(settings) for name, settings in levers.items()}
            self.log.append(("switch", tuple(side.in_now)))
        uses = self._held(side)
        why = self.dies(uses, side.turns)
        for name in uses:
            side.turns[name] = side.turns.get(name, 0) + 1
        ms = self._ms(side, uses)
        took = self._compile(side, uses) + (count + 1) * ms / 1000 + self._evaluated(side.step, side.step + count + 1)
        if self.length is not None and side.step + count + 1 > self.length:
            why, took = BY_ITSELF, (self.length - side.step) * ms / 1000
        if timeout_s is not None and took > timeout_s:
            why, took = TOO_LONG, timeout_s
        self.now += took
        first, side.step = side.step, side.step + count + 1
        if why:
            side.alive = False
            self.amend(side.measured, ended=why)
            return None
        side.step_ms = ms
        turn = Turn(
            side=side.number, first=first, last=side.step, levers=tuple(sorted(side.in_now)), step_ms=ms,
            rows=self.rows(uses), wall_ms=1000 * took,
        )  # fmt: skip
        self.turns.append((dict(side.in_now), turn))
        return turn

    def _held(self, side: FakeSide) -> Uses:
        """Those of the levers that took hold; what the others say is written where it is read."""
        refused, idle = self.refuses(side.in_now), self.idle(side.in_now)
        rank = side.folder / "rank-0"
        if refused or idle:
            rank.mkdir(parents=True, exist_ok=True)
            problems = [{"where": "lever", "what": f"Refused: {why}", "lever": name} for name, why in refused.items()]
            lines = [{"lever": name, "nothing": why} for name, why in idle.items()]
            for name, found in (("problems", problems), ("levers", lines)):
                (rank / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in found))
        return {name: uses for name, uses in side.in_now.items() if name not in {**refused, **idle}}

    # what is known

    def amend(self, trial: Trial, **changes: Any) -> Trial:
        self._called()
        amended = msgspec.structs.replace(trial, **changes)
        self.done[next(at for at, one in enumerate(self.done) if one.id == trial.id)] = amended
        self.sides[trial.id].trial = amended
        return amended

    def evidence(self, trial: Trial) -> Evidence:
        self._called()
        return self.evidence_of(uses_of(trial.levers))

    def diagnosis(self, trial: Trial) -> Diagnosis:
        self._called()
        step = trial.step_ms or math.nan
        return Diagnosis(
            mode="train", bound=self.bound(uses_of(trial.levers)), step_ms=step,
            spread=Spread(p10=step, p50=step, p90=step), phases=Phases(forward=step), steady_steps=20,
            findings=(Finding(id="x", bound="launch", share=self.launch, title="", evidence="", why="", instead=""),),
            peak_bytes=1000 * 2**20, memory_bytes=self.memory_gib * 2**30,
        )  # type: ignore[arg-type]  # fmt: skip

    def rank(self, trial: Trial) -> Any:
        self._called()
        facts = RunFolder(self.folder).rank(0).facts
        return SimpleNamespace(facts=facts, steady=SimpleNamespace(seen=self.sides[trial.id].step))

    def run(self, trial: Trial) -> RunFolder:
        return RunFolder(self.folder / trial.folder)

    # for the tests

    @property
    def spent(self) -> float:
        return self.now - BEGAN

    def starts(self, *purposes: str) -> list[tuple[str, ...]]:
        """The levers of each start for one of these purposes."""
        return [levers for purpose, levers in self.log if purpose in purposes]

    def alive(self) -> list[str]:
        return [f"{side.number} {side.purpose}" for side in self.sides if side.alive]

    def told(self, begins: str) -> list[str]:
        return [line for line in self.said if line.startswith(begins)]


def uses_of(levers: Any) -> Uses:
    return {lever.name: lever.settings for lever in levers}


Tune = Callable[..., tuple[Found, Machine]]
ASKED = ("only", "without", "allow", "objective", "price", "slowdown")
"""Fields of the request that a test may set."""


def made(folder: Path, levers: Sequence[FakeLever], step_ms: Step, **settings: Any) -> tuple[Search, Machine]:
    """A search over some levers on a machine, which was not run yet."""
    budget, remembered = settings.pop("budget", 3600.0), settings.pop("remembered", Remembered())
    asked = {name: settings.pop(name) for name in ASKED if name in settings}
    machine = Machine(step_ms, folder, **settings)
    request = TuneRequest(command=(), cwd="", budget_s=budget, **asked)
    known = {lever.name: lever for lever in levers}
    search = Search(machine, request, known, machine.monotonic)  # type: ignore[arg-type]
    search.known = remembered
    search.state.on_proof = lambda: machine.log.append(("written", tuple(kept(search))))
    return search, machine


def clocked(machine: Machine) -> Any:
    """While this lasts, turns and switching go by the machine's clock."""
    clock = SimpleNamespace(monotonic=machine.monotonic)
    return patch.multiple(turns, time=clock), patch.multiple(switching, time=clock)


def run(search: Search, machine: Machine) -> Found:
    """Run it on the machine's clock."""
    one, two = clocked(machine)
    with one, two:
        found = search.run()
    found.state = search.state  # type: ignore[attr-defined]
    return found


def search(folder: Path, levers: Sequence[FakeLever], step_ms: Step, **settings: Any) -> tuple[Found, Machine]:
    """A whole search."""
    one, machine = made(folder, levers, step_ms, **settings)
    return run(one, machine), machine


@contextlib.contextmanager
def whole_tunes(machines: list[Machine], levers: Sequence[FakeLever]) -> Iterator[None]:
    """`tune.tune` on these machines, one a session, which it empties."""
    known = {lever.name: lever for lever in levers}
    current: list[Machine] = []

    def bench(plan: Any, listener: Any) -> Machine:
        current[:] = [machines.pop(0)]
        current[0].plan.environment = plan.environment
        return current[0]

    def made(bench: Machine, request: TuneRequest, **more: Any) -> Search:
        return Search(bench, request, levers=known, clock=bench.monotonic, **more)  # type: ignore[arg-type]

    clock = SimpleNamespace(monotonic=lambda: current[0].now if current else BEGAN)
    with (
        patch.multiple(turns, time=clock), patch.multiple(switching, time=clock),
        patch.multiple(tune_module, Bench=bench, Search=made, adopt_orphans=lambda: None, all_levers=lambda: known),
    ):  # fmt: skip
        yield


def factors(bare_ms: float = 100.0, /, **each: float) -> Step:
    """Every lever in use multiplies a step of so many ms."""
    return lambda uses: bare_ms * math.prod(each.get(name, 1.0) for name in uses)


def kept(found: Any) -> list[str]:
    """Names of the levers that are proved, of a search or of what it found."""
    return [one.lever for one in found.state.kept()]


def worths(found: Any) -> dict[str, float]:
    """What each of them is worth."""
    return {one.lever: one.worth.ratio for one in found.state.kept() if one.worth is not None}
