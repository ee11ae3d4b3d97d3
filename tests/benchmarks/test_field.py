"""The field's table in the docs is what its records say."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_docs_hold_the_table_of_the_records() -> None:
    command = [sys.executable, "benchmarks/field.py", "table", "benchmarks/results/field.json"]
    table = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert table.count("\n") > 30 and table in (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
