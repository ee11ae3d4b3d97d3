"""Public training scripts that nobody here wrote: as written, by flags, by an expert's options, and by hotlap.

    python benchmarks/field.py list
    python benchmarks/field.py check --only nanogpt,gin [--kinds bare,flags,expert] [--cpu]
    python benchmarks/field.py run --only nanogpt,gin --budget 300s --out benchmarks/results/field.json
    python benchmarks/field.py merge benchmarks/results/field.json part.json
    python benchmarks/field.py table benchmarks/results/field.json        the table in docs/benchmarks.md

The repositories lie in `.field`, which git does not track; a copy of each runs in $FIELD_WORK (/tmp/field) beside its
data. Step times are hotlap's (`hotlap run --steps N`), for all kinds alike. `run` measures bare and flags,
profiles the bare command (`traced`: its verdict, and how long kernels ran by the trace), tunes it without memory of
earlier tunes, then measures the recipe and the expert, one after the other:
`share` is the recipe's pace over the expert's. Results of the same script and budget are replaced.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from field_scripts import Script, scripts
from zoo_runs import caches, hotlap, machine, read, run, write

Row = dict[str, Any]
KINDS = "bare,flags,traced,expert,hotlap"
MEASURED = (
    "step_ms", "throughput", "throughput_unit", "bound", "steady_steps", "phases", "gpu_phases", "gpu_paced",
    "gpu_busy",
)  # fmt: skip
HEAD = "| script | on | ms | flags | expert | hotlap, 5 min | 10 min | parity | kept, beside the others |"
LONG_S = 450
"""Of a budget, from which a tune is none of five minutes."""
OTHER_BATCH = 1.5
"""Rows a step that differ by this factor: samples a second are compared, not steps."""


def last_document(text: str) -> Row | None:
    """The JSON on the last line of hotlap's output, if there is one."""
    lines = text.strip().splitlines()
    return json.loads(lines[-1]) if lines and lines[-1].startswith("{") else None


def measured(script: Script, options: list[str], command: list[str], limit_s: float, env: dict[str, str]) -> Row:
    """One run of a command under hotlap: its step time and throughput, or an error."""
    begun = time.monotonic()
    try:
        inside = script.prepare()
    except (ImportError, OSError, ValueError, subprocess.SubprocessError) as error:
        return {"wall_s": round(time.monotonic() - begun, 1), "error": f"its data: {error!r}"}
    words = ["env", "-C", str(inside), *hotlap("run", "--json", *options), *command]
    code, out, err = run(words, limit_s, script.environment(env))
    found = (last_document(out) or {}).get("diagnosis") or {}
    row: Row = {"wall_s": round(time.monotonic() - begun, 1)}
    if not found.get("step_ms"):
        return row | {"error": f"exit code {code}: {(err.strip() or out)[-1500:]}"}
    said = next(iter(found["findings"]), {})
    row |= {"headline": said.get("title"), "share": said.get("share"), "where": said.get("where")}
    return row | {name: found.get(name) for name in MEASURED}


def traced(folder: Path, env: dict[str, str]) -> Row:
    """Device ms of a step in which kernels ran, by the trace of a profiled run: what its bound is judged against."""
    code, out, err = run(hotlap("trace", "--json", str(folder)), 60, env)
    rank = next(iter((last_document(out) or {}).get("ranks") or ()), None)
    if rank is None or not rank["breakdown"]:
        return {"error": f"its trace: exit code {code}: {err.strip()[-500:]}"}
    parts = rank["breakdown"][0]
    step_ns = max(1, len(rank["window"]["steps"])) * 1e6
    return {"busy_ms": (parts["span_ns"] - parts["idle_ns"]) / step_ns, "span_ms": parts["span_ns"] / step_ns}


def pace(row: Row | None, over: Row | None) -> float | None:
    """How many times as fast as the other a run is."""
    if not row or not over or "error" in row or "error" in over:
        return None
    rows = [each["step_ms"] * (each["throughput"] or 0) for each in (row, over)]
    if all(rows) and row["throughput_unit"] == over["throughput_unit"] and max(rows) > OTHER_BATCH * min(rows):
        return float(row["throughput"] / over["throughput"])
    return float(over["step_ms"] / row["step_ms"])


