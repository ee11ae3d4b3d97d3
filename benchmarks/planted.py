"""Small training scripts, each with one known cause: does `hotlap run --profile` name its bound and its line?

    python benchmarks/planted.py --out benchmarks/results/planted-cpu.json
    python benchmarks/planted.py --device cuda --out benchmarks/results/planted-h100.json
    python benchmarks/planted.py --only slow_decode,no_workers --keep /tmp/planted

A script's header says what is planted: `cause` (the finding's id), `bound`, `needs` (cpu: anywhere; cuda; ranks: two
processes, on CUDA with a GPU each) and `place`. Values may differ by device: "unknown on cpu, launch on cuda"; a script
whose bound is not given for a device says nothing there. The line that causes it ends in `# planted`.

Bound: that of diagnosis.json, the one with the largest share. Place: that of the first finding of the planted bound;
`line`: exactly the marked line; `function`: within the function that the marked line is in; `function NAME`: within
that one, where the marked line only sets something up that takes its time there; `sampled`: the marked line, which
calls no op, so that it is asked only where the run has samples of the host's stack; `none`: nothing is planted, and no
finding of another bound may take 20% of the step.

What can't run here is `not run`, and counts nowhere.
"""

import argparse
import ast
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).with_name("planted")
MARK = "# planted"
KEYS = ("cause", "bound", "needs", "place")
BLAME = 0.2
BOUNDS = ("input", "h2d", "launch", "sync", "compute", "bandwidth", "memory", "communication", "unknown")
LIMIT_S = {"cpu": 240, "cuda": 300}


@dataclass(frozen=True)
class Planted:
    """What a script's header says for one device. line, function: of the mark, None in a healthy one."""

    path: Path
    cause: str | None
    bound: str | None
    needs: str
    place: str
    line: int | None
    function: str | None

    @property
    def name(self) -> str:
        """As `--only` takes it."""
        return self.path.stem

    def points_there(self, where: dict[str, Any] | None, sampled: bool) -> bool | None:
        """Whether a finding's place is the planted one; None where it is not asked."""
        if self.place == "none" or (self.place == "sampled" and not sampled):
            return None
        if where is None or Path(where["file"]).name != self.path.name:
            return False
        if self.place in {"line", "sampled"}:
            return bool(where["line"] == self.line)
        return bool(where["function"] == (self.place.removeprefix("function").strip() or self.function))


def read(path: Path, device: str) -> Planted:
    """The header and the mark of a script. Raises ValueError where they are not as they should be."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    pairs = (line.split(": ", 1) for line in (ast.get_docstring(tree) or "").splitlines() if ": " in line)
    header = {key: _on(device, value) for key, value in pairs if key in KEYS}
    marked = [number for number, line in enumerate(text.splitlines(), 1) if MARK in line]
    place = header["place"] or "line"
    if len(marked) != (0 if place == "none" else 1):
        raise ValueError(f"{path.name} has {len(marked)} marks")
    line = marked[0] if marked else None
    function = _function(tree, line) if line else None
    return Planted(path, header["cause"], header["bound"], header["needs"] or "cpu", place, line, function)


def _on(device: str, value: str) -> str | None:
    """`a`, or `a on cpu, b on cuda`; None where nothing is said for the device."""
    if " on " not in value:
        return value
    parts = (part.split(" on ") for part in value.split(", "))
    return {where: said for said, where in parts}.get(device)


def _function(tree: ast.AST, line: int) -> str | None:
    """Qualified name of the innermost function around a line."""
    found: str | None = None
    inside: list[tuple[ast.AST, str]] = [(tree, "")]
    while inside:
        node, prefix = inside.pop()
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, ast.ClassDef | ast.FunctionDef) and child.lineno <= line <= (child.end_lineno or 0):
                name = f"{prefix}{child.name}."
                found = name.removesuffix(".") if isinstance(child, ast.FunctionDef) else found
            inside.append((child, name))
    return found


def not_run(planted: Planted, device: str, gpus: int) -> str:
    """Why a script does not run here, "" where it does."""
    if planted.bound is None:
        return f"says nothing on {device}"
    if planted.needs == "cuda" and device == "cpu":
        return "needs cuda"
    if planted.needs == "ranks" and device == "cuda" and gpus < 2:
        return "needs two GPUs"
    return ""


def run(planted: Planted, device: str, steps: int, folder: Path) -> dict[str, Any]:
    """What hotlap says of one script, beside what was planted."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] * (planted.needs == "ranks")
    command = [sys.executable, *launcher, str(planted.path), "--device", device]
    options = ["--profile", "--steps", str(steps), "--out", str(folder)]
    begun = time.monotonic()
    said = _ended([sys.executable, "-m", "hotlap", "run", *options, *command], LIMIT_S[device])
    row: dict[str, Any] = {"status": "run", "seconds": round(time.monotonic() - begun, 1)}
    file = folder / "diagnosis.json"
    if not file.is_file():
        return {**row, "status": "failed", "why": said[-1500:]}
    sampled = (folder / "rank-0" / "samples.json").is_file()
    return row | judged(planted, json.loads(file.read_text(encoding="utf-8")), sampled)


