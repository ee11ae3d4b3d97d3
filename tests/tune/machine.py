"""A machine for the search: step times follow from the levers, and the clock only runs in trials."""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from hotlap.levers._base import Applies, Context, Lever, Settings
from hotlap.records import run as records
from hotlap.records.diagnosis import Diagnosis, Place, Spread
from hotlap.records.run import Environment, Facts, LeftOut, Phases
from hotlap.records.tune import Trial
from hotlap.tune.evidence import Evidence
from hotlap.tune.objective import Objective
from hotlap.tune.remember import Remembered
from hotlap.tune.search import Search
from hotlap.tune.state import Asked, Found
from hotlap.tune.trials import is_trial

LOSSES = tuple((2.0 - 0.01 * n,) for n in range(40))
TRIAL_S = 10.0


class FakeLever(Lever):
    """Wins what `Machine.steps` says; `share_of` is what it claims beforehand."""

    meaning = "a lever of the tests"
    risk = "exact"

    def __init__(self, name: str, share: float, choices: tuple[Settings, ...] = ({},), **more: Any) -> None:
        self.name, self.claimed, self.choices = name, share, choices  # type: ignore[misc]
        for key, value in more.items():
            setattr(self, key, value)

    only_when: str | None = None

    def applies(self, context: Context) -> Applies:
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


def single(name: str, share: float, **more: Any) -> FakeLever:
    """A lever that is tried by itself, as those are whose number is searched."""
    return FakeLever(name, share, searched=lambda _: True, **more)


Uses = dict[str, Settings]


