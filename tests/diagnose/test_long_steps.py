"""Steps that take much longer than the others, on records."""

from dataclasses import replace

import msgspec
import pytest
from test_named_findings import measured

from hotlap.diagnose.findings import findings_of
from hotlap.diagnose.findings.long_steps import long_of
from hotlap.records.run import Phases, Step


def step(number: int, ms: float, phase: str = "other") -> Step:
    """One of which all that is beyond 10 ms is in a phase."""
    more = {phase: ms - 10} if phase != "other" else {}
    other = 2.0 + (ms - 10 if phase == "other" else 0)
    phases = Phases(forward=8.0, **{"other": other, **more})
    return Step(step=number, time=0.0, wall_ms=ms, phases=phases, kind="train")


def run(every: int, ms: float, count: int = 100, phase: str = "other") -> list[Step]:
    return [step(at, ms if at % every == every - 1 else 10.0, phase) for at in range(count)]


def test_what_comes_every_so_many_steps_is_told_with_its_share() -> None:
    found = long_of(run(20, 800.0), "host")
    assert found is not None
    assert (found.every, len(found.steps), found.usual_ms, found.long_ms) == (20, 5, 10.0, 800.0)
    assert found.share == pytest.approx(5 * 790 / (5 * 800 + 95 * 10))


def test_what_comes_now_and_then_has_no_number() -> None:
    steps = [step(at, 800.0 if at in {7, 31, 80} else 10.0) for at in range(100)]
    found = long_of(steps, "host")
    assert found is not None and found.every is None


@pytest.mark.parametrize(
    "steps",
    [
        run(20, 25.0),  # hardly longer
        run(20, 60.0),  # too short for anybody to look at
        run(20, 800.0, phase="data"),  # waits for batches: other findings tell of them
        run(3, 800.0),  # a third of the steps
        [step(at, 800.0 if at == 50 else 10.0) for at in range(100)],  # once
        run(100, 110.0, 1000),  # little in all
        [],
    ],
)
def test_else_there_are_none(steps: list[Step]) -> None:
    assert long_of(steps, "host") is None


def test_where_the_host_is_ahead_the_step_in_which_it_waits_is_none() -> None:
    """A value that is read every 25th step: the device computes for 57 ms in each."""
    ahead = [replace_ms(step(at, 240.0 if at % 25 == 24 else 57.0), 57.0) for at in range(100)]
    assert long_of(ahead, "host") is None
    saves = [
        replace_ms(step(at, 800.0 if at % 25 == 24 else 57.0), 700.0 if at % 25 == 24 else 57.0) for at in range(100)
    ]
    found = long_of(saves, "host")
    assert found is not None and found.long_ms == 700.0


def replace_ms(one: Step, gpu_ms: float) -> Step:
    return msgspec.structs.replace(one, gpu_ms=gpu_ms)


def test_other_findings_are_of_the_steps_without_them() -> None:
    found = long_of(run(20, 800.0), "host")
    plain = {one.id: one.share for one in findings_of(measured())}
    beside = {one.id: one.share for one in findings_of(replace(measured(), long=found))}
    assert found is not None and beside.pop("long-steps") == found.share
    assert beside == {name: pytest.approx(share * (1 - found.share)) for name, share in plain.items()}


def test_the_title_says_how_often() -> None:
    titles = [
        next(
            one.title for one in findings_of(replace(measured(), long=long_of(steps, "host"))) if one.id == "long-steps"
        )
        for steps in (run(21, 800.0, 105), [step(at, 800.0 if at in {7, 31, 80} else 10.0) for at in range(100)])
    ]
    assert titles == ["one step in 21 takes 80 times as long", "a step now and then takes 80 times as long"]
