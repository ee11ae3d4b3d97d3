"""What `hotlap fit` predicts beside what is then measured, on public scripts that nobody here wrote.

    python benchmarks/fit_predictions.py run --root CHECKOUTS --only nanogpt_batch,char_rnn --out FILE
    python benchmarks/fit_predictions.py run --only gpu_nanogpt --out FILE       rows with `field`: see field.py
    python benchmarks/fit_predictions.py table FILE

The rows are in `fit_predictions.toml`. Of each, `fit` runs the small values and predicts the large ones; a second `fit`
runs those. `error` is of the likely number, over the measured one; `held`, that the range holds the measured one. Where
the range alone was told, there is no error.
"""

import argparse
import json
import os
import shlex
import sys
import tempfile
import tomllib
from pathlib import Path
from statistics import median
from typing import Any

from field import last_document
from field_scripts import scripts
from zoo_runs import hotlap, machine, run, write

Row = dict[str, Any]
HERE = Path(__file__).resolve().parent
LIMIT_S = 900


def started(row: Row, roots: list[Path]) -> tuple[Path, list[str], dict[str, str]]:
    """Folder, command and environment of a row. Raises FileNotFoundError where its checkout is not there."""
    if "field" in row:
        (script,) = scripts(row["field"])
        return script.prepare(), script.argv("bare", row.get("command", "")), script.environment(dict(os.environ))
    folder = next((root / row["folder"] for root in roots if (root / row["folder"]).is_dir()), None)
    if folder is None:
        raise FileNotFoundError(row["folder"])
    paths = [str(folder / row.get("path", ".")), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    known = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, str(HERE.parent / "src")])}
    return folder, [sys.executable, *shlex.split(row["command"])], known


def fitted(row: Row, roots: list[Path], measure: str, budget: str) -> Row:
    """The document of one `fit`, or an error."""
    folder, command, known = started(row, roots)
    with tempfile.TemporaryDirectory() as out:
        options = ["--flag", row["flag"], "--measure", measure, "--values", row["values"], "--budget", budget]
        words = ["env", "-C", str(folder), *hotlap("fit", "--json", *options, "--out", f"{out}/fit"), *command]
        code, said, err = run(words, LIMIT_S, known)
    return last_document(said) or {"error": f"exit code {code}: {err.strip()[-800:]}"}


def compared(name: str, row: Row, roots: list[Path], budget: str) -> list[Row]:
    """Rows of the result: a value and a quantity each."""
    first, second = (fitted(row, roots, row[which], budget) for which in ("measure", "values"))
    if error := first.get("error") or second.get("error"):
        return [{"name": name, "error": error}]
    told = {one["value"]: one for one in first["values"]}
    found = []
    for true in (one for one in second["runs"] if one["outcome"] == "measured"):
        for what, measured in (("peak", "peak_bytes"), ("reserved", "reserved_bytes"), ("step_ms", "step_ms")):
            guess, real = told[true["value"]][what], true[measured]
            if guess is None or not real:
                continue
            likely, high = guess["likely"], guess["high"]
            found.append({
                "name": name, "what": what, "value": true["value"], "shape": first["shape"], "device": first["device"],
                "low": guess["low"], "likely": likely, "high": high, "measured": real,
                "error": None if likely is None else likely / real - 1,
                "held": guess["low"] <= real and (high is None or real <= high),
            })  # fmt: skip
    return found


def table(rows: list[Row]) -> str:
    """Markdown: the peaks, and a line for each quantity."""
    lines = ["| script | value | predicted | range | measured | error |", "|---|---|---|---|---|---|"]
    mib = 2**20
    for row in (one for one in rows if one.get("what") == "peak"):
        likely = "-" if row["likely"] is None else f"{row['likely'] / mib:.1f}"
        spread = f"{row['low'] / mib:.1f}–" + ("" if row["high"] is None else f"{row['high'] / mib:.1f}")
        error = "-" if row["error"] is None else f"{row['error']:+.1%}"
        told = f"| {row['name']} | {row['value']} | {likely} | {spread} | {row['measured'] / mib:.1f} | {error} |"
        lines.append(told)
    lines += ["", "Peaks in MiB.", ""]
    for what in ("peak", "reserved", "step_ms"):
        mine = [row for row in rows if row.get("what") == what]
        errors = [abs(row["error"]) for row in mine if row["error"] is not None]
        if errors:
            lines.append(
                f"{what}: median error {median(errors):.1%}, worst {max(errors):.1%}, of {len(errors)}; "
                f"{len(mine) - len(errors)} with a range alone; {sum(row['held'] for row in mine)} of {len(mine)} "
                "ranges hold what was measured"
            )
    lines += [f"{row['name']}: {row['error']}" for row in rows if "what" not in row]
    return "\n".join(lines)


def main() -> None:
    """Run or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--root", type=Path, action="append", default=[])
    running.add_argument("--only", default="")
    running.add_argument("--budget", default="5m")
    running.add_argument("--out", type=Path, required=True)
    commands.add_parser("table").add_argument("file", type=Path)
    args = parser.parse_args()
    if args.command == "table":
        print(table(json.loads(args.file.read_text(encoding="utf-8"))["rows"]))
        return
    known = tomllib.loads((HERE / "fit_predictions.toml").read_text(encoding="utf-8"))
    names = args.only.split(",") if args.only else [name for name, row in known.items() if "field" not in row]
    rows = []
    for name in names:
        rows += compared(name, known[name], args.root, args.budget)
        write(args.out, {"machine": machine(), "rows": rows})
        print(table([row for row in rows if row["name"] == name]), flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
