"""How often `hotlap tune` proves a gain where there is none, and how often it proves one of 5%.

    python benchmarks/false_gains.py --jobs 2 --out benchmarks/results/false-gains.json
    python benchmarks/false_gains.py --real 10

The rule itself is run (`tune.starts.beside`, `tune.comparison.Comparison`), on processes whose step times are drawn. A
process has a level of its own, each turn noise, and the machine may drift. `--real` compares a command with itself, in
processes of its own that take turns.

A comparison that is no gain (A/A) is made in two ways: as it is, and after what comes before it in a tune, a candidate
beside the incumbent that has to look 2% faster. Processes of the bare command serve all proofs of a tune.
"""

import argparse
import functools
import itertools
import json
import math
import multiprocessing
import platform
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from hotlap.experiment import statistics as rule
from hotlap.experiment.side import SECONDS, SEED, STEPS, Bench
from hotlap.experiment.statistics import LEAST_GAIN, LOOKS, Ratio, between_processes, effects
from hotlap.experiment.turns import take_turns
from hotlap.launch.environment import environment
from hotlap.records.run import Lever
from hotlap.runs.plan import RunPlan
from hotlap.tune.comparison import STARTS, Comparison
from hotlap.tune.starts import beside

ROOT: Final = Path(__file__).resolve().parents[1]
rule._rank_quantile = functools.cache(rule._rank_quantile)  # half of the time of all, of a dozen arguments
PROCESS_SDS: Final = (0.002, 0.01, 0.03, 0.05)
TURN_SDS: Final = (0.01, 0.05, 0.2)
GAIN: Final = 1.05
AT_ONCE: Final = 7
"""Sides that start at once, as on a host of a GPU."""
PROOFS: Final = 4
"""Of a tune, which share their processes of the bare command."""
DRIFT: Final = (0.01, 0.002)
"""Of the machine's speed from turn to turn, as a logarithm: a random walk's sd, and a trend."""
MODES: Final = (0.25, 0.05)
"""How many processes are of a slow kind, as by where their memory happens to lie, and how much slower (a logarithm)."""
KINDS: Final = ("normal", "heavy tails", "drift", "both", "two modes")
DIGITS: Final = ("python", str(ROOT / "examples" / "digits_classifier.py"), "--epochs", "100000")
LEVER: Final = Lever(name="tried")


@dataclass
class Level:
    """A process: ms a step are exp(log), but for noise and drift."""

    number: int
    log: float
    requested: tuple[Lever, ...]
    alive: bool = True
    ready: bool = True
    step_ms: float = 1.0
    measured: Any = field(default_factory=lambda: SimpleNamespace(outcome="measured", left_out=(), ended=""))


