"""The scripts with faults of memory, and what is right of them."""

from pathlib import Path

import memory_cases
import msgspec
import pytest

from hotlap.records.diagnosis import OF_MEMORY, Finding, Place


def test_every_script_has_a_case_with_lines_of_its_own() -> None:
    assert {path.stem for path in memory_cases.SCRIPTS.glob("*.py")} == set(memory_cases.CASES)
    for name, case in memory_cases.CASES.items():
        count = len((memory_cases.SCRIPTS / f"{name}.py").read_text().splitlines())
        assert all(0 < line <= count for line in case.get("lines", ()))
        assert bool(case) == ("finding" in case) and case.get("finding", "late-mallocs") in {*OF_MEMORY, "late-mallocs"}


@pytest.mark.parametrize(
    ("change", "right"),
    [
        ({}, {"advice": True, "line": True, "holder": True}),
        ({"where": Place(file="a.py", line=3)}, {"advice": True, "line": False, "holder": True}),
        ({"where": None, "title": "x", "instead": "y"}, {"advice": False, "line": False, "holder": False}),
    ],
)
def test_what_was_told_is_judged(change: dict[str, object], right: dict[str, bool]) -> None:
    said = {"title": "held by `mae_sum`", "instead": "`.item()`", "where": Place(file="a.py", line=74)}
    found = Finding(id="memory-grows", bound="memory", share=0.0, **said)  # type: ignore[arg-type]
    assert memory_cases.of(msgspec.structs.replace(found, **change), memory_cases.CASES["micrograph_denoise"]) == right
    assert Path(memory_cases.__file__).parent == memory_cases.SCRIPTS.parent
