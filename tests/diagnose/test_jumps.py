"""Steps that take longer from one on, on records: where, in which phase, and what else changed there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_diagnose import FACTS, step

from hotlap.diagnose.diagnose import diagnose
from hotlap.diagnose.findings._base import Jump
from hotlap.diagnose.jumps import jump_of, jump_text
from hotlap.diagnose.steps import steady_steps
from hotlap.records.diagnosis import NOT_STEADY
from hotlap.records.run import Facts, Phases, Step
from hotlap.records.telemetry import CpuSample, GpuSample, TelemetrySample
from made_runs import ENVIRONMENT, folder_of

THAWS = """\
THAW_AFTER = 49
for p in body.parameters():
    p.requires_grad = False
for step in range(100):
    if step > THAW_AFTER:
        body.requires_grad_(True)
"""


def run(backward: float = 20.0, at: int = 50, count: int = 100, **after: Any) -> list[Step]:
    """Whose backward takes 6 ms, from one on another time. after: what these have."""
    first = [step(number, samples=32, trained=2 if number == 1 else None) for number in range(at)]
    later = Phases(data=0.0, h2d=0.0, forward=4.0, backward=backward, optimizer=0.0, other=0.0)
    return [*first, *(step(number, later, **{"samples": 32, **after}) for number in range(at, count))]


def found(steps: list[Step], facts: Facts = FACTS, samples: Sequence[TelemetrySample] = ()) -> Jump | None:
    return jump_of(steady_steps(steps, facts), steps, facts, samples, ENVIRONMENT)


def thawed(after: int = 6) -> list[Step]:
    steps = run()
    steps[50 + after] = msgspec.structs.replace(steps[50 + after], trained=14)
    return steps


def test_a_jump_is_told_with_its_step_and_phase(tmp_path: Path) -> None:
    jump = found(run())
    assert jump is not None and (jump.step, jump.phase, jump.changed, jump.where) == (50, "backward", None, None)
    assert (jump.before_ms, jump.after_ms, jump.more_ms) == (pytest.approx(10), pytest.approx(24), pytest.approx(14))
    told = diagnose(folder_of(tmp_path, (run(), FACTS)))
    text = f"{NOT_STEADY}: 10.0 ms a step before step 50, 24.0 ms from then on (+14.0 ms in backward)"
    assert text in told.unknown and not any(one.id == "steps-jump" for one in told.findings)


@pytest.mark.parametrize(
    ("steps", "changed"),
    [
        (thawed(), ("trained", 2, 14)),
        (thawed(40), None),
        ([*run()[:48], step(48, compiles=2), *run()[49:]], ("compiled", 0, 2)),
        (run(losses=(1.0, 1.0)), ("backwards", 1, 2)),
        (run(count=140, evaluation=True), ("evaluation", 0, 1)),
    ],
)
def test_what_changed_at_that_step_is_its_cause(
    steps: list[Step], changed: tuple[str, int, int] | None, tmp_path: Path
) -> None:
    jump = found(steps)
    assert jump is not None and jump.changed == changed
    told = diagnose(folder_of(tmp_path, (steps, FACTS)))
    causes = [one for one in told.findings if one.id == "steps-jump"]
    assert len(causes) == bool(changed)
    for one in causes:
        assert one.title.startswith("from step 50 on each takes 2.4 times as long: ") and one.named
        assert one.bound == "compute" and one.cost_ms == pytest.approx(told.gpu_ms or jump.after_ms - 10, rel=0.6)


@pytest.mark.parametrize(("backward", "told"), [(20.0, False), (60.0, True)])
def test_more_rows_are_no_cause(backward: float, told: bool, tmp_path: Path) -> None:
    """Nor of as much of the time as they bring along."""
    steps = run(backward, samples=80, losses=(1.0, 1.0))
    jump = found(steps)
    assert jump is not None and jump.rows == (32, 80)
    diagnosis = diagnose(folder_of(tmp_path, (steps, FACTS)))
    assert any("with 80 rows or tokens a step instead of 32" in text for text in diagnosis.unknown)
    assert any(one.id == "steps-jump" for one in diagnosis.findings) is told


@pytest.mark.parametrize(
    "steps",
    [
        run(7.0),
        run(at=94),
        run()[:50] + run()[50:70] + run()[:30],  # and back again
        [step(at, Phases(forward=10.0 if at % 3 else 30.0)) for at in range(100)],
        [step(at, Phases(forward=10.0 + at)) for at in range(12)],
    ],
)
def test_what_is_no_jump(steps: list[Step]) -> None:
    assert found(steps) is None


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (THAWS, 5),
        (THAWS.replace("49", "80"), 6),
        (THAWS.replace("49", "80").replace("requires_grad_(True)", "requires_grad_(False)"), None),
        ("for epoch in range(9):\n    if epoch >= 5: thaw()\n", 2),
        ("for epoch in range(9):\n    if epoch >= 3: thaw()\nsteps = 50\n", None),
    ],
)
def test_the_line_is_that_of_the_step_or_of_the_change(source: str, line: int | None, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(source)
    loader = msgspec.structs.replace(FACTS.loaders[0], epoch_batches=10)
    facts = msgspec.structs.replace(FACTS, argv=(str(tmp_path / "train.py"),), loaders=(loader,))
    jump = found(thawed(), facts)
    assert jump is not None and (jump.where.line if jump.where else None) == line


def test_a_machine_that_gives_less_is_told() -> None:
    def sample(at: int) -> TelemetrySample:
        """Two cores are ours, and one and a half of others' come with step 50, when the clock falls."""
        busy = 2000.0 * at + 1500.0 * max(0, at - 50)
        gpu = GpuSample(index=0, sm_mhz=1980.0 if at < 50 else 1200.0)
        return TelemetrySample(time=float(at), cpu_percent=200.0, cpu=CpuSample(busy_ms=busy), gpus=(gpu,))

    jump = found(run(), samples=[sample(at) for at in range(100)])
    assert jump is not None and jump.changed is None
    assert jump_text(jump).endswith(
        "; the GPU's clock is 1200 MHz after that, 1980 before; other work takes 1.5 cores after that, 0.0 before"
    )
    assert found(run(), samples=[sample(at) for at in range(40)]) == found(run())
