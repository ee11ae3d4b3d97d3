"""Public scripts that run out of memory, and what `hotlap tune` makes of them, on the CPU under `ulimit -v`.

    python benchmarks/oom_tunes.py --root CHECKOUTS --objective memory --out FILE
    python benchmarks/oom_tunes.py --root CHECKOUTS --only nanogpt --budget 4m --out FILE

The rows are in `oom_tunes.toml`. Each command is run as it is first, where it has to end; then come the tune and ten
steps by its recipe, under the same limit.
"""

import argparse
import json
import shlex
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from field import last_document
from fit_predictions import started
from zoo_runs import hotlap, machine, run, write

HERE = Path(__file__).resolve().parent
LIMIT_S = 1200
TOLD = (
    "speedup", "interval", "kept", "fitted", "dropped", "parity", "frontier", "complete", "why_incomplete", "reference",
    "no_reference", "wall_s", "memory_before_bytes", "memory_after_bytes", "how", "gain",
)  # fmt: skip


def tuned(row: dict[str, Any], roots: list[Path], objective: str, budget: str, more: list[str]) -> dict[str, Any]:
    """What became of a row."""
    folder, command, known = started(row, roots)

    def limited(words: list[str]) -> tuple[int, str, str]:
        told = f"ulimit -v {row['limit_mib'] << 10}; cd {shlex.quote(str(folder))}; exec {shlex.join(words)}"
        return run(["bash", "-c", told], LIMIT_S, known)

    with tempfile.TemporaryDirectory() as out:
        code, _, err = limited(hotlap("run", "--steps", "10", "--out", f"{out}/bare") + command)
        found = {"alone": {"exit_code": code, "last": err.strip()[-300:]}}
        if not code:
            return {**found, "error": "it fits as it is"}
        asked = ["--objective", objective, "--budget", budget, *more]
        _, said, err = limited(hotlap("tune", "--json", *asked, "--out", f"{out}/tune") + command)
        document = last_document(said)
        found["command"] = shlex.join(["hotlap", "tune", *asked, "python", *command[1:]])
        if document is None:
            return {**found, "error": err.strip()[-800:]}
        found |= {name: document[name] for name in TOLD if name in document}
        kept = ("purpose", "levers", "outcome", "step_ms", "peak_gib", "wall_s", "why")
        found["trials"] = [{key: one[key] for key in kept if one.get(key)} for one in document.get("trials", [])]
        recipe = Path(out, "tune", "recipe.toml")
        if recipe.is_file():
            found["recipe"] = recipe.read_text(encoding="utf-8")
            by = hotlap("run", "--recipe", str(recipe), "--steps", "10", "--json", "--out", f"{out}/by")
            code, said, _ = limited(by + command)
            told = last_document(said) or {}
            found["by_recipe"] = {"exit_code": code, "step_ms": told.get("step_ms")}
        return found


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, action="append", default=[])
    parser.add_argument("--only", default="")
    parser.add_argument("--objective", default="time")
    parser.add_argument("--budget", default="4m")
    parser.add_argument("--more", default="", help="options of tune")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    known = tomllib.loads((HERE / "oom_tunes.toml").read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = json.loads(args.out.read_text(encoding="utf-8"))["rows"] if args.out.exists() else []
    for name in args.only.split(",") if args.only else known:
        row = known[name]
        told = tuned(row, args.root, args.objective, args.budget, shlex.split(args.more))
        rows.append({"name": name, "repo": row["repo"], "limit_mib": row["limit_mib"], **told})
        write(args.out, {"machine": machine(), "rows": rows})
        print(json.dumps({key: told.get(key) for key in ("speedup", "interval", "fitted", "error", "by_recipe")}))


if __name__ == "__main__":
    main()
