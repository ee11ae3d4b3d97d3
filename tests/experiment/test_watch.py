"""A side that starts is looked at: counted, and ended where going on would say nothing new."""

import json
from pathlib import Path
from typing import Any

import pytest
from run_folders import NO, Quiet, begun, leaves, rank

from hotlap.experiment.watch import NONE, SLOW_STEPS, Refusal, Spare, TooSlow, Watch, left_out, spared
from hotlap.records.errors import AgentError
from hotlap.records.run import Lever

ATTENTION, TF32 = Lever(name="attention"), Lever(name="tf32")
HOST = Lever(name="host-allocator", settings={"allocator": "glibc"})


def watch(folder: Path, slow_ms: float | None = None, levers: tuple[Lever, ...] = (ATTENTION, TF32)) -> Watch:
    return Watch(folder, Quiet(), spared(levers, tuple(lever.name for lever in levers)), slow_ms)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return begun(tmp_path)


def test_which_levers_a_side_can_do_without() -> None:
    """Not those that set a variable before the process starts, nor all of them."""
    assert spared((ATTENTION, TF32), ("attention", "tf32")) == Spare(frozenset({"attention", "tf32"}), 1)
    assert spared((ATTENTION, TF32), ("tf32",)) == Spare(frozenset({"tf32"}), 0)
    assert spared((HOST, TF32), ("host-allocator", "tf32")).levers == {"tf32"}
    assert not spared((ATTENTION,), ()).levers


def test_a_side_goes_on_without_one_and_ends_where_another_fails(folder: Path) -> None:
    rank(folder, 0, 10.0, world=1)
    leaves(folder, 0, "attention")
    watch(folder)()
    with pytest.raises(Refusal):
        watch(folder, levers=(ATTENTION,))()
    (folder / "rank-0" / "problems.jsonl").write_text(json.dumps({"where": "x", "what": "no", "lever": "tf32"}) + "\n")
    with pytest.raises(Refusal):
        watch(folder)()


def test_who_left_and_whether_it_was_in(folder: Path) -> None:
    for number in (0, 1):
        rank(folder, number, 10.0)
        leaves(folder, number, "attention")
    spare = spared((ATTENTION, TF32), ("attention", "tf32"))
    assert left_out(folder, spare) == {"attention": (NO, True)} and left_out(folder, NONE) == {}
    with (folder / "rank-0" / "levers.jsonl").open("a") as file:
        file.write('{"lever": "tf32", "nothing": "no CUDA device"}\n')
    assert left_out(folder, spare) == {}, "both left the first rank, and one has to be in"
    assert left_out(folder, spare._replace(most=2)) == {"attention": (NO, True)}, "only one left both ranks"


def test_steps_that_are_too_slow_one_after_another_end_a_side(folder: Path) -> None:
    rank(folder, 0, 40.0, world=1)
    watch(folder)()
    watch(folder, 41.0)()
    with pytest.raises(TooSlow) as slow:
        watch(folder, 30.0)()
    assert slow.value.step_ms == pytest.approx(40.0)


@pytest.mark.parametrize("what", [{"compiles": 1}, {"probe": True}, {"wall_ms": 20.0}])
def test_steps_between_which_something_was_compiled_are_not(folder: Path, what: dict[str, Any]) -> None:
    rank(folder, 0, 40.0, world=1)
    path = folder / "rank-0" / "steps.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [{**line, **what} if line["step"] % SLOW_STEPS == 0 else line for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 30, "ti')
    watch(folder, 30.0)()


def test_steps_are_counted_once_and_a_line_that_is_being_written_later(folder: Path) -> None:
    told: list[tuple[Any, ...]] = []
    looking = watch(folder, 1000.0)
    looking.listener = type("Told", (Quiet,), {"step": staticmethod(lambda *what: told.append(what))})()
    looking.count()
    assert not told, "there is no file yet"
    rank(folder, 0, 40.0, world=1)
    path = folder / "rank-0" / "steps.jsonl"
    *first, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(first) + last[:20])
    looking.count()
    looking.count()
    path.write_bytes(b"".join(first) + last + b"\xff not a step\n")
    looking.count()
    assert [done for done, *_ in told] == [29, 29, 31]


def test_an_agent_that_can_not_start_is_an_error(folder: Path) -> None:
    (folder / "session.json.error").write_text("no torch here")
    with pytest.raises(AgentError, match="no torch here"):
        watch(folder)()