@dataclass
class Machine:
    """Stands in for `Trials`. step_ms: from the levers in use; outcomes, evidence and bounds likewise."""

    step_ms: Callable[[Uses], float]
    folder: Path
    outcome: Callable[[Uses], tuple[str, str]] = lambda uses: ("measured", "")
    where: Callable[[Uses], Place | None] = lambda uses: None
    """The line that a crash came from."""
    left_out: Callable[[Uses], dict[str, str]] = lambda uses: {}
    """Levers of a try of several that leave themselves out, and why."""
    were_in: bool = True
    """At first; else they found nothing to change."""
    compiled: Callable[[Uses], tuple[records.CompiledFunction, ...]] = lambda uses: ()
    evidence_of: Callable[[Uses], Evidence] = lambda uses: Evidence(LOSSES)
    bound: Callable[[Uses], str] = lambda uses: "compute"
    mean_ms: Callable[[Uses], float | None] = lambda uses: None
    peak_mib: Callable[[Uses], float] = lambda uses: 1000.0
    rows: Callable[[Uses], float] = lambda uses: 32.0
    wall_s: float = TRIAL_S
    now: float = 1000.0
    recalled: frozenset[int] = frozenset()
    done: list[Trial] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    specials: list[Any] = field(default_factory=list)
    device: str = "cpu"
    loaders: tuple[records.LoaderFacts, ...] = ()
    wall_of: Callable[[str, Uses, int], float] | None = None
    """Seconds of a trial, from purpose, levers and its least steps; else all take `wall_s`."""
    steady_steps: int = 20
    restless: float = 0.0
    """Half of the spread of single steps, of a step."""
    earlier: list[Trial] = field(default_factory=list)
    confirmed: list[Trial] = field(default_factory=list)
    proved: bool = False
    session: int = 0
    least_steps: int = 20
    long_s: float | None = None
    longs: list[float | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        facts = Facts(
            pid=1, rank=0, world=1, argv=(), python="3", torch="2", mode="train", device=self.device,
            loaders=self.loaders,
        )  # fmt: skip
        self.ids = itertools.count(len(self.earlier) + len(self.confirmed))
        (self.folder / "rank-0").mkdir(parents=True, exist_ok=True)
        (self.folder / "rank-0" / "facts.json").write_bytes(msgspec.json.encode(facts))
        machine = Environment(hotlap="0", python="3", os="", cpu="", cores=4, memory_gib=8.0)
        run = records.Run(command=("x",), cwd="/", environment=machine)
        (self.folder / "run.json").write_bytes(msgspec.json.encode(run))
        self.plan = SimpleNamespace(folder=self.folder, environment=machine, seed=0, steps=40, seconds=3.0)
        self.listener = SimpleNamespace(result=self.said.append, trial=lambda *_: None, step=lambda *_: None)

    def monotonic(self) -> float:
        return self.now

    def run(
        self, purpose: str, levers: Any, special: object | None = None, timeout_s: float | None = None, **_: Any
    ) -> Trial:
        uses = uses_of(levers)
        self.specials.append(special)
        self.longs.append(self.long_s)
        known = next((t for t in self.earlier if is_trial(t, purpose, levers)), None)
        if known is not None:
            self.earlier.remove(known)
            self.take(known)
            return known
        wall_s = self.wall_of(purpose, uses, self.least_steps) if self.wall_of else self.wall_s
        self.now += wall_s
        left = self.left_out(uses) if len(getattr(special, "trying", ())) > 1 else {}
        uses = {name: settings for name, settings in uses.items() if name not in left}
        outcome, why = self.outcome(uses)
        inside = tuple(one for one in levers if one.name not in left)
        out = [one for one in levers if one.name in left]
        outside = tuple(LeftOut(lever=one, why=left[one.name], was_in=self.were_in) for one in out)
        trial = Trial(
            id=next(self.ids), purpose=purpose, levers=inside, left_out=outside, folder="", outcome=outcome, why=why,
            where=self.where(uses) if outcome == "crashed" else None,
            lever=why.partition(" ")[0] if outcome == "refused" else None, session=self.session,
            wall_s=wall_s, step_ms=self.step_ms(uses) if outcome == "measured" else None, warmup_s=1.0,
            peak_memory_bytes=int(self.peak_mib(uses) * 2**20), rows=self.rows(uses), mean_ms=self.mean_ms(uses),
        )  # type: ignore[arg-type]  # fmt: skip
        self.done.append(trial)
        return trial

    def take(self, trial: Trial) -> None:
        self.done.append(trial)
        self.recalled |= {trial.id}

    def knows(self, purpose: str, levers: Any) -> bool:
        return any(is_trial(trial, purpose, levers) for trial in self.earlier)

    def amend(self, trial: Trial, **changes: Any) -> Trial:
        return msgspec.structs.replace(trial, **changes)

    def evidence(self, trial: Trial) -> Evidence:
        return self.evidence_of(uses_of(trial.levers))

    def diagnosis(self, trial: Trial) -> Diagnosis:
        step = trial.step_ms or math.nan
        return Diagnosis(
            mode="train", bound=self.bound(uses_of(trial.levers)), step_ms=step,
            spread=Spread(p10=step * (1 - self.restless), p50=step, p90=step * (1 + self.restless)),
            phases=Phases(forward=step), steady_steps=self.steady_steps,
        )  # type: ignore[arg-type]  # fmt: skip

    def rank(self, trial: Trial) -> Any:
        facts = SimpleNamespace(compiled=self.compiled(uses_of(trial.levers)))
        return SimpleNamespace(folder=self.folder / "rank-0", facts=facts)

    def tries(self) -> list[str]:
        """The levers whose trial of their own was made, in order."""
        return [trial.purpose.removeprefix("try ") for trial in self.done if trial.purpose.startswith("try ")]


def uses_of(levers: Any) -> Uses:
    return {lever.name: lever.settings for lever in levers if isinstance(lever, records.Lever)}


Tune = Callable[..., tuple[Found, Machine]]


def search(
    folder: Path, levers: list[FakeLever], step_ms: Callable[[Uses], float], **settings: Any
) -> tuple[Found, Machine]:
    """Run a search over some levers on a machine."""
    budget, semantic = settings.pop("budget", 10_000.0), settings.pop("semantic", False)
    only, without = settings.pop("only", ()), settings.pop("without", ())
    objective, remembered = settings.pop("objective", Objective()), settings.pop("remembered", Remembered())
    machine = Machine(step_ms, folder, **settings)
    asked = Asked(only, without, semantic, objective)
    known = {lever.name: lever for lever in levers}
    made = Search(machine, budget, asked, known, machine.monotonic, lambda facts: remembered)  # type: ignore[arg-type]
    return made.run(), machine


def resumed(machine: Machine, **changes: Any) -> dict[str, Any]:
    """Settings of a machine on which `search` goes on after what was done on another."""
    apart: tuple[list[Trial], list[Trial]] = ([], [])
    for trial in machine.done:
        apart[trial.purpose == "confirm"].append(trial)
    return {"earlier": apart[0], "confirmed": apart[1], "session": machine.session + 1, **changes}


def factors(**each: float) -> Callable[[Uses], float]:
    """Every lever in use multiplies a step of 100 ms."""
    return lambda uses: 100.0 * math.prod(each.get(name, 1.0) for name in uses)


def with_noise(step_ms: Callable[[Uses], float], noise: float) -> Callable[[Uses], float]:
    """Times that differ by so much (as a logarithm) between one run and the next."""
    sign = itertools.cycle((0.5, -0.5))
    return lambda uses: step_ms(uses) * math.exp(noise * next(sign))


def kept(found: Found) -> list[str]:
    return [item.lever for item in found.kept]
