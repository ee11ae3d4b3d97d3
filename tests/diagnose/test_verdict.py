"""The whole verdict of a folder: which rank's host is looked at, and what to run next."""

from pathlib import Path

import msgspec
from test_diagnose import FACTS, folder_of, phases, steps

from hotlap.diagnose.verdict import verdict
from hotlap.records.diagnosis import Finding, Place
from hotlap.records.files import write_record
from hotlap.records.profile import Samples
from hotlap.records.trace import Breakdown, Ranks, RankTrace, TraceReport, Window

MS = 1_000_000


def traces() -> TraceReport:
    """Of two ranks; the others wait for rank 1."""
    device = Breakdown(
        device=0, span_ns=10 * MS, compute_ns=MS, exposed_communication_ns=8 * MS, exposed_copy_ns=0, idle_ns=MS,
        communication_ns=8 * MS, copy_ns=0, kernel_ns=9 * MS, streams=2, kernels=9,
    )  # fmt: skip
    window = Window(start_ns=0, end_ns=10 * MS, found_by="ProfilerStep", steps=((0, 10 * MS),))
    ranks = tuple(
        RankTrace(source="t", rank=at, device_name="GPU", events=1, window=window, step_ms=10.0, breakdown=(device,))
        for at in range(2)
    )
    late = Finding(id="straggler", bound="communication", share=0.8, evidence="x", levers=("loader-workers",))
    balance = Ranks(loads=(), imbalance=0.0, straggler=1, cost_ns=8 * MS, cause="input")
    return TraceReport(ranks=ranks, balance=balance, findings=(late,))


def test_the_host_of_the_rank_that_the_others_wait_for_is_looked_at(tmp_path: Path) -> None:
    facts = msgspec.structs.replace(FACTS, world=2)
    each = (steps(20, host=phases(data=1.0, forward=4.0, backward=5.0)), facts)
    folder = folder_of(tmp_path / "run", each, each)
    for rank, line in ((0, 3), (1, 28)):
        (folder / f"rank-{rank}" / "trace.json.gz").touch()
        said = Samples(steps=3, looks=100, files=("data.py",), lines=(("data", 0, line, "Disk.__getitem__", "", 90.0),))
        write_record(folder / f"rank-{rank}" / "samples.json", said)
    found = verdict(folder, traces())
    late = found.findings[0]
    assert (found.bound, late.id) == ("communication", "straggler")
    assert late.where == Place(file="data.py", line=28, function="Disk.__getitem__")
    assert "loader-workers" in found.next


def test_what_to_run_next_follows_from_what_the_traces_say(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run", (steps(20, host=phases(forward=4.0, backward=6.0)), FACTS))
    (folder / "rank-0" / "trace.json.gz").touch()
    waits = Finding(id="input", bound="input", share=0.9, levers=("loader-workers",))
    found = verdict(folder, TraceReport(ranks=traces().ranks[:1], findings=(waits,)))
    assert "tries loader-workers, compile and" in found.next, "the dearest one's, then what answers others"
