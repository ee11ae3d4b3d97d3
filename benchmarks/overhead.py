"""What `hotlap run` costs: the bare command against the same under hotlap, in ABBA pairs of fresh processes.

    python benchmarks/overhead.py --device cpu --out benchmarks/results/overhead-cpu.json
    python benchmarks/overhead.py --device cuda --out benchmarks/results/overhead-h100.json
    python benchmarks/overhead.py --device cuda --loop gan --sizes tiny,60ms
    python benchmarks/overhead.py --device cuda --pairs 0 --sizes 20ms       # a minute: only inside one process

For each size of step: microseconds a step that hotlap adds (to the mean, and to the first decile of the steps, which
a busy machine disturbs least), percent of the first decile, seconds that the whole process takes longer, and whether
losses, weights, graph breaks, compiled frames, recompilations and synchronisations are those of the bare command.
`inside_us` is from one process in which hotlap's hooks are taken out and put back every 8 steps, steps beside steps, by
the processor time of the loop's thread (`cpu`) and by the clock (`wall`): the only numbers that hold on a machine
whose speed drifts from one process to the next. Once as it is, where hotlap looks at a sample of the steps: `unsampled`
is what a step costs that it only times, `full` one that it looks at, `writing` what is done for many steps at once (to
hand over unsampled ones, the records), and `mean` all of it a step. And once with --every-step, where it looks at all.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

from overhead_switch import summary, whole

SCRIPT = Path(__file__).with_name("overhead_script.py")
SIZES = {
    "cpu": [
        ("0.5ms", ["--width", "32", "--batch", "8", "--layers", "1", "--steps", "6000"]),
        ("2ms", ["--width", "64", "--steps", "4000"]),
        ("10ms", ["--width", "512", "--batch", "128", "--steps", "800"]),
        ("70ms", ["--width", "1024", "--batch", "256", "--steps", "480"]),
    ],
    "cuda": [
        ("tiny", ["--width", "256", "--steps", "3000"]),
        ("5ms", ["--width", "256", "--layers", "24", "--steps", "1200"]),
        ("20ms", ["--width", "8192", "--batch", "1024", "--layers", "6", "--steps", "800"]),
        ("60ms", ["--width", "8192", "--batch", "1024", "--layers", "18", "--steps", "640"]),
    ],
}

LOOPS = "gan: two optimizers in turn; hand: none, updates by hand"
REGIMES: tuple[tuple[str, tuple[str, ...]], ...] = (("as it is", ()), ("every step", ("--every-step",)))
"""Of what is measured inside one process: hotlap looks at a sample of the steps, unless it is told not to."""


def run(arguments: list[str], hotlap: bool, *options: str) -> dict[str, Any]:
    """One process; its own JSON line, its whole wall time, and synchronisations it warned of. options: hotlap's."""
    command = [sys.executable, str(SCRIPT), *arguments]
    with tempfile.TemporaryDirectory() as folder:
        if hotlap:
            command = [sys.executable, "-m", "hotlap", "run", "--out", f"{folder}/run", *options, *command]
        begun = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        wall = time.perf_counter() - begun
    line = next(text for text in done.stdout.splitlines() if text.startswith("{"))
    return {**json.loads(line), "wall_s": wall, "syncs": done.stderr.count("called a synchronizing CUDA operation")}


def _inside(found: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """What the hooks add inside one process, in all and by kind of step."""
    kinds = {kind: {clock: summary(us) for clock, us in clocks.items()} for kind, clocks in found.items()}
    return {"mean": whole(found), **kinds}


def stdev(values: list[float]) -> float | None:
    """Of one value there is none."""
    return statistics.stdev(values) if len(values) > 1 else None


def compare(arguments: list[str], pairs: int, toggle: bool) -> dict[str, object]:
    """ABBA pairs of one size. toggle: and a process in which the hooks come and go."""
    if not pairs:
        found = run([*arguments, "--toggle"], True)["inside_us"]
        return {"arguments": arguments, "pairs": 0, "inside_us": {REGIMES[0][0]: _inside(found)}}
    rows: dict[str, list[dict[str, Any]]] = {"A": [], "B": []}
    for letter in "".join("AB" if pair % 2 == 0 else "BA" for pair in range(pairs)):
        rows[letter].append(run(arguments, letter == "B"))
    bare, under = rows["A"], rows["B"]
    inside = {name: run([*arguments, "--toggle"], True, *flags)["inside_us"] for name, flags in REGIMES if toggle}
    on_cpu = [1000 * (float(b["cpu_ms"]) - float(a["cpu_ms"])) for a, b in zip(bare, under, strict=True)]
    added = [1000 * (float(b["ms"]) - float(a["ms"])) for a, b in zip(bare, under, strict=True)]
    decile = [1000 * (float(b["decile_ms"]) - float(a["decile_ms"])) for a, b in zip(bare, under, strict=True)]
    bare_decile = min(float(r["decile_ms"]) for r in bare)
    same = {
        key: {r[key] for r in bare} == {r[key] for r in under}
        for key in ("losses", "weights", "graph_breaks", "frames", "recompiles", "syncs")
    }
    return {
        "arguments": arguments,
        "pairs": pairs,
        "bare_ms": median(float(r["ms"]) for r in bare),
        "hotlap_ms": median(float(r["ms"]) for r in under),
        "added_us": {"mean": fmean(added), "median": median(added), "stdev": stdev(added)},
        "added_decile_us": {"median": median(decile), "stdev": stdev(decile)},
        "added_decile_percent": 100 * (min(float(r["decile_ms"]) for r in under) / bare_decile - 1),
        "added_cpu_us": {"mean": fmean(on_cpu), "median": median(on_cpu), "stdev": stdev(on_cpu)},
        "inside_us": {name: _inside(found) for name, found in inside.items()},
        "added_process_s": median(float(b["wall_s"]) - float(a["wall_s"]) for a, b in zip(bare, under, strict=True)),
        "same": same,
        "counts": {key: bare[0][key] for key in ("graph_breaks", "frames", "recompiles", "syncs")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--loop", choices=("simple", "gan", "hand"), default="simple", help=LOOPS)
    parser.add_argument("--pairs", type=int, default=6, help="0: only inside one process, as it is")
    parser.add_argument("--sizes", help="only these, with commas between: tiny,syncs")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    import torch

    device = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor() or platform.machine()
    result: dict[str, object] = {
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "device": device,
        "sizes": {},
    }
    sizes = [(name, [*a, "--device", args.device, "--loop", args.loop]) for name, a in SIZES[args.device]]
    sizes.append(("compiled", [*sizes[0][1], "--compile"]))
    if args.device == "cuda":
        sizes.append(("syncs", [*sizes[0][1], "--syncs", "--steps", "400"]))
    chosen = args.sizes.split(",") if args.sizes else [name for name, _ in sizes]
    for name, arguments in sizes:
        if name not in chosen:
            continue
        pairs = {"compiled": min(2, args.pairs), "syncs": 1}.get(name, args.pairs)  # counts need no repetition
        found = compare(arguments, pairs, toggle=name != "syncs")
        result["sizes"][name] = found  # type: ignore[index]
        print(name, json.dumps(found), flush=True)
        if args.out:
            args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
