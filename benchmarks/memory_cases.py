"""Does `hotlap run --memory` name what is wrong with memory in scripts whose author had not seen its rules?

    OMP_NUM_THREADS=1 python benchmarks/memory_cases.py --keep /tmp/cases --out benchmarks/results/memory-cases-cpu.json
    python benchmarks/memory_cases.py --judge /tmp/cases     runs that were kept, judged again by the rules of now

Of each script in `memory_cases/` (its header tells what was planted) `memory_cases.toml` says what is right: the
finding, its line, what holds the memory, a word of the advice. Of healthy ones no finding of memory may be told.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from hotlap.diagnose.diagnose import diagnose
from hotlap.records.diagnosis import OF_MEMORY, Finding

SCRIPTS = Path(__file__).with_name("memory_cases")
CASES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
LIMIT_S = 400


def judged(name: str, folder: Path) -> dict[str, Any]:
    """What was told of a run, beside what is right."""
    case, found = CASES[name], diagnose(folder)
    mine = [one for one in found.findings if one.id in {*OF_MEMORY, case.get("finding")}]
    told = [{"id": one.id, "title": one.title, "line": one.where.line if one.where else None} for one in mine]
    harmless = bool(case.get("gpu")) and found.device == "cpu"
    row = {"script": name, "device": found.device_name or found.device, "told": told}
    if harmless or "finding" not in case:
        return {**row, "healthy": not told}
    one = next((one for one in mine if one.id == case["finding"]), None)
    return {**row, "named": one is not None, **({} if one is None else of(one, case))}


def of(found: Finding, case: dict[str, Any]) -> dict[str, bool]:
    """The parts of a finding."""
    right = {"advice": any(word in found.instead for word in case["advice"])}
    if "lines" in case:
        right["line"] = found.where is not None and found.where.line in case["lines"]
    if "holder" in case:
        right["holder"] = case["holder"] in found.title
    return right


def main() -> None:
    """Run or judge them, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--judge", type=Path, help="a folder of runs that were kept")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    folder = args.judge or args.keep or Path(tempfile.mkdtemp())
    rows = []
    for name in args.only.split(","):
        if args.judge is None:
            command = [sys.executable, "-m", "hotlap", "run", "--memory", "--out", str(folder / name)]
            script = [sys.executable, str(SCRIPTS / f"{name}.py")]
            subprocess.run([*command, *script], capture_output=True, timeout=LIMIT_S, check=False)
        rows.append(judged(name, folder / name))
        print(json.dumps(rows[-1]), flush=True)
    for part in ("named", "line", "holder", "advice", "healthy"):
        known = [row[part] for row in rows if part in row]
        print(f"{part}: {sum(known)} of {len(known)}")
    if args.out is not None:
        told = {"command": " ".join(sys.argv), "date": time.strftime("%Y-%m-%d"), "rows": rows}
        args.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
