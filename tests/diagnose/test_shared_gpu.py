"""A GPU that another process used while the command trained on it."""

from pathlib import Path

import msgspec
import pytest
from test_diagnose import CUDA, QUEUED, phases, steps

from hotlap.diagnose.diagnose import diagnose
from hotlap.diagnose.shared_gpu import shared_gpu
from hotlap.records.files import write_record
from hotlap.records.run import Facts, MemoryFacts, Step
from hotlap.records.telemetry import GpuSample, TelemetrySample
from hotlap.report.rates import money_parts
from made_runs import folder_of, write_lines

GIB = 2**30
BESIDE = [(-12.1, 100, 15.5), (-10.6, 100, 16.5), (-6.6, 100, 17.2), (0.9, 100, 20.3), (3, 100, 20.3), (13, 100, 11.6)]
"""Seconds from the first step on, percent busy and GiB in use: a run on an H200 beside three others of 3.0 GiB of its
own (book_towers of 2026-11)."""
ALONE = [(-12.3, 0, 0.6), (-9.3, 0, 0.6), (-4.3, 0, 1.3), (0.7, 100, 9.5), (2.7, 0, 12.6), (12.7, 100, 13.5)]
"""One that was alone there, with 12.2 GiB of its own (ticket_intents)."""
BEGUN = 100.0


def samples(seen: list[tuple[float, int, float]], others: float | None = None) -> list[TelemetrySample]:
    return [
        TelemetrySample(
            time=BEGUN + at,
            gpus=(
                GpuSample(
                    index=0, uuid="GPU-a", busy_percent=busy, memory_bytes=int(gib * GIB), others_percent=others,
                    power_w=500.0,
                ),
            ),
        )
        for at, busy, gib in seen
    ]  # fmt: skip


def facts(gib: float, imported: float | None = None) -> Facts:
    memory = MemoryFacts(peak_bytes=0, peak_reserved_bytes=int(gib * GIB), total_bytes=140 * GIB)
    found = msgspec.structs.replace(CUDA, device_uuid="GPU-a", memory=memory)
    return msgspec.structs.replace(found, torch_imported=imported)


LATER = [Step(step=at, time=BEGUN + at, wall_ms=1000.0, phases=phases(forward=1.0)) for at in range(1, 21)]


@pytest.mark.parametrize(
    ("seen", "others", "own", "imported", "told"),
    [
        pytest.param(BESIDE, None, 3.0, None, "up to 17 GiB of its memory are not this command's", id="memory"),
        pytest.param(BESIDE, None, 3.0, BEGUN - 6, "it was 100% busy before the command used it", id="busy before"),
        pytest.param(BESIDE, 40.0, 3.0, BEGUN - 6, "computed on this GPU, 40% of the time by NVML", id="by process"),
        pytest.param(BESIDE, 0.0, 3.0, BEGUN - 6, "", id="by process, one that rests"),
        pytest.param(BESIDE, None, 18.0, None, "", id="the memory is its own"),
        pytest.param(BESIDE, None, 18.0, BEGUN - 11, "", id="busy by a job that had just ended"),
        pytest.param(ALONE, None, 12.2, None, "", id="alone"),
        pytest.param(ALONE, None, 12.2, BEGUN - 4, "", id="alone, nothing before"),
    ],
)
def test_that_another_process_was_on_the_gpu(
    seen: list[tuple[float, int, float]], others: float | None, own: float, imported: float | None, told: str
) -> None:
    said = shared_gpu(samples(seen, others), LATER, [facts(own, imported)])
    assert told in said and bool(told) == bool(said)


def test_ranks_of_one_card_are_one_command() -> None:
    assert not shared_gpu(samples(BESIDE), LATER, [facts(10.0), facts(8.0)])
    assert not shared_gpu(samples(BESIDE), LATER, [None])


def test_memory_of_a_process_that_made_no_step_is_the_commands(tmp_path: Path) -> None:
    run = folder_of(tmp_path, (steps(), facts(0.1)))
    seen = samples([(at - BEGUN, 100, 20.0) for at in range(40)])
    write_lines(run / "telemetry.jsonl", seen)
    assert diagnose(run).gpu_shared
    write_record(run / "seen-77.json", facts(19.0))
    assert not diagnose(run).gpu_shared


@pytest.mark.parametrize(("gib", "bound"), [(1.5, "compute"), (30.0, "launch")])
def test_what_a_whole_card_does_is_not_the_commands_there(tmp_path: Path, gib: float, bound: str) -> None:
    """Its events say that the device waited for the host, and others' kernels ran meanwhile."""
    on_device = phases(forward=5.0, backward=5.0)
    lines = steps(host=on_device, device=on_device, gpu_paced=on_device, backlog_ms=QUEUED)
    run = folder_of(tmp_path, (lines, facts(0.1)))
    seen = samples([(at - BEGUN, 100, gib) for at in range(40)])
    write_lines(run / "telemetry.jsonl", seen)
    found, shared = diagnose(run), bound == "launch"
    assert (found.bound, found.gpu_shared, found.gpu_busy) == (bound, shared, None if shared else 1.0)
    assert any(text.startswith("another process was on this GPU") for text in found.unknown) == shared
    assert ("of the whole GPU, which others used too" in next(money_parts(found, None))) == shared
