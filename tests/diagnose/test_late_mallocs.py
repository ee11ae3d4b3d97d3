"""Memory that the driver is asked for in steady steps, and levers of commands that only infer, from facts alone."""

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from test_diagnose import CUDA, DRAINED, FACTS, QUEUED, ROOT, phases, steps

from hotlap.diagnose.advise import advise
from hotlap.diagnose.diagnose import diagnose
from hotlap.diagnose.findings import all_findings
from hotlap.diagnose.findings._base import Measured
from hotlap.diagnose.profiled import LATE_MALLOCS, with_traces
from hotlap.levers import all_levers
from hotlap.levers._base import Context
from hotlap.records.diagnosis import Finding
from hotlap.records.run import Facts, HostFacts, Lever, MemoryFacts
from hotlap.records.trace import Breakdown, RankTrace, TraceReport, Window
from hotlap.report.run_screen import run_screen
from hotlap.runs.folder import RunFolder
from made_runs import diagnosis_of, folder_of

GIB = 2**30
DECODING = MemoryFacts(
    peak_bytes=int(2.2e9), peak_reserved_bytes=int(80e9), total_bytes=85 * 10**9, late_mallocs=136, since=10, step=156
)
"""As a decode loop on an H100 was: 160 lengths of its input, one after another."""
INFERS = msgspec.structs.replace(
    CUDA, mode="inference", optimizers=(), roots=(msgspec.structs.replace(ROOT, training=False, shapes=4),)
)
MODEL = phases(forward=9.0, other=1.0)


def of(memory: MemoryFacts | None, facts: Facts = INFERS) -> Finding | None:
    facts = msgspec.structs.replace(facts, memory=memory)
    return all_findings()["late_mallocs"](Measured(10.0, MODEL, MODEL, DRAINED, facts))


def memory(**changes: Any) -> MemoryFacts:
    return msgspec.structs.replace(DECODING, **changes)


def test_a_decode_loop_that_grows_its_input() -> None:
    roots = (msgspec.structs.replace(ROOT, training=False, shapes=160),)
    found = of(DECODING, msgspec.structs.replace(INFERS, roots=roots))
    assert found is not None and found.id == LATE_MALLOCS
    assert (found.bound, found.share, found.cost_ms, found.beneath) == ("memory", 0.0, None, True)
    assert found.levers == ("allocator",)
    assert found.evidence == (
        "136 calls of cudaMalloc in 146 steps after the first 10; 74.5 of 79.2 GiB reserved, for at most 2.0 GiB in "
        "use; the model's inputs came in 160 shapes in its first forwards"
    )
    assert found.where is not None and found.where.function == "Net.forward"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"late_mallocs": 15, "step": 160}, True),
        ({"late_mallocs": 14, "step": 160}, False),  # of 150 steps
        ({"late_mallocs": 5, "step": 20}, True),
        ({"late_mallocs": 4, "step": 20}, False),  # too few to tell
        ({"late_mallocs": 0}, False),
    ],
)
def test_both_sides_of_the_threshold(changes: dict[str, Any], told: bool) -> None:
    assert (of(memory(**changes)) is not None) == told


def test_only_what_was_seen_is_said() -> None:
    alike = of(memory(peak_reserved_bytes=3 * GIB, peak_bytes=2 * GIB, retries=2))
    assert alike is not None
    assert alike.evidence == (
        "136 calls of cudaMalloc in 146 steps after the first 10; 2 times the cache had to be freed first; "
        "the model's inputs came in 4 shapes in its first forwards"
    )
    fixed = (msgspec.structs.replace(ROOT, shapes=2),)
    one = of(memory(peak_bytes=0, total_bytes=0), msgspec.structs.replace(INFERS, roots=fixed))
    assert one is not None and "reserved" not in one.evidence and "shapes" not in one.evidence
    assert of(None) is None and of(None, FACTS) is None
    assert all_findings()["late_mallocs"](Measured(1.0, MODEL, None, None, None)) is None