def judge_again(planted: Planted, folder: Path) -> dict[str, Any]:
    """What hotlap of now says of a run that was kept."""
    said = subprocess.run(
        [sys.executable, "-m", "hotlap", "show", "--json", str(folder)], capture_output=True, text=True, check=False
    )
    lines = said.stdout.splitlines()
    document = json.loads(lines[-1]) if lines else {}
    if not document.get("diagnosis"):
        return {"status": "failed", "why": said.stderr[-1500:] or document.get("why", "")}
    sampled = (folder / "rank-0" / "samples.json").is_file()
    return {"status": "run", "seconds": 0.0} | judged(planted, document["diagnosis"], sampled)


def judged(planted: Planted, diagnosis: dict[str, Any], sampled: bool) -> dict[str, Any]:
    """Bound and place beside the planted ones."""
    findings = diagnosis["findings"]
    first = next((one for one in findings if one["bound"] == planted.bound), None)
    blamed = [one["id"] for one in findings if one["bound"] != planted.bound and one["share"] >= BLAME]
    right = diagnosis["bound"] == planted.bound and not (planted.place == "none" and blamed)
    return {
        "found": diagnosis["bound"],
        "bound_right": right,
        "cause_right": bool(first and first["id"] == planted.cause),
        "line_right": planted.points_there(first.get("where") if first else None, sampled),
        "where": _short(first.get("where") if first else None),
        "step_ms": round(diagnosis["step_ms"], 3),
        "findings": [{key: one.get(key) for key in ("id", "bound", "share", "cost_ms", "title")} for one in findings],
    }


def _short(where: dict[str, Any] | None) -> dict[str, Any] | None:
    return where and {**where, "file": Path(where["file"]).name}


def _ended(command: list[str], limit_s: float) -> str:
    """What a command and all it started said on stderr, ended after its time."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            said.write(f"\nended after {limit_s} s")
        said.seek(0)
        return said.read()


def confusion(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """How often each planted bound was found as which; `failed` where there was no verdict."""
    counted: dict[str, Counter[str]] = {}
    for row in rows:
        counted.setdefault(row["planted"]["bound"], Counter())[row.get("found", "failed")] += 1
    return {bound: dict(counted[bound]) for bound in BOUNDS if bound in counted}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rates over what was run."""
    ran = [row for row in rows if row["status"] != "not run"]
    asked = [row for row in ran if row.get("line_right") is not None]
    exact = [row for row in asked if row["planted"]["place"] in {"line", "sampled"}]
    return {
        "scripts": len(rows),
        "not_run": len(rows) - len(ran),
        "bound_right": f"{sum(bool(row.get('bound_right')) for row in ran)} of {len(ran)}",
        "cause_right": f"{sum(bool(row.get('cause_right')) for row in ran)} of {len(ran)}",
        "line_right": f"{sum(bool(row.get('line_right')) for row in exact)} of {len(exact)}",
        "function_right": f"{sum(bool(row.get('line_right')) for row in asked if row not in exact)} "
        f"of {len(asked) - len(exact)}",
        "line_not_asked": len(ran) - len(asked),
        "confusion": confusion(ran),
    }


