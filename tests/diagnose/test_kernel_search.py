"""cuDNN's search for its fastest kernels, where the shapes of its inputs change, from facts alone."""

from typing import Any

import msgspec
import pytest
from test_diagnose import CUDA, DRAINED, ROOT, phases

from hotlap.diagnose.findings import findings_of
from hotlap.diagnose.findings._base import Measured
from hotlap.records.diagnosis import Finding
from hotlap.records.run import MemoryFacts

MODEL = phases(forward=400.0, backward=1700.0, other=4.0)
PACED = phases(forward=400.0, backward=1700.0)
MEMORY = MemoryFacts(
    peak_bytes=2**30, peak_reserved_bytes=2**30, total_bytes=2**37, late_mallocs=1071, since=10, step=38
)
"""As a net of 8 convolutions on an H200 was, whose inputs were cropped to other lengths: 2.3 s a step, and 16 ms where
a length came again."""


def found(**changes: Any) -> list[Finding]:
    root = msgspec.structs.replace(ROOT, conv=8, shapes=changes.pop("shapes", 15))
    memory = msgspec.structs.replace(MEMORY, late_mallocs=changes.pop("late_mallocs", 1071))
    facts = msgspec.structs.replace(CUDA, roots=(root,), memory=memory, **{"cudnn_benchmark": True, **changes})
    return findings_of(Measured(2104.0, MODEL, MODEL, DRAINED, facts, gpu_paced=PACED))


def test_it_is_told_in_place_of_launches() -> None:
    first = found()[0]
    assert first.id == "kernel-search" and first.bound == "launch" and first.share > 0.9 and first.named
    assert "15 shapes" in first.evidence and "1071 calls of cudaMalloc in 28 steps" in first.evidence
    assert "cudnn.benchmark = False" in first.instead
    assert not {"launch", "late-mallocs"} & {one.id for one in found()}


@pytest.mark.parametrize("changes", [{"cudnn_benchmark": False}, {"shapes": 2}, {"late_mallocs": 3}])
def test_where_it_is_off_or_was_done_once_it_is_not(changes: dict[str, Any]) -> None:
    told = {one.id for one in found(**changes)}
    assert "kernel-search" not in told and "launch" in told
