"""Which levers of a run took hold, from what its ranks wrote."""

import json
from pathlib import Path
from typing import Any

import pytest

from hotlap.records.run import Environment, Lever, Run
from hotlap.tune.applied_levers import with_applied_levers

RUN = Run(
    command=("python", "x.py"), cwd="/w", levers=(Lever(name="tf32"), Lever(name="attention")),
    environment=Environment(hotlap="0", python="3", os="Linux", cpu="x", cores=8, memory_gib=8.0),
)  # fmt: skip
IN = [{"lever": "tf32"}, {"lever": "attention"}]
OUT = {"lever": "attention", "left_out": "none was found", "step": 7}
NOTHING = {"lever": "attention", "nothing": "none here"}
ERROR = {"where": "lever attention", "what": "RuntimeError: broken", "lever": "attention"}


def rank(folder: Path, at: int, lines: list[Any], problems: list[Any], steps: bool = True) -> None:
    (folder / f"rank-{at}").mkdir()
    for name, found in (("levers", lines), ("problems", problems)):
        (folder / f"rank-{at}" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in found))
    if steps:
        (folder / f"rank-{at}" / "steps.jsonl").touch()


SEEN = {
    "all in": ([IN], [], ""),
    "left out": ([[*IN, OUT]], [], "none was found"),
    "left out, a problem too": ([[*IN, OUT]], [{**ERROR, "what": "Refused: none was found"}], "none was found"),
    "nothing at first": ([[NOTHING, *IN]], [], ""),
    "nothing": ([[*IN[:1], NOTHING]], [], "none here"),
    "an error before it was in": ([IN[:1]], [ERROR], "RuntimeError: broken"),
    "an error afterwards": ([IN], [ERROR], ""),
    "no word": ([IN[:1]], [], "it found nothing to change"),
    "in one rank": ([IN, [*IN, OUT]], [], "none was found (in rank-1, not in all)"),
    "in both": ([[*IN, OUT], [*IN, OUT]], [], "none was found"),
}


@pytest.mark.parametrize(("ranks", "problems", "why"), SEEN.values(), ids=SEEN)
def test_what_each_rank_says(tmp_path: Path, ranks: list[Any], problems: list[Any], why: str) -> None:
    for at, lines in enumerate(ranks):
        rank(tmp_path, at, lines, problems)
    run = with_applied_levers(tmp_path, RUN)
    assert {one.lever.name: one.why for one in run.left_out} == ({"attention": why} if why else {})
    assert run.levers == tuple(lever for lever in RUN.levers if lever.name == "tf32" or not why)


def test_where_no_step_was_observed_nothing_is_said_of_levers(tmp_path: Path) -> None:
    assert with_applied_levers(tmp_path, RUN) == RUN
    rank(tmp_path, 0, [], [], steps=False)
    assert with_applied_levers(tmp_path, RUN) == RUN
