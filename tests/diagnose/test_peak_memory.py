"""An evaluation or a checkpoint that sets the peak of memory."""

from typing import Any

import pytest

from hotlap.diagnose.findings._base import Measured
from hotlap.diagnose.findings.peak_memory import find
from hotlap.records.diagnosis import Finding
from hotlap.records.run import Facts, MemoryFacts, Phases, RaisedFacts
from hotlap.report.run_screen import findings_block

GIB = 2**30


def raised(
    kind: Any = "evaluation", memory: Any = "host", peak: float = 1.5, training: float = 1.0, **more: Any
) -> Any:
    place = ("train.py", 9, "evaluate")
    return RaisedFacts(
        kind=kind, memory=memory, peak_bytes=int(peak * GIB), training_bytes=int(training * GIB), place=place, **more
    )


def found(*rows: RaisedFacts, rss: float = 1.5, device: float = 0.0, **changes: Any) -> Finding | None:
    peak = int(device * GIB)
    memory = MemoryFacts(peak_bytes=peak, peak_reserved_bytes=peak, total_bytes=2**36) if device else None
    facts = Facts(
        pid=1, rank=0, world=1, argv=(), python="3.12", torch="2.13.0", mode="train", raised=rows,
        peak_rss_bytes=int(rss * GIB), memory=memory,
    )  # fmt: skip
    return find(Measured(10.0, Phases(), None, None, facts, **changes))


def test_an_evaluation_that_sets_the_peak_is_told_with_its_line() -> None:
    one = found(raised())
    assert one is not None and one.bound == "memory" and one.share == 0.0 and not one.named
    assert one.where is not None and (one.where.file, one.where.line) == ("train.py", 9)
    assert "the process took 1.5 GiB at most here; training had taken 1.0 GiB at most" in one.evidence
    assert "adds 0.5 GiB or more" in one.evidence and one.instead.startswith("use a smaller batch there")


@pytest.mark.parametrize(
    ("row", "whole"),
    [
        ({"peak": 1.05}, {"rss": 1.05}),  # hardly more
        ({"peak": 0.3, "training": 0.1}, {"rss": 0.3}),  # as libraries take
        ({}, {"rss": 2.0}),  # training took more later
        ({"training": 0.0}, {}),  # nothing is known of training
        ({}, {"evaluates": True}),  # the step's own
    ],
)
def test_otherwise_it_is_not(row: dict[str, Any], whole: dict[str, Any]) -> None:
    assert found(raised(**row), **{"rss": 1.5, **whole}) is None


def test_gradients_and_the_memory_of_a_gpu_are_told() -> None:
    one = found(raised(memory="device", peak=9, training=6, gradients=True), raised(), rss=1.5, device=9)
    assert one is not None and one.evidence.startswith("tensors on the GPU took 9.0 GiB at most")
    assert one.instead.startswith("`torch.no_grad()` around it")


def test_a_checkpoint_is_told_apart() -> None:
    one = found(raised(kind="checkpoint"), evaluates=True)
    assert (
        one is not None and one.title.endswith("writing a checkpoint, not from training") and "BytesIO" in one.instead
    )


def test_it_is_on_the_screen_however_many_others_there_are() -> None:
    others = [Finding(id=f"x{at}", bound="unknown", share=0.1, evidence="y") for at in range(5)]
    one = found(raised())
    assert one is not None
    table, _ = findings_block([*others, one], "")
    assert str(list(table.columns[0].cells)[-1]) == "memory"  # type: ignore[attr-defined]