def tuned(script: Script, budget: str, folder: Path, limit_s: float, env: dict[str, str]) -> Row:
    """Tune the bare command: what was proved, what was kept, what it cost."""
    begun = time.monotonic()
    options = ("tune", "--json", "--budget", budget, "--out", str(folder))
    words = ["env", "-C", str(script.prepare()), *hotlap(*options), *script.argv("bare")]
    code, out, err = run(words, limit_s, script.environment(env))
    wall = {"wall_s": round(time.monotonic() - begun, 1)}
    tune = last_document(out)
    if not tune:
        return wall | {"error": f"exit code {code}: {err.strip()[-1500:]}"}
    names = (
        "speedup", "interval", "starts", "turns", "how", "parity", "noise", "complete", "why_incomplete", "unproved",
    )  # fmt: skip
    lever = ("lever", "settings", "predicted", "worth")
    return (
        wall
        | {name: tune.get(name) for name in names}
        | {
            "baseline_ms": (tune.get("baseline") or {}).get("step_ms"),
            "kept": [{field: kept.get(field) for field in lever} for kept in tune.get("kept", ())],
            "dropped": {
                each["lever"]: {name: each.get(name) for name in ("why", "ratio", "interval")}
                for each in tune.get("dropped", ())
            },
            "proofs": [
                {name: proof.get(name) for name in ("at_s", "ratio", "interval", "proved")}
                for proof in tune.get("proofs", ())
            ],
            "trials": [[trial["purpose"], trial["outcome"], trial["wall_s"]] for trial in tune.get("trials", ())],
        }
    )


