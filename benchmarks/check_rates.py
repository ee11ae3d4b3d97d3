"""How often `hotlap check` alarms where nothing changed, and how often it finds what did: simulated, and for real.

    python benchmarks/check_rates.py simulate --checks 1000
    python benchmarks/check_rates.py real --pairs 20 --budget 2m --kept /tmp/rates [--site FOLDER]
    python benchmarks/check_rates.py summary --kept /tmp/rates

`simulate` draws the effects of starts and asks the rule, as an attempt does: looks after `STARTS`, and what was shown
once more from fresh starts. `real` checks `check_rates_train.py` against itself (A/A) and against itself with 5% more
work in each step (A/B), in turn, and asks others of the same pairs: train-doctor's compare and pytest-benchmark's
(where `--site` names a folder that they are installed in), and one run of each with a threshold of 5%. It appends a
line to `real.jsonl` for each and goes on from there when it is started again. `summary` and `simulate` write their part
of the result.
"""

import argparse
import json
import math
import os
import platform
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

from hotlap.experiment.statistics import Effect
from hotlap.guard import rule
from hotlap.guard.check import LIMIT

RESULT = Path(__file__).with_name("results") / "check-rates.json"
SCRIPT = Path(__file__).with_name("check_rates_train.py")
SLOWER, ONE_RUN_STEPS, MOST_S = 0.05, 200, 1200.0
TURN_ERROR = 0.003
"""Of the effect of a start, that its turns leave, as a logarithm."""
GAINS = (0.0, 0.02, 0.05, 0.10)

# simulated

Draw = Callable[[random.Random], float]
"""The log step time of a start."""


def normal(spread: float) -> Draw:
    """Starts as the rule assumes them."""
    return lambda chance: chance.gauss(0.0, spread)


def kinds(gap: float, share: float = 0.5) -> Draw:
    """Of which a share is slower by a gap."""
    return lambda chance: (chance.random() < share) * gap + chance.gauss(0.0, gap / 10)


def heavy(spread: float) -> Draw:
    """Student's t of three degrees of freedom."""
    return lambda chance: spread * chance.gauss(0, 1) / math.sqrt(max(0.05, chance.gammavariate(1.5, 2 / 3)))


REGIMES: dict[str, tuple[Draw, float]] = {
    **{
        f"starts differ by {spread:.1%}".replace(".0%", "%"): (normal(spread), 0.0)
        for spread in (0.003, 0.01, 0.02, 0.03, 0.05)
    },
    "two kinds, 4% apart": (kinds(0.04), 0.0),
    "two kinds, 10% apart": (kinds(0.10), 0.0),
    "one in seven 8% slower": (kinds(0.08, 1 / 7), 0.0),
    "heavy tails, 1%": (heavy(0.01), 0.0),
    "heavy tails, 3%": (heavy(0.03), 0.0),
    "1%, and the machine slows by 2% a look": (normal(0.01), 0.02),
}
"""Name: what starts differ by, and how much slower the machine is at each look than at the one before. That slows both
sides alike; the order within a look is drawn, so a hundredth of it stays in the turns as noise."""
LEFT_OF_DRIFT = 0.1


def attempt(chance: random.Random, regime: tuple[Draw, float], gain: float, most: int) -> tuple[str, int]:
    """What an attempt says of a change, and after how many starts of each version."""
    draw, drift = regime
    sides: tuple[list[Effect], list[Effect]] = ([], [])
    error = math.hypot(TURN_ERROR, LEFT_OF_DRIFT * drift)
    call = "open"
    for starts in rule.STARTS:
        if starts > most:
            break
        while len(sides[0]) < starts:
            for side, more in zip(sides, (0.0, math.log1p(gain)), strict=True):
                side.append(Effect(draw(chance) + more + chance.gauss(0.0, error), error))
        call = rule.told(*sides, math.log1p(LIMIT)).call
        if call != "open":
            break
    return call, len(sides[0])


def check(chance: random.Random, regime: tuple[Draw, float], gain: float, most: int = 16) -> tuple[str, int]:
    """The verdict of a check, and its starts of each version. most: of an attempt, as time allows."""
    call, starts = attempt(chance, regime, gain, most)
    if call != "slower":
        return {"within": "pass", "open": "inconclusive"}[call], starts
    again, more = attempt(chance, regime, gain, most)
    return ("fail" if again == "slower" else "inconclusive"), starts + more


def rates(name: str, gain: float, checks: int, most: int, seed: int) -> dict[str, Any]:
    """A line: of one regime and one change."""
    quicker()
    chance = random.Random(f"{seed} {name} {gain} {most}")
    found = [check(chance, REGIMES[name], gain, most) for _ in range(checks)]
    said = Counter(verdict for verdict, _ in found)
    return {"regime": name, "slower": gain, "most_starts": most, "checks": checks,
            **{verdict: said[verdict] / checks for verdict in ("fail", "pass", "inconclusive")},
            "starts": round(fmean(starts for _, starts in found), 1)}  # fmt: skip


