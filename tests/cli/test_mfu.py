"""MFU of a profiled run and of its trace, on recorded folders; and that it is said to be unknown on the CPU."""

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hotlap.records.run import Phases, Step
from made_runs import FACTS, folder_of

FLOPS = 2 * 4096**3
"""Of a step: one product. An H100 needs 139 µs for it, so that a step of 1 ms has an MFU of 13.9%."""


def trace(path: Path, gpu: str) -> None:
    """Two steps of 2 ms with a product each; without a device where the name is empty."""
    events: list[dict[str, Any]] = []
    for at in range(2):
        start, own = 2000.0 * at, {"pid": 1, "tid": 1, "ph": "X"}
        sizes = {
            "External id": 10 + at,
            "Input Dims": [[4096, 4096], [4096, 4096]],
            "Input type": ["c10::BFloat16", "c10::BFloat16"],
        }
        events += [
            {**own, "cat": "user_annotation", "name": f"ProfilerStep#{at}", "ts": start, "dur": 1999.0},
            {**own, "cat": "cpu_op", "name": "aten::mm", "ts": start + 10, "dur": 50.0, "args": sizes},
            {
                **own, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start + 20, "dur": 5.0,
                "args": {"correlation": 5 + at, "External id": 10 + at},
            },
        ]  # fmt: skip
        if gpu:
            told = {"device": 0, "stream": 7, "correlation": 5 + at, "External id": 10 + at}
            work = {
                "ph": "X",
                "cat": "kernel",
                "name": "nvjet_tst",
                "pid": 0,
                "tid": 7,
                "ts": start + 100,
                "dur": 300.0,
            }
            events.append({**work, "args": told})
    properties = [{"id": 0, "name": gpu}] if gpu else []
    document = {"deviceProperties": properties, "record_shapes": 1, "traceEvents": events}
    path.write_bytes(gzip.compress(json.dumps(document).encode()))


def recorded(folder: Path, gpu: str, ranks: int = 1) -> Path:
    """A finished run whose unprofiled steps take 1 ms."""
    steps = [Step(step=at, time=float(at), wall_ms=1.0, phases=Phases(forward=1.0), tokens=9) for at in range(40)]
    facts = [msgspec.structs.replace(FACTS, rank=number, world=ranks) for number in range(ranks)]
    folder_of(folder, *((steps, one) for one in facts))
    for number in range(ranks):
        trace(folder / f"rank-{number}" / "trace.json.gz", gpu)
    return folder


def test_of_a_run_and_of_its_trace(tmp_path: Path, printed: Any) -> None:
    run = recorded(tmp_path / "r", "NVIDIA H100 80GB HBM3")
    line = "MFU 13.9% · 137 GFLOP a step in 1.00 ms · peak 989 TFLOP/s bf16 (data sheet of H100 SXM)"
    assert line in printed("show", run) and line in printed("trace", run)
    alone = printed("trace", run / "rank-0" / "trace.json.gz")
    assert "MFU 6.9% · 137 GFLOP a step in 2.00 ms under the profiler" in alone
    found = json.loads(printed("show", run, "--json"))["diagnosis"]
    assert found["utilisation"]["flops"] == FLOPS and found["tokens_s"] == pytest.approx(9000.0)


def test_of_several_ranks_it_is_the_mean(tmp_path: Path, printed: Any) -> None:
    assert "MFU 13.9%, mean of 2 ranks · " in printed("show", recorded(tmp_path / "r", "NVIDIA H200", 2))


def test_calibrated_peaks_are_named(tmp_path: Path, printed: Any) -> None:
    kept = tmp_path / "cache" / "peaks" / "NVIDIA-H100-80GB-HBM3.json"
    kept.parent.mkdir(parents=True)
    kept.write_text('{"name": "NVIDIA H100 80GB HBM3", "fp32": 50, "memory_gbs": 3000, "bf16": 800, "source": "today"}')
    shown = printed("show", recorded(tmp_path / "r", "NVIDIA H100 80GB HBM3"))
    assert "MFU 17.2%" in shown and "800 TFLOP/s bf16 (hotlap calibrate, today)" in shown


@pytest.mark.parametrize(
    ("gpu", "why"), [("", "no GPU worked in these steps"), ("NVIDIA X1", "the peak of NVIDIA X1 is unknown; `hotlap")]
)
def test_where_it_is_unknown_that_is_said(gpu: str, why: str, tmp_path: Path, printed: Any) -> None:
    run = recorded(tmp_path / "r", gpu)
    assert f"MFU unknown: {why}" in printed("trace", run)
    assert (f"MFU unknown: {why}" in printed("show", run)) is bool(gpu), "of a run without a GPU none is spoken of"


def test_a_run_that_was_not_profiled_says_nothing_of_it(tmp_path: Path, printed: Any) -> None:
    run = recorded(tmp_path / "r", "NVIDIA H200")
    (run / "rank-0" / "trace.json.gz").unlink()
    assert "MFU" not in printed("show", run)