def commit() -> str | None:
    """The commit that is measured: what FIELD_COMMIT says (a lent machine may hold another), else git."""
    if said := os.environ.get("FIELD_COMMIT"):
        return said
    code, out, _ = run(["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], 10, dict(os.environ))
    return out.strip()[:9] if code == 0 else None


def measure(script: Script, args: argparse.Namespace, until: float) -> None:
    """One row; it is saved after each of its runs."""
    folder = Path(tempfile.mkdtemp(prefix=f"field-{script.name}-"))
    env = caches(folder, warm=False)
    steps = ["--steps", str(args.steps or script.steps)]
    row: Row = {"script": script.name, "budget": args.budget, "repo": script.repo, "kind": script.kind, **machine()}
    row |= {"commit": commit(), "command": " ".join(["python", *script.argv("bare")[1:]]), "runs": {}}

    def add(name: str, options: list[str], command: list[str]) -> None:
        limit = max(10.0, min(args.run_timeout, until - time.monotonic()))
        told_in = folder / name
        row["runs"][name] = measured(script, [*steps, "--out", str(told_in), *options], command, limit, env)
        if "--profile" in options and "error" not in row["runs"][name]:
            row["runs"][name] |= traced(told_in, env)
        runs = row["runs"]
        row["as_written_ms"] = runs.get("bare", {}).get("step_ms")
        for kind in ("flags", "expert", "hotlap"):
            row[kind] = pace(runs.get(kind), runs.get("bare"))
        row["share"] = pace(runs.get("hotlap"), runs.get("expert"))
        save(args.out, row)
        told = runs[name].get("error") or f"{runs[name]['step_ms']:.2f} ms"
        print(f"{script.name} {name}: {told[-300:]}  ({runs[name]['wall_s']} s)", file=sys.stderr, flush=True)

    kinds = args.kinds.split(",")
    for kind in (each for each in ("bare", "flags") if each in kinds):
        add(kind, [], script.argv(kind))
    if "traced" in kinds:
        add("traced", ["--profile"], script.argv("bare"))
    if "hotlap" in kinds and "error" not in row["runs"].get("bare", ()):
        row["tune"] = tuned(script, args.budget, folder / "tune", max(10.0, until - time.monotonic()), env)
        save(args.out, row)
        told = {name: row["tune"].get(name) for name in ("speedup", "interval", "starts", "wall_s", "error")}
        print(f"{script.name} tune: {told}", file=sys.stderr, flush=True)
        recipe = folder / "tune" / "recipe.toml"
        if recipe.exists():
            add("hotlap", ["--recipe", str(recipe)], script.argv("bare"))
    if "expert" in kinds:
        add("expert", [], script.argv("expert"))


def check(args: argparse.Namespace) -> int:
    """Start commands for five steps: the number of those that were not measured."""
    wrong = 0
    for script in scripts(args.only):
        if args.cpu and script.cpu is None:
            print(f"needs a GPU: {script.name}", flush=True)
            continue
        for kind in args.kinds.split(","):
            command = script.argv(kind, (script.cpu or "") if args.cpu else "")
            row = measured(script, ["--steps", "5"], command, args.run_timeout, dict(os.environ))
            wrong += "error" in row
            told = row.get("error") or f"{row['step_ms']:.2f} ms, {row['bound']}-bound"
            print(
                f"{'FAILED' if 'error' in row else 'ok'}: {script.name} {kind}, {row['wall_s']} s: {told}", flush=True
            )
    return wrong


def merged(into: Row, *others: Row) -> Row:
    """Rows of the same script and budget are replaced by later ones."""
    documents = (into, *others)
    rows = {(row["script"], row["budget"]): row for document in documents for row in document.get("rows", ())}
    return {"version": 1, "rows": [rows[key] for key in sorted(rows)]}


def save(path: Path, row: Row) -> None:
    write(path, merged(read(path), {"rows": [row]}))


def times(ratio: float | None) -> str:
    """As people write it: three digits."""
    return "" if ratio is None else f"{float(f'{ratio:.3g}'):g}×"


def within(row: Row) -> str:
    """What a tune proved, or what came of it."""
    tune = row["tune"]
    said = tune.get("interval") or {}
    interval = f" ({said['low']:.2f}–{said['high']:.2f})" if said else ""
    if tune.get("kept"):
        proved = [one["at_s"] for one in tune.get("proofs", ()) if one["proved"]]
        first = f", the first proof at {proved[0]:.0f} s" if proved else ""
        return f"**{times(tune['speedup'])}**{interval}, {tune['wall_s']:.0f} s{first}"
    best = f"{times(tune['speedup'])}{interval}, not proved" if tune.get("speedup") and interval else "nothing proved"
    refused = [name for name, why in (tune.get("dropped") or {}).items() if "parity" in str(why)]
    return f"{best}; parity refused {', '.join(refused)}" if refused else best


def table(document: Row) -> str:
    """Markdown: what tunes with a budget of five minutes and of more proved, and what flags and an expert win over the
    bare command of the same day. Tunes beside a busy process have a row of their own."""
    known: dict[tuple[str, bool], list[Row]] = {}
    for row in document["rows"]:
        known.setdefault((row["script"], "busy" in row["budget"]), []).append(row)
    lines: dict[str, float] = {}
    for (name, _), rows in known.items():
        tunes = [row for row in rows if row.get("tune", {}).get("wall_s") and not row["tune"].get("error")]
        if not tunes:
            continue
        long = [row for row in tunes if float(row["budget"].split("s")[0]) >= LONG_S]
        short = [row for row in tunes if row not in long]
        shown = max(tunes, key=lambda row: (bool(row["tune"].get("kept")), row["tune"].get("speedup") or 0))
        own = [next((times(row[kind]) for row in rows if row.get(kind)), "") for kind in ("flags", "expert")]
        ms = shown.get("as_written_ms") or shown["tune"].get("baseline_ms")
        kept, parity = shown["tune"].get("kept", ()), shown["tune"].get("parity")
        level = parity["level"] if isinstance(parity, dict) and kept else ""
        cells = [
            f"{shown['repo'].split('@')[0]} `{name}`", card(shown), f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}", *own,
            *("; ".join(map(within, part)) for part in (short, long)), level, ", ".join(map(worth, kept)),
        ]  # fmt: skip
        lines[f"| {' | '.join(cells)} |"] = (shown["tune"].get("speedup") or 0) * bool(kept)
    return "\n".join([HEAD, "|---" * HEAD.count(" | ") + "|---|", *sorted(lines, key=lambda line: -lines[line])])


def worth(kept: Row) -> str:
    """A lever with its figure beside the others, where it has one."""
    said = (kept.get("worth") or {}).get("interval")
    return kept["lever"] + (f" {kept['worth']['ratio']:.2f}× ({said['low']:.2f}–{said['high']:.2f})" if said else "")


def card(row: Row) -> str:
    """Short."""
    busy = ", one kept busy" if "busy" in row["budget"] else ""
    name = next((one for one in ("H100", "H200") if one in str(row.get("device"))), f"{row['cores']} CPU cores{busy}")
    return f"2 {name}" if row["script"].endswith("_2gpu") else name


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    modes.add_parser("list", help="the scripts")
    checks = modes.add_parser("check", help="whether the commands start")
    checks.add_argument("--cpu", action="store_true", help="make them small, and leave out those that need a GPU")
    runs = modes.add_parser("run", help="measure")
    runs.add_argument("--budget", default="300s", help="of tune")
    runs.add_argument("--steps", type=int, help="of every measured run; without it what suits the script")
    runs.add_argument("--deadline", type=float, default=7200, help="seconds for all; nothing goes on after them")
    runs.add_argument("--out", type=Path, default=Path(__file__).with_name("results") / "field.json")
    for mode, kinds, limit in ((checks, "bare", 90), (runs, KINDS, 240)):
        mode.add_argument("--only", help="names with commas between; all without it")
        mode.add_argument("--kinds", default=kinds)
        mode.add_argument("--run-timeout", type=float, default=limit, help="seconds that one run may take")
    merge = modes.add_parser("merge", help="put the rows of other files into the first")
    merge.add_argument("into", type=Path)
    merge.add_argument("parts", type=Path, nargs="+")
    modes.add_parser("table", help="as in docs/benchmarks.md").add_argument("of", type=Path)
    return parser.parse_args()


def main() -> int:
    args = parse()
    if args.mode == "list":
        for script in scripts():
            print(f"{script.name:18} {script.repo:48} {script.kind:26} {'cpu' if script.cpu is not None else 'gpu'}")
    elif args.mode == "check":
        return check(args)
    elif args.mode == "table":
        print(table(read(args.of)))
    elif args.mode == "merge":
        write(args.into, merged(read(args.into), *map(read, args.parts)))
    else:
        until = time.monotonic() + args.deadline
        for script in scripts(args.only):
            if time.monotonic() < until:
                measure(script, args, until)
    return 0


if __name__ == "__main__":
    sys.exit(main())