def quicker() -> None:
    """Have scipy's exact distributions computed once for each argument: they take nearly all of the time."""
    from scipy import stats

    if hasattr(stats.t.ppf, "cache_info"):
        return
    stats.t.ppf = cache(stats.t.ppf)
    exact = stats.mannwhitneyu

    @cache
    def of_places(head: tuple[int, ...], base: tuple[int, ...]) -> Any:
        return exact(head, base, alternative="greater", method="exact")

    def of_ranks(head: Sequence[float], base: Sequence[float], **_: str) -> Any:
        place = {value: at for at, value in enumerate(sorted({*head, *base}))}
        return of_places(tuple(sorted(place[one] for one in head)), tuple(sorted(place[one] for one in base)))

    stats.mannwhitneyu = of_ranks


def simulate(options: argparse.Namespace) -> None:
    """All regimes and changes."""
    work = [(name, gain, options.checks, most, options.seed) for most in (16, 4) for name in REGIMES for gain in GAINS]
    begun = time.monotonic()
    with ProcessPoolExecutor(options.jobs) as pool:
        lines = list(pool.map(rates, *zip(*work, strict=True)))
    for line in lines:
        print(f"{line['regime']:<42} {line['slower']:.0%} most {line['most_starts']:>2}  fail {line['fail']:.2%}  "
              f"pass {line['pass']:.1%}  inconclusive {line['inconclusive']:.1%}  starts {line['starts']}")  # fmt: skip
    put("simulated", {"wall_s": round(time.monotonic() - begun), "lines": lines})


# for real