def test_what_is_asked_for_in_most_steps_takes_its_time_from_computing(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("def step():\n    torch.cuda.empty_cache()\n")
    host = HostFacts(steps=20, system_ms=4.2, faults=200.0)
    facts = msgspec.structs.replace(INFERS, memory=memory(late_mallocs=300), host=host, argv=(str(source),))
    first, *rest = diagnose(
        folder_of(tmp_path / "run", (steps(host=MODEL, device=MODEL, backlog_ms=DRAINED), facts))
    ).findings
    assert (first.id, first.bound, first.named, first.beneath) == (LATE_MALLOCS, "memory", True, False)
    assert first.share == pytest.approx(0.4) and first.cost_ms == pytest.approx(4.0)
    assert first.where is not None and first.where.line == 2 and "in the Linux kernel" in first.evidence
    assert sum(one.share for one in rest) <= 0.6 + 1e-9


def test_a_cache_that_is_freed_again_and_again_is_memory_that_is_short() -> None:
    short, roomy = of(memory(retries=60, late_retries=40)), of(memory(retries=60, late_retries=9))
    assert short is not None and short.title.startswith("memory is short") and "checkpoint" in short.instead
    assert "40 times the cache had to be freed first" in short.evidence
    assert roomy is not None and not roomy.title.startswith("memory is short")


def test_the_lever_that_is_named_applies(tmp_path: Path) -> None:
    facts = msgspec.structs.replace(INFERS, memory=DECODING)
    run = folder_of(tmp_path, (steps(host=MODEL, device=MODEL, backlog_ms=DRAINED), facts))
    found = diagnose(run)
    context = Context(found, facts, RunFolder(run).record.environment, {})
    assert all_levers()["allocator"].applies(context).yes
    (late,) = [one for one in found.findings if one.id == LATE_MALLOCS]
    assert late.levers == ("allocator",) and found.bound == "launch"
    used = (Lever(name="allocator", settings={"conf": "expandable_segments:True"}),)
    using = diagnose(folder_of(tmp_path / "with", (steps(), facts), levers=used))
    assert [one.levers for one in using.findings if one.id == LATE_MALLOCS] == [()]


def test_the_screen_and_the_advice(tmp_path: Path) -> None:
    """No time is claimed for it, and no percentage of the step."""
    facts = msgspec.structs.replace(INFERS, memory=DECODING)
    run = folder_of(tmp_path, (steps(host=MODEL, device=MODEL, backlog_ms=QUEUED), facts))
    found = diagnose(run)
    screen = Console(file=io.StringIO(), width=100)
    screen.print(run_screen(RunFolder(run).record, found, (), run))
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "within memory is taken from the driver in steady steps" in text and "allocator" in text
    assert "allocator" not in advise(found, "run", facts).measures


def test_a_trace_that_shows_what_such_calls_cost_takes_its_place() -> None:
    found = of(DECODING)
    assert found is not None
    shown = Finding(id="allocator", bound="memory", share=0.3, cost_ms=3.0, levers=("allocator",))
    window = Window(start_ns=0, end_ns=10**7, found_by="ProfilerStep", steps=((0, 10**7),))
    device = Breakdown(
        device=0, span_ns=10**7, compute_ns=10**7, exposed_communication_ns=0, exposed_copy_ns=0, idle_ns=0,
        communication_ns=0, copy_ns=0, kernel_ns=10**7, streams=1, kernels=4,
    )  # fmt: skip
    rank = RankTrace(source="t", rank=0, device_name="H200", events=1, window=window, step_ms=10.0, breakdown=(device,))
    run = diagnosis_of(bound="memory", step_ms=10.0)
    run = msgspec.structs.replace(run, findings=(msgspec.structs.replace(found, share=0.5),))
    for traced, told in (
        ((shown,), [("allocator", 0.3)]),
        ((), [("late-mallocs", 0.5)]),
    ):  # these may lie outside of it
        traces = TraceReport(ranks=(rank,), findings=traced)
        assert [(one.id, one.share) for one in with_traces(run, traces).findings] == told


def test_quantized_weights_are_said_of_inference_alone() -> None:
    for facts, told in (
        (INFERS, True),
        (CUDA, False),
        (msgspec.structs.replace(INFERS, capability=(7, 5)), False),
        (msgspec.structs.replace(INFERS, capability=None), False),
        (msgspec.structs.replace(INFERS, device="cpu"), False),
    ):
        found = all_findings()["compute"](Measured(10.0, MODEL, MODEL, QUEUED, facts))
        assert found is not None and ("torchao" in found.instead) == told
