"""The scripts of `benchmarks/unseen.toml`, and how what is said of them is judged."""

import re
from typing import Any

import pytest
import unseen

CASE = {"bound": ["input"], "lines": [7], "functions": ["load"], "advice": ["num_workers"]}


def test_every_script_has_a_case_with_lines_of_its_own() -> None:
    found = {path.relative_to(unseen.SCRIPTS).with_suffix("").as_posix() for path in unseen.SCRIPTS.rglob("*.py")}
    assert found == set(unseen.CASES)
    for name, case in unseen.CASES.items():
        count = len((unseen.SCRIPTS / f"{name}.py").read_text().splitlines())
        assert all(0 < line <= count for line in case["lines"])
        assert bool(case["lines"]) == bool(case["advice"]) == (not case["kind"].startswith("healthy"))
        assert all(re.compile(pattern) for pattern in case["advice"])


@pytest.mark.parametrize(
    ("bound", "where", "instead", "right"),
    [
        ("input", {"line": 7, "function": "A.load"}, "num_workers=4", (True, True, True, True)),
        ("input", {"line": 9, "function": "A.load"}, "more workers", (True, False, True, False)),
        ("compute", None, "", (False, False, False, False)),
    ],
)
def test_the_first_finding_alone_is_judged(bound: str, where: Any, instead: str, right: tuple[bool, ...]) -> None:
    second = {"where": {"line": 7}, "instead": "num_workers=4", "named": True}
    found = unseen.judged(CASE, {"bound": bound, "findings": [{"where": where, "instead": instead}, second]})
    assert tuple(found[key] for key in unseen.JUDGED) == right


def test_of_a_healthy_script_no_cause_may_be_named() -> None:
    for named in (True, False):
        found = unseen.judged({**CASE, "advice": []}, {"bound": "compute", "findings": [{"named": named}]})
        assert found["healthy"] is not named