def hotlap_says(commands: tuple[str, str], folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Of `hotlap check`."""
    out = folder / "check"
    words = [
        "-m",
        "hotlap",
        "check",
        "--baseline",
        commands[0],
        "--budget",
        options.budget,
        "--json",
        "--out",
        str(out),
    ]
    done = shell([sys.executable, *words, *shlex.split(commands[1])], folder)
    if done.returncode not in (0, 1, 2):
        return {"said": "failed", "why": done.stderr[-500:]}
    told = json.loads(done.stdout.splitlines()[-1])
    steps = [attempt["judged"][0] for attempt in told["attempts"] if attempt["judged"]]
    interval = steps[0].get("interval") if steps else None
    return {
        "said": told["verdict"], "why": told["why"], "change": steps[0].get("change") if steps else None,
        "interval": [interval["low"], interval["high"]] if interval else None,
        "attempts": [{key: one[key] for key in ("starts", "turns", "how", "null", "seconds")}
                     | {"step": one["judged"][0]["call"] if one["judged"] else None,
                        "memory": next((j["call"] for j in one["judged"] if j["what"] == "peak memory"), None),
                        "more": [j["what"] for j in one["judged"] if j["call"] == "slower"],
                        "start_s": next((j.get("before") for j in one["judged"] if j["what"] == "start-up"), None)}
                     for one in told["attempts"]],
    }  # fmt: skip


def one_run_says(commands: tuple[str, str], folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Of one run each, and a threshold."""
    means = []
    for command in commands:
        done = shell([*shlex.split(command), "--steps", str(ONE_RUN_STEPS)], folder)
        means.append(float(done.stdout.split("mean step")[1].split()[0]))
    change = means[1] / means[0] - 1
    return {"said": "fail" if change > LIMIT else "pass", "change": change}


STEP = """import os
from itertools import chain, repeat
from check_rates_train import Training, count
def test_step(benchmark):
    training = Training(count(float(os.environ["SLOWER"])))
    batches = chain.from_iterable(repeat(training.loader))
    benchmark(lambda: training.step(*next(batches)))
"""


def pytest_benchmark_says(commands: tuple[str, str], folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Of pytest-benchmark: the same step as a function, saved, then compared with what was saved."""
    (folder / "test_step.py").write_text(STEP)
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        ".",
        "test_step.py",
    ]
    means, code = [], 0
    for number, command in enumerate(commands):
        slower = command.split("--slower")[1].strip() if "--slower" in command else "0"
        more = (
            ["--benchmark-compare", f"--benchmark-compare-fail=mean:{LIMIT:.0%}"]
            if number
            else ["--benchmark-autosave"]
        )
        done = shell(
            [*words, *more, f"--benchmark-json={number}.json"], folder, options.site, SCRIPT.parent, SLOWER=slower
        )
        code = done.returncode
        if code and (not number or "Performance has regressed" not in done.stdout + done.stderr):
            return {"said": "failed", "why": (done.stdout + done.stderr)[-500:]}
        means.append(json.loads((folder / f"{number}.json").read_text())["benchmarks"][0]["stats"]["mean"])
    return {"said": "fail" if code else "pass", "change": means[1] / means[0] - 1}


def train_doctor_says(commands: tuple[str, str], folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Of train-doctor: what it says, with all as it is by default."""
    words = [
        "-m",
        "train_doctor",
        "compare",
        "--json",
        "--quiet",
        "--baseline",
        commands[0],
        "--candidate",
        commands[1],
    ]
    done = shell([sys.executable, *words], folder, options.site)
    if done.returncode or not done.stdout.startswith("{"):
        return {"said": "failed", "why": (done.stdout + done.stderr)[-500:]}
    told = json.loads(done.stdout)
    said = {"slower": "fail", "faster": "faster"}.get(told.get("verdict"), "inconclusive")
    ratio = told.get("ratio")
    return {"said": said, "why": told.get("reason"), "change": 1 / ratio["point"] - 1 if ratio else None}


TOOLS: dict[str, Callable[[tuple[str, str], Path, argparse.Namespace], dict[str, Any]]] = {
    "hotlap check": hotlap_says,
    "one run": one_run_says,
    "pytest-benchmark": pytest_benchmark_says,
    "train-doctor": train_doctor_says,
}


def shell(words: Sequence[str], folder: Path, *paths: Path | None, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in a folder to its end. paths: that Python looks in first."""
    known = [str(path) for path in paths if path is not None]
    before = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    if known or before:
        environ["PYTHONPATH"] = os.pathsep.join([*known, *before])
    return subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=MOST_S, check=False)


def real(options: argparse.Namespace) -> None:
    """Pairs in turn, A/A and A/B; of each what all tools say."""
    options.kept.mkdir(parents=True, exist_ok=True)
    lines = kept(options.kept)
    asked = [tool for tool in TOOLS if options.site is not None or tool in ("hotlap check", "one run")]
    bare = f"{sys.executable} {SCRIPT}"
    for pair in range(options.pairs):
        for kind in ("A/A", "A/B"):
            for tool in asked:
                if any((line["pair"], line["kind"], line["tool"]) == (pair, kind, tool) for line in lines):
                    continue
                if options.until and time.time() > options.until:
                    return
                folder = Path(tempfile.mkdtemp(prefix="hotlap-rates-"))
                begun, load = time.monotonic(), os.getloadavg()[0]
                commands = (bare, f"{bare} --slower {SLOWER}" if kind == "A/B" else bare)
                try:
                    said = TOOLS[tool](commands, folder, options)
                except (subprocess.TimeoutExpired, LookupError, ValueError) as error:
                    said = {"said": "failed", "why": repr(error)[-500:]}
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                line = {
                    "pair": pair, "kind": kind, "tool": tool, "time": datetime.now(UTC).isoformat(timespec="seconds"),
                    "budget": options.budget, "seconds": round(time.monotonic() - begun, 1),
                    "load": [load, os.getloadavg()[0]], **said,
                }  # fmt: skip
                with (options.kept / "real.jsonl").open("a") as out:
                    out.write(json.dumps(line) + "\n")
                told = f"{said['said']:<13} {said.get('change') or math.nan:+.1%} {line['seconds']:.0f} s"
                print(f"{pair} {kind} {tool:<17} {told}", flush=True)


def kept(folder: Path) -> list[dict[str, Any]]:
    """The lines so far."""
    path = folder / "real.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def summary(options: argparse.Namespace) -> None:
    """By tool and kind: what was said how often."""
    found = kept(options.kept)
    lines = []
    for budget, tool, kind in dict.fromkeys((one["budget"], one["tool"], one["kind"]) for one in found):
        mine = [one for one in found if (one["budget"], one["tool"], one["kind"]) == (budget, tool, kind)]
        changes = sorted(one["change"] for one in mine if one.get("change") is not None)
        lines.append(
            {"tool": tool, "kind": kind, "budget": budget, "pairs": len(mine), **Counter(one["said"] for one in mine),
             "seconds": round(median(one["seconds"] for one in mine)),
             "longest_s": round(max(one["seconds"] for one in mine)),
             "load": [round(min(min(one["load"]) for one in mine), 1), round(median(one["load"][0] for one in mine), 1),
                      round(max(max(one["load"]) for one in mine), 1)],
             "changes": [round(change, 4) for change in changes]}
        )  # fmt: skip
        print(json.dumps(lines[-1]))
    put("real", {"lines": lines})


# the result


def put(part: str, found: dict[str, Any]) -> None:
    """Write one part of the result, the other one as it was."""
    before = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=RESULT.parent, capture_output=True, text=True, check=False
    )
    made = {
        "command": "python benchmarks/check_rates.py " + " ".join(sys.argv[1:]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit.stdout.strip(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}", **found,
    }  # fmt: skip
    text = json.dumps({**before, part: made}, indent=1)
    RESULT.write_text(text + "\n")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    one = parts.add_parser("simulate")
    one.add_argument("--checks", type=int, default=1000)
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--jobs", type=int, default=2)
    one.set_defaults(run=simulate)
    for name, run in (("real", real), ("summary", summary)):
        one = parts.add_parser(name)
        one.add_argument("--kept", type=Path, required=True)
        one.set_defaults(run=run)
        if run is real:
            one.add_argument("--pairs", type=int, default=20)
            one.add_argument("--budget", default="60s")
            one.add_argument("--site", type=Path)
            one.add_argument("--until", type=float, default=0.0, help="seconds since the epoch")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
