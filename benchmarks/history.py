"""The history by numbers: how long its pages and its adding take with many runs, and how often its alarms are false.

    python benchmarks/history.py pages --runs 100000     # made in a temporary file; --db postgresql://... in a server
    python benchmarks/history.py rates                   # simulated series, with and without a change

Prints JSON; `--out FILE` writes it too, beside what else the file holds.
"""

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hotlap.launch.environment import cpu_model

DAY = 86400.0
BEGAN = 1_790_000_000.0
COUNT = 1000
"""Series of each kind."""


def entries(runs: int, seed: int = 0) -> Iterator[Any]:
    """Half of the runs are of 60 commands, a few of which run most of the time; half are of sweeps of five."""
    from hotlap.records.history import Entry
    from hotlap.records.run import Environment, Phases, Versions

    random = np.random.default_rng(seed)
    packages = {f"package-{number}": f"{number}.0" for number in range(60)}
    weights = 1 / np.arange(1, 61)
    chosen = random.choice(60, runs // 2, p=weights / weights.sum())
    for number in range(runs):
        steady = number < runs // 2
        series = int(chosen[number]) if steady else 100 + (number - runs // 2) // 5
        commit = number * 4000 // runs
        host = f"host{series % 3}"
        level = (10 + series % 7) * (1.15 if steady and commit > 2000 and series % 4 == 0 else 1.0)
        step = level * math.exp(random.normal(0, 0.02))
        machine = Environment(
            hotlap="0.1.0", python="3.11.7", os="Linux", host=host, cpu="x", cores=64, memory_gib=512.0,
            driver=f"{550 + commit // 1000}", variables={"OMP_NUM_THREADS": "8"},
        )  # fmt: skip
        yield Entry(
            key=f"{number:032x}", kind="run", project=f"project{series % 5}", host=host, device="8 × NVIDIA H200",
            command=("torchrun", "train.py", "--config", f"config{series}.yaml"), cwd="/w", folder=f"/w/r{number}",
            started=BEGAN + number * 600, commit=f"{commit:040x}", commit_time=BEGAN + commit * 600 * runs / 4000,
            dirty=False, status="finished", exit_code=0, torch="2.13.0", wall_s=3600.0, step_ms=step,
            p10_ms=step * 0.95, p90_ms=step * 1.1, steps=500,
            phases=Phases(data=step * 0.1, forward=step * 0.3, backward=step * 0.6),
            throughput=1000.0, peak_bytes=7e10 + series * 1e8, startup_s=30.0 + random.normal(0, 1), bound="compute",
            finding="computing Model", environment=machine,
            versions=Versions(python="3.11.7", torch="2.13.0", packages=packages),
        )  # fmt: skip


def fill(where: str, runs: int) -> dict[str, Any]:
    """Add them. The first hundred each in a transaction of its own, as hotlap adds; the others many at once."""
    from hotlap.guard.history import open_history

    took = []
    with open_history(where, make=True) as history:
        made = entries(runs)
        for _ in range(100):
            one = next(made)
            began = time.perf_counter()
            history.add(one)
            took.append(1000 * (time.perf_counter() - began))
        with history.database.writing() as connection:
            history.put(connection, made)
        if history.database.sqlite:
            with history.database.reading() as connection:
                connection.exec_driver_sql("pragma wal_checkpoint(truncate)")
    return {"add_ms": summary(took)}


def summary(values: list[float]) -> dict[str, float]:
    """Median and the ends, to three digits."""
    found = {"median": statistics.median(values), "p90": float(np.quantile(values, 0.9)), "max": max(values)}
    return {name: float(f"{value:.3g}") for name, value in found.items()}


VIEWS = {
    "all": "/",
    "project": "/?project=project1",
    "filtered": "/?project=project0&command=config0&host=host0&since=2026-10-01",
    "command": "/?command=nothing-has-this",
    "commit": f"/?commit={3000:040x}",
    "memory": "/?measure=memory",
    "series": "/series/1",
    "run": "/run/777",
    "compare": "/compare?before=777&after=1777",
}


def pages(where: str, runs: int, rounds: int) -> dict[str, Any]:
    """Milliseconds a view, asked of the real server over a socket, one after another. A history that is there is used
    as it is."""
    filled = {} if "://" not in where and Path(where).exists() else fill(where, runs)
    server = subprocess.Popen(
        [sys.executable, "-m", "hotlap", "serve", "--db", where, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        server.stdout.readline()
        address = server.stdout.readline().split()[-1]
        with urllib.request.urlopen(f"{address}/?command=config{100 + runs // 20}.yaml", timeout=60) as answer:
            sweep = re.findall(r"/series/\d+", answer.read().decode())[0]
        views = {name: view(address + path, rounds, server.pid) for name, path in {**VIEWS, "sweep": sweep}.items()}
    finally:
        server.terminate()
        server.wait()
    worst = max(one["ms"]["median"] for one in views.values())
    return {"runs": runs, **filled, "worst_median_ms": worst, "views": views}


def view(address: str, rounds: int, server: int) -> dict[str, Any]:
    """How long a page takes, of which the first is told by itself, the server's processor time, and the size."""
    took, size, before = [], 0, psutil.Process(server).cpu_times()
    for _ in range(rounds + 1):
        began = time.perf_counter()
        with urllib.request.urlopen(address, timeout=60) as answer:
            size = len(answer.read())
        took.append(1000 * (time.perf_counter() - began))
    after = psutil.Process(server).cpu_times()
    cpu = 1000 * (after.user + after.system - before.user - before.system) / len(took)
    told = {"first_ms": round(took[0], 1), "ms": summary(took[1:]), "server_cpu_ms": round(cpu, 1), "bytes": size}
    return {"path": "/" + address.split("/", 3)[3][:60], **told}


def correlated(random: Any, runs: int, noise: float, alike: float) -> Any:
    """Noise of which neighbours are alike (first-order autoregressive)."""
    fresh = random.normal(0, noise, runs)
    made = np.zeros(runs)
    made[0] = fresh[0]
    for at in range(1, runs):
        made[at] = alike * made[at - 1] + math.sqrt(1 - alike**2) * fresh[at]
    return made


def spiked(random: Any, runs: int) -> Any:
    """Noise of 2%, and one run in twenty 40% slower."""
    return random.normal(0, 0.02, runs) + math.log(1.4) * (random.random(runs) < 0.05)


NOISES: dict[str, Callable[[Any, int], Any]] = {
    "2%": lambda random, runs: random.normal(0, 0.02, runs),
    "5%": lambda random, runs: random.normal(0, 0.05, runs),
    "3%, heavy tails": lambda random, runs: 0.03 * random.standard_t(3, runs) / math.sqrt(3),
    "2%, spikes": spiked,
    "3%, neighbours alike": lambda random, runs: correlated(random, runs, 0.03, 0.5),
}


def told(values: Any) -> tuple[bool, bool, list[int]]:
    """Whether a change is told, whether a drift is, and where."""
    from hotlap.guard.changes import trend

    found = trend("step", [plain(at, float(value)) for at, value in enumerate(values)])
    return bool(found.changes), found.drift is not None, [one.at for one in found.changes]


def plain(number: int, step_ms: float) -> Any:
    """A run of which nothing else is known."""
    global TEMPLATE
    import msgspec

    TEMPLATE = TEMPLATE or next(entries(10))
    commit = f"{number:040x}"
    return msgspec.structs.replace(TEMPLATE, id=number, commit=commit, commit_time=float(number), step_ms=step_ms)


TEMPLATE: Any = None


def rates(count: int) -> dict[str, Any]:
    """Shares of simulated series, each of its own random numbers."""
    random = np.random.default_rng(0)
    false: dict[str, dict[str, Any]] = {}
    for name, noise in NOISES.items():
        for runs in (20, 50, 100, 200):
            found = [told(100 * np.exp(noise(random, runs))) for _ in range(count)]
            false.setdefault(name, {})[str(runs)] = {
                "change": sum(one[0] for one in found) / count, "drift": sum(one[1] for one in found) / count
            }  # fmt: skip
    true: dict[str, dict[str, Any]] = {}
    for size in (1.06, 1.1, 1.2):
        for after in (3, 5, 10):
            level = np.r_[np.ones(40), np.full(after, size)]
            places = [told(level * np.exp(random.normal(0, 0.02, 40 + after)))[2] for _ in range(count)]
            true.setdefault(f"{size:.2f}x", {})[str(after)] = {
                "told": sum(map(bool, places)) / count,
                "within_one_run": sum(any(abs(at - 40) <= 1 for at in one) for one in places) / count,
            }
    drift = {}
    for total in (1.05, 1.1, 1.2):
        slope = np.linspace(0, math.log(total), 60)
        found = [told(np.exp(slope + random.normal(0, 0.02, 60))) for _ in range(count)]
        drift[f"{total:.2f}x over 60"] = {
            "drift": sum(one[1] for one in found) / count, "steps": sum(one[0] for one in found) / count
        }  # fmt: skip
    return {"series": count, "false_alarms": false, "true_changes": true, "true_drifts": drift}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("pages", "rates"))
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--series", type=int, default=COUNT)
    parser.add_argument("--db")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    machine = {"date": time.strftime("%Y-%m-%d"), "cpu": cpu_model(Path("/proc/cpuinfo")), "cores": os.cpu_count()}
    machine["load"] = round(os.getloadavg()[0], 1)
    if given.what == "rates":
        name, made = "rates", rates(given.series)
    elif given.db:
        name = "pages-postgresql" if "://" in given.db else "pages-sqlite"
        made = pages(given.db, given.runs, given.rounds)
    else:
        with tempfile.TemporaryDirectory() as folder:
            name, made = "pages-sqlite", pages(str(Path(folder) / "history.db"), given.runs, given.rounds)
    made = {name: {**machine, "command": " ".join(["benchmarks/history.py", *sys.argv[1:]]), **made}}
    if given.out:
        before = json.loads(given.out.read_text()) if given.out.exists() else {}
        given.out.write_text(json.dumps({**before, **made}, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(made, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
