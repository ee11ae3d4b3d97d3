"""What levers cost a command that does not fit without them, and their parity: with a smaller batch, where it does."""

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from machine import LOSSES, FakeLever, Machine, Tune, Uses, kept

import hotlap
from hotlap.experiment.evidence import Evidence
from hotlap.levers._smaller_batch import NAME
from hotlap.records.errors import CommandFailed
from hotlap.records.run import Lever, LoaderFacts
from hotlap.tune.state import Found

LOADER = LoaderFacts(dataset="D", iterable=False, workers=0, batch_size=64, batches=1, training=True)
Fit = Callable[..., tuple[Found, Machine]]


def lever(name: str, **more: Any) -> FakeLever:
    return FakeLever(name, 0.0, saves_memory=True, **more)


CHECKPOINT = lever("checkpoint-blocks")
BF16, ATTENTION = (lever(name, risk="numeric", tolerance=0.005) for name in ("bf16-autocast", "attention"))


def of_whole(whole: float, each: dict[str, float], uses: Uses) -> float:
    """What so much of the bare command becomes with levers, each a factor, and with a part of its batch."""
    for name in uses:
        whole *= each.get(name, 1.0)
    return whole / uses.get(NAME, {"parts": 1})["parts"]


def step_ms(uses: Uses) -> float:
    return of_whole(100.0, {"checkpoint-blocks": 1.3, "bf16-autocast": 0.8}, uses)


def shifted(by: float, *names: str) -> Callable[[Uses], Evidence]:
    """Losses that each of some levers changes by a share of them."""
    return lambda uses: Evidence(tuple((loss * (1 + by * len({*names} & {*uses})),) for (loss,) in LOSSES))


@pytest.fixture
def fit(tune: Tune) -> Fit:
    """A tune of a command that needs 1000 MiB. needs: of what it needs, with a lever; smaller: how others than these
    come out with a smaller batch, by lever."""

    def made(levers: list[FakeLever], limit_mib: float = 600, **more: Any) -> tuple[Found, Machine]:
        needs = more.pop("needs", {"checkpoint-blocks": 0.5, "bf16-autocast": 0.55, "attention": 0.9})
        smaller: dict[str, tuple[str, str]] = more.pop("smaller", {})

        def peak_mib(uses: Uses) -> float:
            return of_whole(1000.0, needs, uses)

        def outcome(uses: Uses) -> tuple[str, str]:
            if NAME in uses and (named := smaller.keys() & uses.keys()):
                return smaller[named.pop()]
            return ("measured", "") if peak_mib(uses) <= limit_mib else ("memory", "out of memory")

        given = {"loaders": (LOADER,), "outcome": outcome, "peak_mib": peak_mib, **more}
        return tune(levers, given.pop("step_ms", step_ms), **given)

    return made


def sides(machine: Machine) -> list[str]:
    """The runs that were made for a reference: A without levers, B with them, or how they ended."""
    runs = [trial for trial in machine.done if trial.purpose == "reference"]
    return ["AB"[len(one.levers) > 1] if one.outcome == "measured" else one.outcome for one in runs]


def fitted(found: Found) -> list[str]:
    return [one.lever for one in found.fitted]


def test_the_cost_is_told_beside_the_bare_command(fit: Fit) -> None:
    found, machine = fit([CHECKPOINT])
    told = found.reference
    assert told is not None and fitted(found) == ["checkpoint-blocks"] and found.no_reference == ""
    assert (told.parts, told.levers) == (2, (Lever(name="checkpoint-blocks"),)) and told.turns >= 6
    assert told.time_ratio == pytest.approx(1.3) and told.interval is not None and told.interval.low > 1
    assert (told.before_ms, told.after_ms) == pytest.approx((50.0, 65.0))
    assert (told.memory_before_bytes, told.memory_after_bytes) == (500 * 2**20, 250 * 2**20)
    assert told.parity.ok and told.parity.level == "bitwise"
    assert sides(machine) == ["A", "A", "A", "B"]
    assert any("beside the command alone, with 1/2 of the batch: 1.30× of the time" in line for line in machine.said)


def test_where_memory_does_not_hold_them_at_once_they_run_one_after_another(fit: Fit) -> None:
    found, _ = fit([CHECKPOINT], room=2)
    told = found.reference
    assert told is not None and (told.turns, told.interval) == (0, None)
    assert (told.before_ms, told.after_ms) == pytest.approx((50.0, 65.0))
    assert (told.memory_before_bytes, told.memory_after_bytes) == (500 * 2**20, 250 * 2**20)


def test_the_largest_part_that_fits_is_taken(fit: Fit) -> None:
    found, machine = fit([CHECKPOINT], limit_mib=130, needs={"checkpoint-blocks": 0.1})
    assert sides(machine) == ["memory", "memory", "A", "A", "A", "B"]
    assert found.reference is not None and found.reference.parts == 8


def test_what_does_not_fit_with_an_eighth_either_is_said(fit: Fit) -> None:
    found, machine = fit([CHECKPOINT, BF16], limit_mib=100, needs={"checkpoint-blocks": 0.1, "bf16-autocast": 0.1})
    assert sides(machine) == ["memory"] * 3 and found.reference is None
    assert found.no_reference == "the command alone with 1/8 of the batch runs out of memory too"
    assert fitted(found) == ["checkpoint-blocks"], "the other is numeric, and was tried first"


