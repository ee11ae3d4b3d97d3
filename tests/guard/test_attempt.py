"""Attempts and whole comparisons on a machine without processes (`tests/tune/machine.py`)."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotlap.guard.bisect import halve, nearer
from hotlap.guard.check import Found, Request, compare, verdict
from hotlap.guard.quantities import Start, judge_all
from hotlap.records.check import Judged, Version
from hotlap.records.errors import CommandFailed
from hotlap.records.run import CompiledFunction, Facts, Lever
from tune.machine import LOSSES, Evidence, Machine, Uses, clocked

BASE = Version(name="a", command=("x",), cwd="/")
HEAD = Version(name="b", command=("x",), cwd="/", levers=(Lever(name="new", settings={}),))
Checked = Callable[..., tuple[Found, Machine, str, str]]


@pytest.fixture
def checked(tmp_path: Path) -> Checked:
    """Compare a baseline of 100 ms a step with a version `slower` times as long."""

    def run(slower: float = 1.0, seconds: float = 3600.0, losses: bool = False, **settings: Any) -> Any:
        machine = Machine(lambda uses: 100.0 * (slower if uses else 1.0), tmp_path, **settings)
        request = Request(BASE, HEAD, seconds=seconds, losses=losses)
        one, two = clocked(machine)
        with one, two:
            found = compare(machine, request, clock=machine.monotonic)  # type: ignore[arg-type]
        return found, machine, *verdict(found, request)

    return run


def test_what_is_as_fast_passes_after_three_starts_each(checked: Checked) -> None:
    found, machine, said, _ = checked(process_sd=0.003, turn_sd=0.01)
    assert said == "pass" and len(found.attempts) == 1 and found.attempts[0].starts == 3
    assert machine.alive() == [] and len(found.trials) == 6
    assert found.parity is not None and found.parity.level == "bitwise"


def test_what_is_slower_fails_after_two_attempts_from_fresh_starts(checked: Checked) -> None:
    found, machine, said, why = checked(1.08, process_sd=0.003, turn_sd=0.01)
    assert said == "fail" and why.startswith("step time +") and len(found.attempts) == 2
    assert len(machine.starts("baseline")) == len(machine.starts("new version")) == 6
    assert found.cause is not None and found.cause.phase == "forward"


def test_more_starts_where_they_differ(checked: Checked) -> None:
    found = [checked(process_sd=0.025, turn_sd=0.01, seed=seed) for seed in range(6)]
    assert {said for _, _, said, _ in found} == {"pass"} and max(one.attempts[0].starts for one, *_ in found) > 4


def test_never_more_alive_than_memory_is_planned_for(checked: Checked) -> None:
    found = [checked(process_sd=0.03, turn_sd=0.01, seed=seed, room=6) for seed in range(6)]
    assert max(one.attempts[0].starts for one, *_ in found) > 4
    assert not [one for _, machine, *_ in found for one in machine.done if one.outcome == "memory"]


def test_where_memory_does_not_hold_two_they_run_in_pairs(checked: Checked) -> None:
    found, _, said, _ = checked(process_sd=0.003, room=1)
    assert said == "pass" and found.attempts[0].how == "one after another" and found.attempts[0].turns == 0
    assert found.notes == ["one after another: more do not fit in memory together"]


def test_where_memory_holds_two_these_take_turns_pair_by_pair(checked: Checked) -> None:
    found, machine, said, _ = checked(process_sd=0.003, room=2)
    assert said == "pass" and found.attempts[0].how == "turns" and found.attempts[0].turns == 8
    assert found.notes == ["two at a time: more do not fit in memory together"]
    found, machine, said, _ = checked(1.1, process_sd=0.003, room=2, seed=1)
    assert said == "fail" and found.attempts[0].starts == 5 and machine.alive() == []


def test_a_command_that_ends_soon_runs_in_pairs(checked: Checked) -> None:
    found, _, said, _ = checked(1.1, process_sd=0.003, length=11)
    assert said == "fail" and {one.how for one in found.attempts} == {"one after another"}


def test_the_time_ends_it(checked: Checked) -> None:
    found, machine, said, why = checked(process_sd=0.05, turn_sd=0.01, seconds=120.0)
    assert said == "inconclusive" and "starts differ too much" in why and machine.spent < 150
    assert found.attempts


def test_without_time_for_a_second_attempt_nothing_is_failed(checked: Checked) -> None:
    _, _, said, why = checked(1.2, process_sd=0.001, seconds=110.0)
    assert said == "inconclusive" and why.startswith("step time: shown once")


def test_a_version_that_does_not_run_is_told(checked: Checked) -> None:
    with pytest.raises(CommandFailed, match=r"new version \(b\) does not run: crashed: no"):
        checked(outcome=lambda uses: ("crashed", "no") if uses else ("measured", ""))


def test_more_memory_fails_too(checked: Checked) -> None:
    _, _, said, why = checked(process_sd=0.001, peak_mib=lambda uses: 1200.0 if uses else 1000.0)
    assert said == "fail" and why == "peak memory +20.0%"


def test_other_losses_are_told_and_fail_where_they_count(checked: Checked) -> None:
    def other(uses: Uses) -> Evidence:
        return Evidence(tuple((1.2 * loss,) for (loss,) in LOSSES) if uses else LOSSES)

    found, _, said, _ = checked(process_sd=0.001, evidence_of=other)
    assert said == "pass" and found.parity is not None and not found.parity.ok


def test_ctrl_c_keeps_what_is_known(tmp_path: Path) -> None:
    machine = Machine(lambda uses: 100.0, tmp_path, interrupt_at=40)
    found, request = Found(), Request(BASE, HEAD)
    one, two = clocked(machine)
    with one, two, pytest.raises(KeyboardInterrupt):
        compare(machine, request, found, clock=machine.monotonic)  # type: ignore[arg-type]
    assert len(found.trials) == 6 and found.attempts[0].starts == 3
    assert verdict(found, request)[0] == "inconclusive"


def test_of_no_change_no_seed_fails(checked: Checked) -> None:
    said = [checked(process_sd=0.02, turn_sd=0.02, seed=seed)[2] for seed in range(12)]
    assert "fail" not in said and said.count("pass") >= 8


def start(machine: Machine, number: int, *compiled: CompiledFunction, data_ms: float | None = 0.0) -> Start:
    facts = Facts(pid=1, rank=0, world=1, argv=(), python="3", torch="2", compiled=compiled)
    return Start(machine.sides[number], facts, data_ms)  # type: ignore[arg-type]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(lambda uses: 100.0, tmp_path)
    made.ready(*(made.start("x") for _ in range(6)))
    return made


def by_name(found: list[Judged]) -> dict[str, Judged]:
    return {one.what: one for one in found}


def test_graph_breaks_and_recompiles_are_counted(machine: Machine) -> None:
    def compiled(*breaks: int, graphs: int = 0) -> CompiledFunction:
        return CompiledFunction(file="t.py", function="f", breaks=breaks, recompiles=graphs, seconds=9.0)

    one = [start(machine, at, compiled()) for at in range(3)]
    two = [start(machine, at, compiled(4, 9, graphs=2)) for at in range(3, 6)]
    found = by_name(judge_all(one, two, 0.05, 100.0))
    assert (found["graph breaks"].call, found["graph breaks"].change) == ("slower", 2)
    assert found["recompiles"].call == "slower" and found["compile time"].call == "within"
    only = by_name(judge_all([start(machine, at) for at in range(3)], two, 0.05, 100.0))
    assert only["graph breaks"].before == 0 and only["compile time"].call == "slower"
    none = judge_all([start(machine, at) for at in range(3)], [start(machine, at) for at in range(3, 6)], 0.05, 100.0)
    assert not {"graph breaks", "compile time"} & by_name(none).keys()


def test_waiting_for_data_is_a_share_of_the_step(machine: Machine) -> None:
    one = [start(machine, at, data_ms=1.0 + at / 100) for at in range(3)]
    two = [start(machine, at, data_ms=9.0 + at / 100) for at in range(3, 6)]
    found = by_name(judge_all(one, two, 0.05, 100.0))["data time"]
    assert found.call == "slower" and found.change == pytest.approx(0.08, rel=0.01)
    small = by_name(judge_all(one, two, 0.05, 1000.0))["data time"]
    assert small.call == "within"


def test_a_loop_without_a_loader_has_no_data_time(machine: Machine) -> None:
    found = judge_all([start(machine, 0, data_ms=None)] * 3, [start(machine, 3, data_ms=None)] * 3, 0.05, 1.0)
    assert "data time" not in by_name(found)


def test_memory_that_one_version_does_not_know_is_unknown(machine: Machine) -> None:
    one = [start(machine, at) for at in range(3)]
    for side in machine.sides[3:]:
        machine.amend(side.measured, peak_memory_bytes=None)
    found = by_name(judge_all(one, [start(machine, at) for at in range(3, 6)], 0.05, 1.0))["peak memory"]
    assert found.call == "unknown" and found.counts


@given(st.integers(1, 40), st.data())
def test_halving_finds_the_first_slow_commit_that_runs(count: int, data: st.DataObject) -> None:
    commits = [f"c{at}" for at in range(count)]
    first = data.draw(st.integers(0, count - 1))
    broken = data.draw(st.sets(st.sampled_from(commits[:-1] or ["none"]), max_size=3))
    looks: list[str] = []

    def is_slow(commit: str) -> bool | None:
        looks.append(commit)
        return None if commit in broken else int(commit[1:]) >= first

    found = halve(commits, is_slow)
    assert len(looks) == len({*looks}) <= math.ceil(math.log2(count + 1)) + 4
    runs = [at for at in range(count) if f"c{at}" not in broken]
    assert found.at == next(at for at in runs if at >= first)
    assert found.before == max((at for at in runs if at < first), default=-1)
    assert found.sure == (found.at - found.before == 1)


@pytest.mark.parametrize("head_ms", [110.0, 90.0])
@pytest.mark.parametrize("new", [True, False])
def test_a_commit_between_is_told_by_what_it_is_nearer_to(tmp_path: Path, head_ms: float, new: bool) -> None:
    ms = 100.0 + (head_ms - 100.0) * (0.9 if new else 0.1)
    third = Version(name="c", command=("x",), cwd="/", levers=(Lever(name="mid", settings={}),))
    machine = Machine(
        lambda uses: head_ms if "new" in uses else ms if "mid" in uses else 100.0, tmp_path, process_sd=0.005
    )
    one, two = clocked(machine)
    with one, two:
        assert nearer(machine, (BASE, HEAD, third), 3) is new  # type: ignore[arg-type]


def test_a_commit_that_does_not_run_is_skipped(tmp_path: Path) -> None:
    machine = Machine(
        lambda uses: 1.0, tmp_path, outcome=lambda uses: ("crashed", "no") if "mid" in uses else ("measured", "")
    )
    third = Version(name="c", command=("x",), cwd="/", levers=(Lever(name="mid", settings={}),))
    assert nearer(machine, (BASE, HEAD, third), 1) is None  # type: ignore[arg-type]
    with pytest.raises(CommandFailed, match="did run, and does not now"):
        nearer(machine, (third, HEAD, BASE), 1)  # type: ignore[arg-type]