def table(matrix: dict[str, dict[str, int]]) -> str:
    """The confusion matrix as text: planted down, found across."""
    across = [name for name in (*BOUNDS, "failed") if any(name in row for row in matrix.values())]
    lines = ["planted \\ found  " + "".join(f"{name:>14}" for name in across)]
    lines += [
        f"{name:<17}" + "".join(f"{row.get(one, 0) or '.':>14}" for one in across) for name, row in matrix.items()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", help="names, with commas between")
    parser.add_argument("--steps", type=int, default=20, help="steady steps before the profile (20)")
    parser.add_argument("--keep", type=Path, help="keep run folders here")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--judge", type=Path, help="judge runs that were kept in this folder again, and run none")
    parser.add_argument("--merge", type=Path, nargs="+", help="put the scripts of several --out files into the first's")
    args = parser.parse_args()
    if args.merge:
        merge(args.merge)
        return
    import torch

    if args.device == "cpu":
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    gpus = torch.cuda.device_count()
    if args.device == "cuda" and not gpus and not args.judge:
        parser.error("torch sees no GPU here")
    result: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": {
            "device": torch.cuda.get_device_name() if gpus and args.device == "cuda" else args.device,
            "gpus": gpus,
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "platform": platform.platform(),
            "torch": torch.__version__,
            "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        },
    }
    root = args.keep or Path(tempfile.mkdtemp())
    root.mkdir(parents=True, exist_ok=True)
    names = args.only.split(",") if args.only else sorted(path.stem for path in SCRIPTS.glob("*.py"))
    rows: list[dict[str, Any]] = []
    for name in names:
        planted = read(SCRIPTS / f"{name}.py", args.device)
        said = {key: getattr(planted, key) for key in (*KEYS, "line", "function")}
        row: dict[str, Any] = {"script": name, "planted": said}
        if args.judge:
            why = "" if (args.judge / name).is_dir() else "no run was kept"
        else:
            why = not_run(planted, args.device, gpus)
        if why:
            row |= {"status": "not run", "why": why}
        else:
            row |= (
                judge_again(planted, args.judge / name)
                if args.judge
                else run(planted, args.device, args.steps, root / name)
            )
        rows.append(row)
        _tell(row)
        result |= {"summary": summary(rows), "scripts": rows}
        if args.out:
            args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print("\n" + table(result["summary"]["confusion"]))
    print(json.dumps({key: value for key, value in result["summary"].items() if key != "confusion"}))


def merge(files: list[Path]) -> None:
    """Write the first file anew with the scripts of all: of each the last that was run."""
    documents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    rows: dict[str, dict[str, Any]] = {}
    for row in (row for document in documents for row in document["scripts"]):
        if row["status"] != "not run" or row["script"] not in rows:
            rows[row["script"]] = row
    ordered = [rows[name] for name in sorted(rows)]
    result = documents[0] | {"summary": summary(ordered), "scripts": ordered}
    files[0].write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(table(result["summary"]["confusion"]))


def _tell(row: dict[str, Any]) -> None:
    if row["status"] != "run":
        print(f"{row['script']:<24} {row['status']}: {row['why']}", flush=True)
        return
    line = {True: "right", False: "WRONG", None: "not asked"}[row["line_right"]]
    where = row["where"] and f"{row['where']['file']}:{row['where']['line']} in {row['where']['function']}"
    bound = f"{row['planted']['bound']:<14} {'right' if row['bound_right'] else 'WRONG'} {row['found']:<14}"
    place = f"place {line} ({row['planted']['place']}; {where})"
    print(f"{row['script']:<24} {bound} {place}  {row['step_ms']:.1f} ms, {row['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
