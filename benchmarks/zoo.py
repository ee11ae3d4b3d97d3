"""The zoo: each script naive, tuned by hand, tuned by hotlap, and with torch.compile alone, on one machine.

    python benchmarks/zoo.py --out benchmarks/results/zoo-h100.json
    python benchmarks/zoo.py --scripts gpt,tiny_gpt --budget 5m --deadline 560 --out part.json
    python benchmarks/zoo.py sides tiny_gpt naive hand a.toml b.toml --runs 2 --steps 600 --out sides.json
    python benchmarks/zoo.py merge benchmarks/results/zoo-h100.json part.json other.json
    python benchmarks/zoo.py table benchmarks/results/zoo-h100.json
    python benchmarks/zoo.py check                            # naive and by hand compute the same, on a CPU
    python benchmarks/zoo.py --tiny --scripts tiny_gpt        # on a CPU, to see that it works

For each script `hotlap tune` runs on the naive one, with an empty compile cache and no memory of earlier tunes. Then
come rounds of fresh processes (naive, hand, recipe, torch.compile; every second round backwards), and ratios are of the
same round. Step times are those that the scripts print themselves, so hotlap does not time itself. torch.compile alone
is a recipe with that lever only.
"""

import argparse
import contextlib
import io
import json
import runpy
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from zoo_runs import ZOO, bare, caches, flags, hotlap, machine, measured, read, run, with_recipe, write
from zoo_sides import compare, side
from zoo_table import Row, loss_gap, markdown, printed, ratios

SCRIPTS = ("gpt", "tiny_gpt", "input_bound", "resnet50", "unet", "moe", "dlrm", "vit", "lstm", "gan", "decode")
ALLOWED = 3e-4
LOOSE = {"input_bound": 0.01}
"""Its thin batch norms amplify the rounding of channels_last a thousandfold a step; in float64 both are equal."""
COMPILE = """\
format = 1
hotlap = "zoo"
[[lever]]
name = "compile"
risk = "numeric"
[lever.settings]
mode = "default"
"""


def tuned(name: str, args: argparse.Namespace, folder: Path, env: dict[str, str], timeout_s: float) -> Row:
    """Tune the naive script. A failure is told, not raised: the other kinds can still be compared."""
    naive = [sys.executable, str(ZOO / f"{name}.py"), *(["--tiny"] if args.tiny else [])]
    begun = time.monotonic()
    command = hotlap("tune", "--json", "--budget", args.budget, "--out", str(folder / "tune"), *naive)
    code, out, err = run(command, timeout_s, env)
    lines = out.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        return {"error": f"exit code {code}: {err[-2000:]}"}
    tune = json.loads(lines[-1])
    names = ("speedup", "interval", "starts", "turns", "how", "parity", "break_even_steps", "noise", "complete")
    names += ("proofs", "unproved", "fitted", "reused")
    lever = ("lever", "settings", "predicted", "worth")
    return {field: tune.get(field) for field in names} | {
        "naive_ms": tune["baseline"]["step_ms"],
        "bound": tune["baseline"]["bound"],
        "kept": [{field: kept[field] for field in lever} for kept in tune["kept"]],
        "dropped": {lever["lever"]: lever["why"] for lever in tune["dropped"]},
        "wall_s": round(time.monotonic() - begun, 1),
        "budget": args.budget,
        "trials": len(tune["trials"]),
        "walls_s": [[trial["purpose"], trial["outcome"], trial["wall_s"]] for trial in tune["trials"]],
    }


def kinds(name: str, args: argparse.Namespace, folder: Path) -> dict[str, list[str]]:
    """The command of each kind; `OUT` in it is the folder of a run."""
    found = {"naive": bare(name, args), "hand": bare(name, args, "_hand")}
    if (recipe := folder / "tune" / "recipe.toml").exists():
        found["hotlap"] = with_recipe(name, args, recipe)
    (alone := folder / "compile.toml").write_text(COMPILE, encoding="utf-8")
    found["compile"] = with_recipe(name, args, alone)
    return {kind: command for kind, command in found.items() if kind in args.kinds.split(",")}


def rounds(name: str, args: argparse.Namespace, folder: Path, env: dict[str, str], row: Row, until: float) -> None:
    """Add rounds of runs to the row, as many as were asked for and as there is time for."""
    commands = kinds(name, args, folder)
    walls: dict[str, float] = {}
    reference: Any = None
    for number in range(args.runs):
        if number and time.monotonic() + sum(walls.values()) > until:
            row["rounds_why"] = f"the deadline allowed {number} of {args.runs} rounds"
            return
        for kind in list(commands) if number % 2 == 0 else list(commands)[::-1]:
            left = max(10.0, min(args.run_timeout, until - time.monotonic()))
            found, lines = measured(commands[kind], folder / f"{number}-{kind}", left, env)
            walls[kind] = found["wall_s"]
            reference = lines if reference is None and kind == "naive" else reference
            found |= {"round": number, "loss_gap": loss_gap(reference, lines) if reference else None}
            row["runs"].setdefault(kind, []).append(found)
            row["ratios"] = ratios(row)
            save(args, row)
            if "error" in found:
                del commands[kind], walls[kind]


