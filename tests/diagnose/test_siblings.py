"""Modules that are run one by one: told at the loop, with what lies below it, where nothing there needs what comes
before."""

from pathlib import Path
from typing import Any

import pytest

from hotlap.diagnose.siblings import LEAST, SMALL_NS, one_by_one
from hotlap.records.diagnosis import Finding, Place
from hotlap.records.profile import Lines
from hotlap.records.trace import Gap, HostTime, RankTrace, Window

MS = 1_000_000
SCRIPT = """
def forward(x):
    x = first(x)
    return second(x)
def loss(models, x):
    total = 0
    for one in models:
        total += forward(x)
    return total
def step(models, x, optimizer):
    value = loss(models, x)
    value.backward()
    optimizer.step()
def train(batches):
    for x in batches:
        step(models, x, optimizer)
def heads(models, x):
    return cat(
        [forward(x) for one in models]
    )
def sequence(model, x, state):
    for t in range(9):
        scores, state = model(x[:, t : t + 1], state)
def engine(models, batches):
    for x in batches:
        value = forward(x)
        update(value)
"""
TRAIN, STEP, LOSS, FIRST, SECOND = (16, "train"), (11, "step"), (8, "loss"), (3, "forward"), (4, "forward")
COMPUTE = Finding(id="compute", bound="compute", share=0.8)
WINDOW = Window(start_ns=0, end_ns=20 * MS, found_by="ProfilerStep", steps=((0, 10 * MS), (10 * MS, 20 * MS)))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    return file


def lines_of(script: Path, *rows: tuple[int, float, tuple[tuple[int, str], ...]], **more: Any) -> Lines:
    """Of products: how many at once, their part of the line, and the user's frames."""
    of = tuple((0, *at[-1], times, part, tuple((0, *one) for one in at)) for times, part, at in rows)
    return Lines(files=(str(script),), siblings=of, **more)


def rank_of(
    script: Path, *rows: tuple[int, str, int], count: int = 1000, device: str = "cpu", **more: Any
) -> RankTrace:
    host = tuple(
        HostTime(
            name="aten::addmm", ns=ns, total_ns=ns, count=count, where=Place(file=str(script), line=at, function=of)
        )
        for at, of, ns in rows
    )
    return RankTrace(source="t", rank=0, device_name=device, events=0, window=WINDOW, step_ms=10.0, model=host, **more)


def told(rank: RankTrace, lines: Lines | None, *findings: Finding) -> list[Finding]:
    return list(one_by_one(rank, findings or (COMPUTE,), lines, 10.0))


MEMBERS = (8, 1.0, (TRAIN, STEP, LOSS, FIRST))
IN_STEP: dict[str, Any] = {"places": {"backward": (0, 12, "step"), "optimizer": (0, 13, "step")}}


def test_members_are_told_at_their_loop_with_all_that_lies_below_it(script: Path) -> None:
    rank = rank_of(script, (3, "forward", 4 * MS), (4, "forward", 2 * MS), (8, "loss", MS), (16, "train", 3 * MS))
    (found,) = told(rank, lines_of(script, MEMBERS, **IN_STEP))
    assert (found.id, found.bound, found.named) == ("one-by-one", "launch", True)
    assert found.where == Place(file=str(script), line=8, function="loss")
    assert found.share == pytest.approx(0.8 * 0.7) and found.evidence.startswith("8 products of one shape")
    assert "5.60 ms of the step goes to" in found.evidence and "baddbmm" in found.instead


def test_of_a_line_that_others_call_too_its_part_counts(script: Path) -> None:
    rank = rank_of(script, (3, "forward", 4 * MS), (4, "forward", 4 * MS), (16, "train", 2 * MS))
    (found,) = told(rank, lines_of(script, (8, 0.5, MEMBERS[2]), **IN_STEP))
    assert found.share == pytest.approx(0.8 * 0.4)


def test_a_comprehension_is_a_loop_and_what_else_its_statement_calls_is_not_in_it(script: Path) -> None:
    at = ((19, "heads"), (19, "heads.<locals>.<listcomp>"), FIRST)
    beside = 1, 0.5, at[:1]
    rank = rank_of(script, (3, "forward", 8 * MS), (19, "heads", MS))
    (found,) = told(rank, lines_of(script, (4, 1.0, at), beside))
    assert found.where is not None and found.where.line == 19


def test_layers_are_not_told_though_one_of_their_products_needs_nothing(script: Path) -> None:
    rows = MEMBERS, (1, 1.0, (TRAIN, STEP, LOSS, SECOND))
    rank = rank_of(script, (3, "forward", 5 * MS), (4, "forward", 5 * MS))
    assert told(rank, lines_of(script, *rows, **IN_STEP)) == []
    assert told(rank, lines_of(script, (3, 1.0, MEMBERS[2]), **IN_STEP)) == []


def test_the_loop_over_steps_is_none_over_modules(script: Path) -> None:
    rank = rank_of(script, (3, "forward", 9 * MS))
    assert told(rank, lines_of(script, (8, 1.0, (TRAIN, STEP, FIRST)), **IN_STEP)) == []
    ends: dict[str, Any] = {"places": {"backward": (0, 30, "Engine.update")}}
    assert told(rank, lines_of(script, (8, 1.0, ((26, "engine"), FIRST)), **ends)) == []


