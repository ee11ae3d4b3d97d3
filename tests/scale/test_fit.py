"""Which value is run next, and what a fit says of what the runs measured. Runs are made by hand."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import made_runs
from hotlap.records.fit import FitRun
from hotlap.records.run import Facts, MemoryFacts, OptimizerFacts, Step
from hotlap.runs.folder import RunFolder
from hotlap.scale.fit import CONTEXT_BYTES, FitRequest, Known, fit_of, next_value, peak_of, unusual
from hotlap.scale.option import Option

GIB = 1 << 30
COMMAND = ("python", "t.py", "--batch-size", "16")
Law = Callable[[int], float]


def request(own: int = 16, **given: object) -> FitRequest:
    return FitRequest(COMMAND, Option("--batch-size", 3, "", own), **given)  # type: ignore[arg-type]


def run(value: int, peak: float | None, outcome: str = "measured", step_ms: float | None = 10.0) -> FitRun:
    peak_bytes, reserved_bytes = (None, None) if peak is None else (int(peak), int(1.1 * peak))
    return FitRun(
        value=value, outcome=outcome, folder="runs/0", peak_bytes=peak_bytes, reserved_bytes=reserved_bytes,
        step_ms=step_ms,
    )  # fmt: skip


def searched(asked: FitRequest, law: Law, room: float = 1e18) -> Known:
    """The runs that are made of a command that takes `law` bytes, on a device with so much room."""
    known = Known(device="cuda", device_name="card", total_bytes=int(min(room, 80 * GIB)) + CONTEXT_BYTES)
    while (value := next_value(asked, known)) is not None:
        assert len(known.runs) < 10
        peak = law(value)
        known.runs.append(run(value, peak) if peak <= room else run(value, None, "memory"))
    return known


def line(value: int) -> float:
    return GIB * (1 + 0.1 * value)


def tried(known: Known) -> list[int]:
    return [one.value for one in known.runs]


def test_three_runs_are_enough_for_a_line() -> None:
    assert tried(searched(request(), line)) == [16, 32, 8]
    assert tried(searched(request(own=1), line)) == [1, 2, 4]
    assert tried(searched(request(values=(20,)), line)) == [16, 8, 4]
    assert tried(searched(request(measured=(4, 6)), line)) == [4, 6]


def test_steps_that_differ_widen_what_is_predicted() -> None:
    alike = searched(request(), line)
    differ = Known(**vars(alike) | {"runs": [msgspec.structs.replace(one, varies=0.2) for one in alike.runs]})
    found = fit_of(differ, request(values=(64,)), made_runs.ENVIRONMENT, "", 1.0)
    near, far = alike.peaks().at(64), differ.peaks().at(64)
    assert near is not None and near.high is not None and far is not None and far.high is not None
    assert far.high >= line(64) * 1.2 > near.high and far.low <= line(64) * 0.8 < near.low
    assert any("differ by 20%" in note for note in found.notes)


def test_another_run_is_made_where_three_do_not_settle_it_or_much_larger_ones_are_asked_for() -> None:
    assert tried(searched(request(values=(512,)), line)) == [16, 32, 8, 128]
    assert tried(searched(request(values=(128,)), lambda value: GIB * max(3.0, 1 + 0.1 * value))) == [
        16,
        32,
        8,
        64,
        128,
    ]


def test_where_memory_runs_out_smaller_values_are_run() -> None:
    known = searched(request(), line, room=2.3 * GIB)
    assert tried(known) == [16, 8, 4, 2] and known.too_large == 16
    assert tried(searched(request(own=4), line, room=GIB)) == [4, 2, 1]


def test_what_is_told_of_a_line() -> None:
    asked = request(values=(64, 512), cards=(("big", 80 * GIB), ("small", 4 * GIB)))
    found = fit_of(searched(asked, line, room=20 * GIB), asked, made_runs.ENVIRONMENT, "", 1.0)
    assert [(one.value, one.measured, one.fits) for one in found.values] == [
        *((at, at != 64, "yes") for at in (8, 16, 32, 64, 128)), (512, False, "no"),
    ]  # fmt: skip
    peak = found.values[3].peak
    assert peak is not None and peak.likely == pytest.approx(line(64)) and peak.low < line(64) < (peak.high or 0)
    big, small = found.cards
    assert big.largest is not None and 650 < big.largest < 720 and big.at_most is not None and 770 < big.at_most < 900
    assert small.fits == ("yes", "yes", "no", "no", "no", "no") and small.largest is not None and small.largest >= 16
    assert found.shape == "linear" and found.complete


def test_a_value_that_ran_out_of_memory_is_a_limit_and_the_command_s_own_may_be_one() -> None:
    asked = request(values=(32,))
    found = fit_of(searched(asked, line, room=2.3 * GIB), asked, made_runs.ENVIRONMENT, "", 1.0)
    assert {one.value: one.fits for one in found.values} == {2: "yes", 4: "yes", 8: "yes", 16: "no", 32: "no"}
    card = found.device_card
    assert card is not None and card.largest is not None and card.at_most is not None
    assert 8 <= card.largest <= card.at_most <= 15


def test_on_a_cpu_a_card_is_told_of_tensors_alone() -> None:
    asked = request(values=(64,), cards=(("card", 80 * GIB),))
    known = searched(asked, line)
    known.device = "cpu"
    found = fit_of(known, asked, made_runs.ENVIRONMENT, "", 1.0)
    assert found.cards[0].tensors_only and set(found.cards[0].fits) == {"tensors"}
    assert "workspace" in found.notes[0]


def test_an_option_without_effect_is_said_to_have_none() -> None:
    asked = request()
    found = fit_of(searched(asked, lambda value: GIB), asked, made_runs.ENVIRONMENT, "", 1.0)
    assert found.shape == "flat" and any("has no effect" in note for note in found.notes)
    assert all(one.peak is not None and one.peak.high is None for one in found.values if not one.measured)


FACTS = Facts(
    pid=1, rank=0, world=1, argv=("t.py",), python="3.11", torch="2.13", mode="train", optimizer_steps=9,
    optimizers=(OptimizerFacts(name="Adam", builtin=True, tensors=1, devices=("cuda:0",), dtypes=("float32",)),),
    memory=MemoryFacts(peak_bytes=7, peak_reserved_bytes=9, total_bytes=99),
)  # fmt: skip


def test_the_peak_is_of_the_rank_with_the_most_and_needs_an_update(tmp_path: Path) -> None:
    more = Facts(**{**_fields(FACTS), "memory": MemoryFacts(peak_bytes=8, peak_reserved_bytes=8, total_bytes=99)})
    early = Facts(**{**_fields(FACTS), "optimizer_steps": 1})
    step = Step(step=0, time=0.0, wall_ms=1.0, phases=None)
    folder = made_runs.folder_of(tmp_path / "two", ([step], FACTS), ([step], more))
    assert peak_of(RunFolder(folder)) == (8, 9)
    assert peak_of(RunFolder(made_runs.folder_of(tmp_path / "early", ([step], early)))) == (None, None)
    without = Facts(**{**_fields(FACTS), "memory": None, "peak_rss_bytes": 5})
    assert peak_of(RunFolder(made_runs.folder_of(tmp_path / "cpu", ([step], without)))) == (None, 5)


def test_a_run_whose_peak_is_an_evaluation_s_is_told_and_left_out(tmp_path: Path) -> None:
    steps = [Step(step=at, time=0.0, wall_ms=1.0, phases=None, samples=900 if at == 5 else 16) for at in range(9)]
    assert "900 rows" in unusual(RunFolder(made_runs.folder_of(tmp_path / "odd", (steps, FACTS))))
    assert unusual(RunFolder(made_runs.folder_of(tmp_path / "usual", (steps[:5], FACTS)))) == ""
    asked, known = request(), searched(request(), line)
    odd = msgspec.structs.replace(run(64, 50 * GIB), unusual="a step had 900 rows")
    known.runs.append(odd)
    found = fit_of(known, asked, made_runs.ENVIRONMENT, "", 1.0)
    assert "900 rows" in found.notes[0] and found.shape == "linear"
    told = {one.value: one.peak for one in found.values}
    assert told[64] is not None and told[64].likely == 50 * GIB
    assert told[128] is not None and told[128].likely == pytest.approx(line(128))


def _fields(facts: Facts) -> dict[str, object]:
    return {name: getattr(facts, name) for name in facts.__struct_fields__}