class Machine:
    """Stands in for a tune's state and its bench. tails: Student's t with 2 degrees for turns, with 3 for processes,
    scaled to the sd of the middle 68%."""

    sequential, given, memory = "", (), False

    def __init__(
        self, draw: np.random.Generator, process_sd: float, turn_sd: float, kind: str, gain: float,
        at_once: int = AT_ONCE,
    ) -> None:  # fmt: skip
        self.draw, self.process_sd, self.turn_sd, self.kind, self.gain = draw, process_sd, turn_sd, kind, gain
        self.speed, self.turns_differ, self.open_ratio = 0.0, turn_sd, max(gain, LEAST_GAIN)
        self.numbers = itertools.count()
        self.shuffle = Random(int(draw.integers(1 << 30)))
        self.listener = SimpleNamespace(step=lambda *_: None)
        self.bench, self.turns = self, []
        self.budget = SimpleNamespace(
            seconds=math.inf, left=math.inf, at_once=at_once, crowded=False, boot_s=1.0, warmup_s=0.0,
            best_start_s=1.0, starts_s=lambda _: 1.0,
            turns_s=lambda *_: math.inf, proof_s=0.0, first_proof_s=0.0, narrow_s=0.0, proof_of=lambda _: 1.0,
        )  # fmt: skip
        self.best = SimpleNamespace(levers=[LEVER], diagnosis=SimpleNamespace(peak_bytes=1, memory_bytes=2**40))
        self.facts = SimpleNamespace(peak_rss_bytes=1)
        self.plan = SimpleNamespace(environment=SimpleNamespace(memory_gib=8.0))
        self.judge = SimpleNamespace(runs_left=lambda levers: 0)
        self.side, self.found = None, SimpleNamespace(proved=None)
        self.reference = self.start("baseline", ())
        self.bare = [self.reference]

    def start(self, purpose: str, levers: Any, special: object = None) -> Level:
        """A process."""
        log = self.process_sd * self._noise(3.0)
        if self.kind == "two modes" and self.draw.random() < MODES[0]:
            log += MODES[1]
        return Level(next(self.numbers), log - (math.log(self.gain) if levers else 0.0), tuple(levers))

    started = start

    def _noise(self, degrees: float) -> float:
        if self.kind in {"heavy tails", "both"}:
            return float(self.draw.standard_t(degrees)) / {2.0: 1.32, 3.0: 1.2}[degrees]
        return float(self.draw.standard_normal())

    def take_turns(self, sides: Any, rounds: int, seconds: float, **more: Any) -> list[dict[int, float]]:
        """As a tune's state lets them."""
        return take_turns(self, sides, rounds, seconds, **more)  # type: ignore[arg-type]

    def turn_steps(self, side: Level, turns: int) -> int:
        """Of a turn; they count for nothing here."""
        return 1

    def pauses_s(self, sides: Any, turns: int) -> float:
        """It never evaluates."""
        return 0.0

    def turn(self, side: Level, steps: int = 1, timeout_s: float | None = None) -> Any:
        """What its turn takes."""
        if self.kind in {"drift", "both"}:
            self.speed += DRIFT[0] * float(self.draw.standard_normal()) + DRIFT[1]
        side.step_ms = math.exp(max(-20.0, min(20.0, side.log + self.turn_sd * self._noise(2.0)))) * math.exp(
            self.speed
        )
        return SimpleNamespace(step_ms=side.step_ms, rows=None)

    def ready(self, *sides: Level) -> None:
        """All are."""

    def resized(self, levers: object) -> bool:
        """No step has other rows."""
        return False

    def say(self, text: str) -> None:
        """Nobody listens."""

    def passes_screening(self) -> bool:
        """Whether a candidate looks faster than the incumbent, as in `tune.starts`."""
        found = beside(self, self.start("incumbent", ()), self.start("try", [LEVER]))  # type: ignore[arg-type]
        return found.ratio >= LEAST_GAIN and (found.interval is None or found.interval.low > 1)

    def proves(self) -> tuple[Ratio, int]:
        """A whole proof: its ratio, and the starts with the lever that it took."""
        comparison = Comparison(self)  # type: ignore[arg-type]
        comparison.run()
        return comparison.ratio, len(comparison.after)