def measure(name: str, args: argparse.Namespace, folder: Path) -> None:
    """Tune one script, then compare all kinds; the row is saved as it grows."""
    folder.mkdir(parents=True)
    until = time.monotonic() + args.deadline
    env = caches(folder, args.warm)
    row: Row = {"script": f"{name}.py", **machine(), "command": " ".join(["python", *sys.argv])}
    row |= {"cache": "as found" if args.warm else "cold", "flags": flags(name, args), "tune": {}, "runs": {}}
    row["tune"] = tuned(name, args, folder, env, args.deadline)
    row["ratios"] = ratios(row)
    save(args, row)
    rounds(name, args, folder, env, row, until)
    print(json.dumps(row), flush=True)


def merged(into: Row, *others: Row) -> Row:
    """Rows of the same script are replaced by later ones; the order is that of SCRIPTS."""
    rows = {row["script"]: row for document in (into, *others) for row in document.get("scripts", [])}
    order = {f"{name}.py": place for place, name in enumerate(SCRIPTS)}
    return {**into, "scripts": sorted(rows.values(), key=lambda row: order.get(row["script"], len(order)))}


def save(args: argparse.Namespace, row: Row) -> None:
    """Merge one row into the results file, so that a run that is cut short leaves what it had."""
    if args.out:
        write(args.out, merged(read(args.out), {"scripts": [row]}))


def outcome(script: str, steps: int) -> Any:
    """The lines that a script prints, run here and tiny."""
    text = io.StringIO()
    argv, sys.argv = sys.argv, [script, "--tiny", "--device", "cpu", "--steps", str(steps), "--log-every", "1"]
    try:
        with contextlib.redirect_stdout(text):
            runpy.run_path(str(ZOO / script), run_name="__main__")
    finally:
        sys.argv = argv
    return printed(text.getvalue())


def check(names: list[str], steps: int) -> int:
    """Compare naive and hand-tuned scripts, tiny and on the CPU: the number of those whose losses lie apart."""
    sys.path.insert(0, str(ZOO))
    wrong = 0
    for name in names:
        naive, hand = outcome(f"{name}.py", steps), outcome(f"{name}_hand.py", steps)
        gap = loss_gap(naive, hand)
        same = len(naive) == len(hand) == steps and gap is not None and gap <= LOOSE.get(name, ALLOWED)
        wrong += not same
        told = "no losses" if gap is None else f"losses {gap:.1e} apart"
        print(f"{'same' if same else 'NOT THE SAME'}: {name}, {len(naive)} and {len(hand)} steps, {told}", flush=True)
    return wrong


def measuring(parser: argparse.ArgumentParser) -> None:
    """Options of both modes that measure."""
    parser.add_argument("--steps", type=int, help="of every measured run; without it what suits the script")
    parser.add_argument("--runs", type=int, default=3, help="rounds, one run of each kind")
    parser.add_argument("--run-timeout", type=float, default=240, help="seconds that one measured run may take")
    parser.add_argument(
        "--deadline", type=float, default=3600, help="seconds for a script; no round begins that can't end"
    )
    parser.add_argument("--warm", action="store_true", help="use the compile cache that is there")
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a CPU")
    parser.add_argument("--keep", type=Path, help="keep run folders here")
    parser.add_argument("--out", type=Path, help="results; those of other scripts (sides: of earlier calls) stay in it")


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    table = modes.add_parser("table", help="the tables of docs/benchmarks.md from a results file")
    table.add_argument("results", type=Path)
    merge = modes.add_parser("merge", help="put the scripts of several results into the first file")
    merge.add_argument("into", type=Path)
    merge.add_argument("parts", type=Path, nargs="+")
    checks = modes.add_parser("check", help="whether naive and hand-tuned scripts compute the same, tiny, on the CPU")
    checks.add_argument("--scripts", default=",".join(SCRIPTS))
    checks.add_argument("--steps", type=int, default=4)
    runs = modes.add_parser("run", help="measure; this is the default")
    runs.add_argument("--scripts", default=",".join(SCRIPTS))
    runs.add_argument("--budget", default="5m", help="of tune")
    runs.add_argument("--kinds", default="naive,hand,hotlap,compile", help="those that rounds are made of")
    measuring(runs)
    sides = modes.add_parser("sides", help="measure one script naive, by hand and with recipes, without a tune")
    sides.add_argument("script", choices=SCRIPTS, metavar="script", help=", ".join(SCRIPTS))
    sides.add_argument("sides", type=side, nargs="+", metavar="side", help="naive, hand, or a recipe's file")
    measuring(sides)
    known = (*modes.choices, "-h", "--help")
    return parser.parse_args(argv if argv and argv[0] in known else ["run", *argv])


def main() -> int:
    args = parse(sys.argv[1:])
    if args.mode == "table":
        print(markdown(read(args.results)), end="")
    elif args.mode == "merge":
        write(args.into, merged(read(args.into), *map(read, args.parts)))
    elif args.mode == "check":
        return check(args.scripts.split(","), args.steps)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        root = args.keep or Path(tempfile.mkdtemp())
        if args.mode == "sides":
            compare(args, root / args.script)
            return 0
        for name in args.scripts.split(","):
            measure(name, args, root / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
