"""What the backward takes of causes in the model, which a trace of the CPU tells."""

from collections.abc import Callable

import msgspec
import pytest

from hotlap.diagnose.profiled import DENSE, with_backwards, with_traces
from hotlap.records.diagnosis import Diagnosis, Finding, Place
from hotlap.records.run import Phases
from hotlap.records.trace import Breakdown, HostTime, RankTrace, TraceReport, Window
from made_runs import diagnosis_of

MS = 1_000_000
HERE, THERE = Place(file="net.py", line=4, function="f"), Place(file="net.py", line=9, function="g")
ROWS = (
    HostTime(name="aten::mul", ns=30 * MS, total_ns=30 * MS, count=2, where=HERE),
    HostTime(name="aten::sub", ns=10 * MS, total_ns=10 * MS, count=2, where=HERE),
    HostTime(name=f"{DENSE}0", ns=4 * MS, total_ns=40 * MS, count=2, where=THERE),
    HostTime(name="aten::fill_", ns=36 * MS, total_ns=36 * MS, count=2, where=THERE),
)
COMPUTE = Finding(id="compute", bound="compute", share=0.8, where=THERE)


def judged(cause: Finding, with_: Callable[..., Diagnosis] = with_backwards, **more: object) -> Diagnosis:
    window = Window(start_ns=0, end_ns=200 * MS, found_by="ProfilerStep", steps=((0, 100 * MS), (100 * MS, 200 * MS)))
    rank = RankTrace(source="t", rank=0, device_name="cpu", events=0, window=window, step_ms=100.0, model=ROWS)
    phases = more.pop("phases", Phases(forward=90.0))
    rank = msgspec.structs.replace(rank, **more)
    before = diagnosis_of(bound="compute", step_ms=100.0, phases=phases, findings=(cause, COMPUTE))
    return with_(before, TraceReport(ranks=(rank,)))


@pytest.mark.parametrize(("id_", "share"), [("all-pairs", 0.4), ("one-hot-product", 0.4), ("read-value", 0.2)])
def test_a_sampled_cause_has_all_that_its_line_takes(id_: str, share: float) -> None:
    """Half of the time in the model, which is 80% of the step."""
    found = judged(Finding(id=id_, bound="bandwidth", share=0.2, where=HERE, named=True))
    assert found.findings[0].share == pytest.approx(share)
    assert found.bound == ("bandwidth" if share > 0.3 else "compute")


def test_idle_rows_have_their_dense_gradients() -> None:
    found = judged(Finding(id="idle-rows", bound="bandwidth", share=0.1, where=THERE, named=True))
    assert found.findings[0].share == pytest.approx(0.1 + 0.4)
    assert found.findings[0].cost_ms == pytest.approx(50.0)
    assert "with their dense gradients 50.0 ms" in found.findings[0].evidence


def test_dense_gradients_are_a_part_of_the_backward_as_the_steps_without_a_trace_have_it() -> None:
    """In a trace of a busy machine the backward took seven times as long, and all together was 108%."""
    rows = (*ROWS, HostTime(name="hotlap:backward", ns=0, total_ns=50 * MS, count=2, where=THERE))
    cause = Finding(id="idle-rows", bound="bandwidth", share=0.1, where=THERE, named=True)
    first = judged(cause, model=rows, phases=Phases(forward=60.0, backward=20.0, optimizer=10.0)).findings[0]
    assert first.share == pytest.approx(0.1 + 0.2 * 0.8)


def test_beside_a_device_the_hosts_time_says_nothing_of_it() -> None:
    cause = Finding(id="all-pairs", bound="bandwidth", share=0.2, where=HERE, named=True)
    one = Breakdown(**dict.fromkeys(Breakdown.__struct_fields__, 0))
    assert judged(cause, breakdown=(one,)).findings[0] == cause


@pytest.mark.parametrize(("named", "share"), [(True, 0.52), (False, 0.0)])
def test_a_mode_in_python_takes_what_the_operations_do_not(named: bool, share: float) -> None:
    """Of 90 ms in the model 38 are in operations; what autograd's engine owns is Python in such a backward."""
    cause = Finding(id="python-modes", bound="launch", share=0.0, where=HERE, named=named)
    (one,) = (one for one in judged(cause, with_traces).findings if one.id == "python-modes")
    assert one.share == pytest.approx(share) and one.cost_ms == (pytest.approx(52.0) if named else None)
    assert ("the operations themselves take 38.0 ms" in one.evidence) is named