def simulate(seed: int, process_sd: float, turn_sd: float, kind: str, tries: int, gain: float = 1.0,
             at_once: int = AT_ONCE) -> dict[str, Any]:  # fmt: skip
    """So many comparisons on machines of one kind; PROOFS of them on each."""
    draw = np.random.default_rng(seed)
    proved = screened = through = covered = starts = 0
    tunes: set[int] = set()
    for at in range(tries):
        if at % PROOFS == 0:
            machine = Machine(draw, process_sd, turn_sd, kind, gain, at_once)
        passed = machine.passes_screening()
        ratio, took = machine.proves()
        screened += passed
        proved += ratio.proved
        through += passed and ratio.proved
        starts += took
        covered += ratio.interval is not None and ratio.interval.low <= gain <= ratio.interval.high
        tunes |= {at // PROOFS} if ratio.proved else set()
    share = {"proved": proved, "screened": screened, "through": through, "covered": covered}
    return {
        "process_sd": process_sd, "turn_sd": turn_sd, "kind": kind, "gain": gain, "tries": tries,
        **{name: count / tries for name, count in share.items()},
        "tunes": len(tunes) / math.ceil(tries / PROOFS), "starts": starts / tries,
    }  # fmt: skip


def cases(seed: int, tries: int) -> Iterator[tuple[Any, ...]]:
    """All machines, without a gain and, half as often, with one."""
    every = itertools.product(KINDS, PROCESS_SDS, TURN_SDS, (1.0, GAIN))
    for at, (kind, process_sd, turn_sd, gain) in enumerate(every):
        yield (seed + at, process_sd, turn_sd, kind, tries if gain == 1.0 else -(-tries // 2), gain)


def _one(case: tuple[Any, ...]) -> dict[str, Any]:
    return simulate(*case)


def table(rows: list[dict[str, Any]]) -> str:
    """False gains and power, by machine."""
    lines = [
        "| processes | turns | machine | false: proofs | after screening | tunes of four proofs | interval holds | "
        f"{GAIN - 1:.0%} proved | starts |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in [row for row in rows if row["gain"] == 1.0]:
        where = ("process_sd", "turn_sd", "kind")
        gain = next(row for row in rows if row["gain"] != 1.0 and all(row[key] == one[key] for key in where))
        lines.append(
            f"| {one['process_sd']:.1%} | {one['turn_sd']:.0%} | {one['kind']} | {one['proved']:.1%} | "
            f"{one['through']:.1%} | {one['tunes']:.1%} | {one['covered']:.1%} | {gain['proved']:.1%} | "
            f"{gain['starts']:.1f} |"
        )
    return "\n".join(lines)


# the real thing


class Told:
    """What happens, on stderr."""

    def trial(self, purpose: str, levers: str) -> None:
        """A side starts."""

    def step(self, done: int, of: int | None, step_ms: float | None) -> None:
        """Steps were made."""

    def result(self, text: str) -> None:
        """Something is known."""
        print(text, file=sys.stderr, flush=True)


def compare(bench: Bench) -> dict[str, Any]:
    """A command with itself, STARTS processes of each, by the rule of the first look."""
    sides = [bench.start("before" if at % 2 else "after") for at in range(2 * STARTS)]
    for pair in (sides[:STARTS], sides[STARTS:]):
        bench.ready(*pair)
    for side in sides:
        if not side.ready:
            raise SystemExit(f"{side.measured.outcome}: {side.measured.why} ({side.folder})")
    rounds = take_turns(bench, sides, seconds=120.0)
    known = effects(rounds)
    before, after = ([known[side.number] for side in half] for half in (sides[::2], sides[1::2]))
    found = between_processes(before, after)
    bench.end_all()
    return {
        "ratio": round(found.ratio, 4),
        "low": round(found.interval.low, 4) if found.interval else None,
        "high": round(found.interval.high, 4) if found.interval else None,
        "proved": found.proved,
        "rounds": len(rounds),
        "effects": [round(known[side.number].log, 4) for side in sides],
        "errors": [round(known[side.number].error, 4) for side in sides],
    }


def real(tries: int, command: tuple[str, ...]) -> list[dict[str, Any]]:
    """So many of these."""
    words = (sys.executable, *command[1:]) if command[0] == "python" else command
    found = []
    with tempfile.TemporaryDirectory(prefix="hotlap-false-gains-") as folder:
        for at in range(tries):
            into = Path(folder) / str(at)
            into.mkdir()
            plan = RunPlan(words, into, environment(ROOT), steps=STEPS, seconds=SECONDS, seed=SEED + at, cwd=ROOT)
            with Bench(plan, Told()) as bench:
                found.append(compare(bench))
            print(found[-1], file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Simulate, or compare a real command with itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=1000, help="comparisons on each kind of machine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--real", type=int, default=0, help="so many real comparisons instead")
    parser.add_argument("--command", default=shlex.join(DIGITS), help="of --real")
    parser.add_argument("--out", type=Path, help="a JSON file; what stands in it of the other mode stays")
    options = parser.parse_args()
    begun = time.monotonic()
    head = {
        "made": datetime.now(UTC).date().isoformat(),
        "command": shlex.join(["python", "benchmarks/false_gains.py", *sys.argv[1:]]),
    }
    if options.real:
        words = tuple(shlex.split(options.command))
        rows = real(options.real, words)
        shown = [word.removeprefix(f"{ROOT}/") for word in words]
        made: dict[str, Any] = {**head, "of": shlex.join(shown), "machine": platform.platform(), "comparisons": rows}
        print(f"{sum(row['proved'] for row in rows)} false gains in {len(rows)} comparisons of {made['of']}")
    else:
        made = {**head, "tries": options.tries, "looks": LOOKS}
        rows = []
        with multiprocessing.Pool(options.jobs) as pool:
            for row in pool.imap(_one, cases(options.seed, options.tries)):
                rows.append({key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()})
                print(rows[-1], file=sys.stderr, flush=True)
        made["rows"] = rows
        print(table(rows))
    made["wall_s"] = round(time.monotonic() - begun)
    if options.out is not None:
        known = json.loads(options.out.read_text()) if options.out.exists() else {}
        known["real" if options.real else "simulated"] = made
        options.out.write_text(_lines(known) + "\n")


def _lines(known: dict[str, Any]) -> str:
    """JSON with a line for each row."""
    text = json.dumps(known, indent=1)
    return re.sub(r"\{[^{}\[\]]*\}", lambda row: re.sub(r"\s*\n\s*", " ", row[0]), text)


if __name__ == "__main__":
    main()
