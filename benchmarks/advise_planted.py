"""Does what `hotlap advise` says first agree with the verdict, on the planted-cause scripts?

    python benchmarks/planted.py --keep /tmp/planted --out benchmarks/results/planted-cpu.json
    python benchmarks/advise_planted.py /tmp/planted --out benchmarks/results/advise-planted.json

Asks each kept run folder. Agrees: the bound of the first suggestion is that of the diagnosis, made anew from the
folder. Right: it is the planted one.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from hotlap.diagnose.advise import advise, advise_folder
from hotlap.records.advice import Advice
from hotlap.records.diagnosis import Diagnosis, Finding, Spread
from hotlap.records.run import Phases

sys.path.insert(0, str(Path(__file__).parent))


def of_folder(folder: Path, device: str) -> dict[str, Any]:
    """A kept run beside what was planted."""
    from planted import SCRIPTS, read

    planted = read(SCRIPTS / f"{folder.name}.py", device)
    return {**_judged(folder.name, planted.bound, advise_folder(folder)), "planted": planted.bound}


def of_record(row: dict[str, Any]) -> dict[str, Any]:
    """A row of planted.py's record, of which only the findings are left."""
    findings = tuple(Finding(**one) for one in row["findings"])
    spread = Spread(p10=row["step_ms"], p50=row["step_ms"], p90=row["step_ms"])
    diagnosis = Diagnosis(
        mode="train", bound=row["found"], step_ms=row["step_ms"], spread=spread, phases=Phases(), findings=findings
    )
    return _judged(row["script"], row["planted"]["bound"], advise(diagnosis, row["script"]))


def _judged(name: str, planted: str | None, advice: Advice) -> dict[str, Any]:
    first = advice.suggestions[0]
    return {
        "script": name,
        "bound": advice.bound,
        "first": first.id,
        "first_bound": first.bound,
        "share": first.share,
        "then": [one.id for one in advice.suggestions[1:]],
        "agrees": first.bound == advice.bound,
        "right": first.bound == planted,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kept", type=Path, help="the folder of planted.py --keep")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = [of_folder(path, args.device) for path in sorted(args.kept.iterdir()) if (path / "diagnosis.json").is_file()]
    summary = {
        "runs": len(rows),
        "agrees": f"{sum(row['agrees'] for row in rows)} of {len(rows)}",
        "right": f"{sum(row['right'] for row in rows)} of {len(rows)}",
    }
    for row in rows:
        said = "agrees" if row["agrees"] else "DISAGREES"
        print(f"{row['script']:<24} {row['bound']:<14} first {row['first']:<16} {said}")
    print(json.dumps(summary))
    if args.out:
        result = {
            "command": " ".join(["python", *sys.argv]),
            "date": time.strftime("%Y-%m-%d"),
            "device": args.device,
            "summary": summary,
            "runs": rows,
        }
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