def test_a_batch_that_can_not_be_split_is_said(fit: Fit) -> None:
    why = f"{NAME} could not be put in: a batch of 7 samples can't be split into 2 equal parts"
    found, machine = fit([CHECKPOINT], smaller={NAME: ("refused", why)})
    assert sides(machine) == ["refused"]
    assert found.no_reference.endswith("was refused: a batch of 7 samples can't be split into 2 equal parts")


def test_without_a_loader_numeric_levers_are_not_used_to_fit(fit: Fit) -> None:
    found, machine = fit([BF16, CHECKPOINT], loaders=())
    assert fitted(found) == ["checkpoint-blocks"] and sides(machine) == []
    assert found.no_reference == "no DataLoader feeds the training loop"
    why = "its parity can't be proved: no DataLoader feeds the training loop"
    assert found.dropped["bf16-autocast"].why != why, "beside the other it was tried, and judged"
    with pytest.raises(CommandFailed, match=why):
        fit([BF16], loaders=(), only=("bf16-autocast",))


def test_a_numeric_lever_is_proved_by_the_reference(fit: Fit) -> None:
    found, _ = fit([BF16, CHECKPOINT], evidence_of=shifted(0.001, "bf16-autocast"))
    assert fitted(found) == ["bf16-autocast"] and found.reference is not None
    assert found.reference.parity.level == "numeric" and found.reference.time_ratio == pytest.approx(0.8)


def test_a_lever_that_fails_parity_is_dropped_and_the_next_tried(fit: Fit) -> None:
    found, machine = fit([BF16, CHECKPOINT], evidence_of=shifted(0.5, "bf16-autocast"))
    assert fitted(found) == ["checkpoint-blocks"] and kept(found) == []
    assert found.dropped["bf16-autocast"].why.startswith("parity with 1/2 of the batch: ")
    assert found.reference is not None and found.reference.parity.level == "bitwise"
    assert sides(machine) == ["A", "A", "A", "B", "A", "A", "B"]
    whole = [trial.requested for trial in machine.done if trial.purpose == "fit"]
    assert len(whole) == 2, "what was tried with the whole batch is not tried again"


def test_of_several_the_one_at_fault_is_dropped(fit: Fit) -> None:
    needs = {"attention": 0.7, "bf16-autocast": 0.7, "checkpoint-blocks": 0.7}
    found, _ = fit([BF16, ATTENTION, CHECKPOINT], needs=needs, evidence_of=shifted(0.5, "attention"))
    assert fitted(found) == ["bf16-autocast", "checkpoint-blocks"]
    assert "parity with 1/2" in found.dropped["attention"].why and "bf16-autocast" not in found.dropped


def test_where_only_all_together_fail_parity_the_last_is_dropped(fit: Fit) -> None:
    needs = {"attention": 0.7, "bf16-autocast": 0.7, "checkpoint-blocks": 0.5}
    found, _ = fit([BF16, ATTENTION, CHECKPOINT], needs=needs, evidence_of=shifted(0.006, "attention", "bf16-autocast"))
    assert "parity with 1/2" in found.dropped["bf16-autocast"].why
    assert fitted(found) == ["checkpoint-blocks"], "which needs no other"


def test_runs_with_the_levers_that_crash_say_nothing_of_exact_ones(fit: Fit) -> None:
    crash = ("crashed", "exit code 1: no")
    found, _ = fit([CHECKPOINT], smaller={"checkpoint-blocks": crash})
    assert fitted(found) == ["checkpoint-blocks"] and found.reference is None
    assert found.no_reference == "with 1/2 of the batch a run failed (crashed: exit code 1: no)"
    found, _ = fit([BF16, CHECKPOINT], smaller={"bf16-autocast": crash})
    assert fitted(found) == ["checkpoint-blocks"] and found.reference is not None
    assert found.dropped["bf16-autocast"].why.startswith(
        "its parity can't be proved: with 1/2 of the batch a run failed"
    )


def test_levers_that_resize_the_step_are_not_compared(fit: Fit) -> None:
    accumulate = lever("accumulate", risk="semantic", resizes_step=True)
    found, machine = fit([accumulate], allow=("semantic",), needs={"accumulate": 0.5})
    assert fitted(found) == ["accumulate"] and sides(machine) == []
    assert found.no_reference == "with these levers a step has other samples"


def test_half_of_the_budget_is_for_the_rest(fit: Fit) -> None:
    """Of trials of 10 s: the bare command, the one that fits, and the reference as far as the half lasts."""
    found, machine = fit([CHECKPOINT], budget=140.0)
    assert found.reference is not None and machine.now - 1000.0 <= 140.0
    found, machine = fit([CHECKPOINT], budget=60.0)
    assert found.reference is None and found.no_reference == "half of the budget was used up"
    assert "no time was left to measure the cost of the levers that make it fit" in found.not_done
    assert fitted(found) == ["checkpoint-blocks"]
    with pytest.raises(CommandFailed, match=r"bf16-autocast is not used: .* It fits with bf16-autocast, which was"):
        fit([BF16], budget=60.0)


def test_the_smaller_batch_imports_the_standard_library_only() -> None:
    """It is imported in the user's process."""
    said = "{m.split('.')[0] for m in sys.modules} - sys.stdlib_module_names"
    code = f"import sys, hotlap.levers.{NAME}; print({said})"
    source = Path(hotlap.__file__).parents[1]
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=source, capture_output=True, text=True, check=True)
    assert set(ast.literal_eval(done.stdout)) <= {"hotlap", "__main__"}