def test_large_or_few_operations_are_not_told(script: Path) -> None:
    lines = lines_of(script, MEMBERS, **IN_STEP)
    assert told(rank_of(script, (3, "forward", 9 * MS), count=9 * MS // SMALL_NS - 1), lines) == []
    assert told(rank_of(script, (3, "forward", MS), (16, "train", 9 * MS)), lines) == [] and LEAST > 0.8 * 0.1
    assert told(rank_of(script, (3, "forward", 9 * MS)), None) == []
    assert told(rank_of(script, (3, "forward", 9 * MS)), lines, Finding(id="input", bound="input", share=0.9)) == []


def test_on_a_device_it_is_what_waits_for_them(script: Path) -> None:
    """Not what the device computes: without waits there is nothing to tell."""
    at = Place(file=str(script), line=3, function="forward")
    gaps = (
        Gap(cause="launch", idle_ns=3 * MS, count=9, longest_ns=1, where=at),
        Gap(cause="launch", idle_ns=MS, count=9, longest_ns=1, where=Place(file=str(script), line=16)),
        Gap(cause="python", idle_ns=MS, count=9, longest_ns=1, where=at),
    )
    waits = Finding(id="launch", bound="launch", share=0.4), Finding(id="host-code", bound="launch", share=0.1)
    lines = lines_of(script, MEMBERS, **IN_STEP)
    rank = rank_of(script, (3, "forward", 9 * MS), device="H200", gaps=gaps)
    (found,) = told(rank, lines, *waits)
    assert found.share == pytest.approx(0.4 * 0.75 + 0.1) and "the device waits 4.00 ms" in found.evidence
    assert told(rank, lines, COMPUTE) == []


def test_a_net_that_is_called_once_a_time_is_told_with_the_call_of_all_times(script: Path) -> None:
    """Before members, as of one that is called in turn its products are some too."""
    rows = ((0, 3, "forward", 9, 1.0, ((0, 16, "train"), (0, 23, "sequence"), (0, 3, "forward"))),)
    lines = Lines(files=(str(script),), stepwise=rows, siblings=lines_of(script, MEMBERS).siblings)
    rank = rank_of(script, (3, "forward", 6 * MS), (23, "sequence", 2 * MS), (16, "train", 2 * MS))
    (found,) = told(rank, lines)
    assert (found.id, found.bound, found.named) == ("time-by-time", "launch", True)
    assert found.where == Place(file=str(script), line=23, function="sequence")
    assert found.share == pytest.approx(0.8 * 0.2) and found.cost_ms == pytest.approx(1.6), (
        "without the cells themselves"
    )
    assert "`model(x, state)`" in found.instead and found.evidence.startswith("9 calls a step")
    assert "saves at most 1.60 ms" in found.evidence


def test_products_beside_a_net_that_is_called_once_a_time_are_no_samples(script: Path) -> None:
    """As its head's: on the CPU the net's own line counts for nothing, so that the loop may be too cheap to tell."""
    at = (0, 16, "train"), (0, 23, "sequence")
    rows = ((0, 23, "sequence", 9, 1.0, at),)
    lines = Lines(
        files=(str(script),), stepwise=rows, samplewise=((0, 22, "sequence", 9, 1.0, (at[0], (0, 22, "sequence"))),)
    )
    assert told(rank_of(script, (23, "sequence", 8 * MS), (16, "train", 2 * MS)), lines) == []


def test_a_model_that_is_run_sample_by_sample_is_told_with_the_batch(script: Path) -> None:
    rows = ((0, 3, "forward", 48, 1.0, ((0, 16, "train"), (0, 8, "loss"), (0, 3, "forward"))),)
    rank = rank_of(script, (3, "forward", 6 * MS), (8, "loss", 2 * MS), (16, "train", 2 * MS))
    (found,) = told(rank, Lines(files=(str(script),), samplewise=rows, **IN_STEP))
    assert (found.id, found.where and found.where.line, found.named) == ("sample-by-sample", 8, True)
    assert found.share == pytest.approx(0.8 * 0.8) and found.evidence.startswith(
        "48 calls a step with the same weights"
    )
    assert "pad_sequence" in found.instead


@pytest.mark.parametrize(("part", "told_of"), [(0.6, ["inputs-one-by-one"]), (0.05, [])])
def test_of_a_net_by_hand_only_what_its_inputs_need_comes_out_of_the_loop(
    part: float, told_of: list[str], script: Path
) -> None:
    """It was told to be run sample by sample, and the loop to be dropped: each turn needs the last one's state."""
    at = (0, 16, "train"), (0, 8, "loss"), (0, 3, "forward")
    rows = (0, 3, "forward", 40, part, at), (0, 3, "forward", 1, 1 - part, at)
    rank = rank_of(script, (3, "forward", 6 * MS), (8, "loss", 2 * MS), (16, "train", 2 * MS))
    found = told(rank, Lines(files=(str(script),), samplewise=rows, **IN_STEP))
    assert [one.id for one in found] == told_of
    for one in found:
        assert one.where is not None and one.where.line == 3 and one.share == pytest.approx(0.8 * 0.6 * part)
        assert "40 calls a step with the same weights, none of which needs another" in one.evidence
        assert "before the loop" in one.instead
