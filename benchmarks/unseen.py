"""Does `hotlap run --profile` name bound, cause and line of scripts whose author had not seen its rules?

    OMP_NUM_THREADS=1 python benchmarks/unseen.py --keep /tmp/unseen --out benchmarks/results/unseen-cpu.json
    python benchmarks/unseen.py --judge /tmp/unseen        runs that were kept, judged again by the rules of now

Of each script in `unseen/`, `unseen.toml` says what is right. What is judged is the headline: the verdict's bound, and
of its first finding the line (or its function) and whether its words hold the advice. Of healthy ones no cause may be
named.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).with_name("unseen")
CASES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
JUDGED = ("bound", "line", "place", "advice")
LIMIT_S = 240


def run(name: str, ranks: int, folder: Path) -> None:
    """One script under hotlap, with a profile."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launcher, str(SCRIPTS / f"{name}.py")]
    options = [sys.executable, "-m", "hotlap", "run", "--profile", "--out", str(folder)]
    subprocess.run([*options, *command], capture_output=True, timeout=LIMIT_S, check=False)


def verdict(folder: Path) -> dict[str, Any]:
    """What hotlap of now says of a run."""
    show = [sys.executable, "-m", "hotlap", "show", "--json", str(folder)]
    lines = subprocess.run(show, capture_output=True, text=True, check=False).stdout.splitlines()
    return (json.loads(lines[-1]).get("diagnosis") if lines else None) or {"bound": "failed", "findings": []}


def judged(case: dict[str, Any], diagnosis: dict[str, Any]) -> dict[str, Any]:
    """What the headline says beside what is right. place: the line or its function."""
    findings = diagnosis["findings"]
    first = findings[0] if findings else {}
    where = first.get("where") or {}
    told = {"found": diagnosis["bound"], "first": first.get("id"), "title": first.get("title"), "at": where.get("line")}
    if not case["advice"]:
        return {**told, "healthy": not any(one.get("named") for one in findings)}
    words = " ".join(str(first.get(key) or "") for key in ("title", "why", "instead", "evidence"))
    line = where.get("line") in case["lines"]
    inside = (where.get("function") or "").split(".")[-1] in {one.split(".")[-1] for one in case["functions"]}
    return told | {
        "bound": diagnosis["bound"] in case["bound"],
        "line": line,
        "place": line or inside,
        "advice": any(re.search(pattern, words, re.IGNORECASE) for pattern in case["advice"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names, with commas between")
    parser.add_argument("--keep", type=Path, help="keep run folders here")
    parser.add_argument("--judge", type=Path, help="judge runs that were kept here, and run none")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    root = args.judge or args.keep or Path(tempfile.mkdtemp())
    root.mkdir(parents=True, exist_ok=True)
    rows = {}
    for name in args.only.split(",") if args.only else CASES:
        if not args.judge:
            run(name, CASES[name].get("ranks", 1), root / name)
        rows[name] = judged(CASES[name], verdict(root / name))
        print(name, json.dumps(rows[name]), flush=True)
    faulty = [row for row in rows.values() if "advice" in row]
    result = {
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "platform": f"{platform.platform()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "summary": {key: f"{sum(row[key] for row in faulty)} of {len(faulty)}" for key in JUDGED}
        | {"healthy": f"{sum(row.get('healthy', False) for row in rows.values())} of {len(rows) - len(faulty)}"},
        "scripts": rows,
    }
    print(json.dumps(result["summary"]))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
