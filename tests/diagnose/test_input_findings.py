"""Findings of what a loader's workers deliver and hold."""

from dataclasses import replace

import msgspec
import pytest

from hotlap.diagnose.findings import compute, cpu_crowded, host_code, repeated_data, worker_copies
from hotlap.diagnose.findings import input as waiting
from hotlap.diagnose.findings._base import CpuUse, Measured
from hotlap.diagnose.profiled import _left
from hotlap.levers import settled
from hotlap.records.run import Facts, HostFacts, LoaderFacts, OptimizerFacts, Phases, RootFacts
from hotlap.records.trace import TraceReport

LOADER = LoaderFacts(
    dataset="Stream", iterable=True, workers=4, batches=30, training=True, repeated_rows=16, file="train.py", line=7,
    function="Stream.__iter__",
)  # fmt: skip


TENSORS: dict[str, object] = {"holds_tensors": True, "default_collate": True}


def measured(loader: LoaderFacts) -> Measured:
    facts = Facts(pid=1, rank=0, world=1, argv=("train.py",), python="3.12", torch="2.13.0", loaders=(loader,))
    return Measured(10.0, Phases(data=5.0, forward=5.0), None, None, facts)


def changed(**changes: object) -> Measured:
    return measured(msgspec.structs.replace(LOADER, **changes))


def test_repeated_data() -> None:
    found = repeated_data.find(measured(LOADER))
    assert found is not None and found.share == 0 and found.where is not None and found.where.line == 7
    assert "16 rows" in found.evidence and found.wrong
    for change in ({"repeated_rows": 0}, {"workers": 1}, {"iterable": False}):
        assert repeated_data.find(changed(**change)) is None
    traced = msgspec.structs.replace(found, id="host-code", wrong=False)
    assert _left(found, TraceReport(ranks=(), findings=(traced,)), 10.0) is found, "of the same bound: unknown"


def test_a_loader_iterated_without_gradients_feeds_a_command_that_only_infers() -> None:
    facts = measured(msgspec.structs.replace(LOADER, training=False)).facts
    for mode, found in (("inference", True), ("train", False)):
        now = Measured(10.0, Phases(data=5.0, forward=5.0), None, None, msgspec.structs.replace(facts, mode=mode))
        assert (waiting.find(now) is not None) == found
        code = host_code.find(replace(now, phases=Phases(other=5.0)))
        assert code is not None and ("no DataLoader" in code.evidence) != found
    assert facts is not None and facts.feeding is None


def test_findings_name_the_levers_that_what_was_seen_leaves_open() -> None:
    root = RootFacts(name="Net", parameters=1, modules=1, softmax=True)
    optimizer = OptimizerFacts(name="SGD", builtin=True, tensors=1)
    plain = measured(LOADER).facts
    assert plain is not None
    issuing = ("compile", "attention", "fused-optimizer", "graph-optimizer")
    for changes, levers in [
        ({}, ("compile",)),
        ({"roots": (root,)}, ("compile", "attention")),
        ({"roots": (msgspec.structs.replace(root, compiled=True),)}, ()),
        ({"optimizers": (optimizer,)}, ("compile", "fused-optimizer", "graph-optimizer")),
        ({"optimizers": (msgspec.structs.replace(optimizer, fused=True),)}, ("compile", "graph-optimizer")),
    ]:
        out = settled(msgspec.structs.replace(plain, device="cuda", **changes))
        assert tuple(name for name in issuing if name not in out) == levers


def test_phases_that_do_not_occur_are_left_out() -> None:
    found = compute.find(Measured(10.0, Phases(forward=9.0, backward=0.0, optimizer=0.0), None, None, None))
    assert found is not None and found.evidence == "forward 9.00 ms"


USE = CpuUse(usable=2, cores=2, busy_ms=1950.0, used=1.9)
HOST = HostFacts(steps=10, user_ms=5.0, system_ms=1.0, waited_ms=4.0, threads_waited_ms=4.0)


def test_how_many_tensors_a_batch_of_workers_is_where_it_is_many() -> None:
    """What is late may be so since handing it over takes long: that workers are slow is not said for sure."""
    late: dict[str, object] = {"asked": 20, "late": 10, "asked_ms": 90.0, "late_ms": 90.0}
    few, many, none = (
        waiting.find(changed(**late, batch_tensors=tensors, workers=workers))
        for tensors, workers in ((6, 4), (576, 4), (576, 0))
    )
    assert few is not None and many is not None and none is not None
    assert "a batch is 576 tensors" in many.evidence and "receiving a batch takes as long" in many.why
    assert not any("tensors" in one.evidence or "to take one over" in one.why for one in (few, none))


def crowded(use: CpuUse = USE, host: HostFacts = HOST, workers: int = 2, **more: object) -> Measured:
    """A step of 20 ms: 8 of them wait for batches, and the model's 12 hold 6 of processor time."""
    of = measured(msgspec.structs.replace(LOADER, iterable=False, workers=workers, asked=20, asked_ms=160.0))
    facts = msgspec.structs.replace(of.facts, host=host, **more) if of.facts else None
    return replace(of, step_ms=20.0, phases=Phases(data=8.0, forward=12.0), facts=facts, cpu=use)


def test_what_workers_take_of_the_models_cores_is_told_with_the_batches() -> None:
    """On two cores each that a batch costs is taken from the model too; it was told as computing, or as "threads wait
    for a core", with "fewer workers" as the advice."""
    theirs = 6.0 * 32 / (32 + 1)  # of what the model's phases are longer; other work has 1 of 33 ms
    assert crowded().taken_ms == pytest.approx(theirs)
    found, computing = waiting.find(crowded()), compute.find(crowded())
    assert found is not None and found.share == pytest.approx(0.4 + theirs / 20)
    assert "which waits for a core for" in found.evidence and "make each batch cheaper" in found.instead
    assert computing is not None and computing.share == pytest.approx(0.6 - theirs / 20)
    assert cpu_crowded.find(crowded()) is None, "these are the same waits"


def test_workers_whose_batches_are_ready_are_not_slow_where_all_cores_are_busy() -> None:
    """It said that they make batches more slowly than the model uses them up, "for 0 of 33 batches"."""
    ready = waiting.find(crowded())
    assert ready is not None and "every batch was ready" in ready.why and "all cores are busy" in ready.why
    assert "slowly" not in ready.why and "no core is free for more workers; or none (`num_workers=0`)" in ready.instead
    late = msgspec.structs.replace(LOADER, workers=2, asked=20, asked_ms=160.0, late=18, late_ms=150.0)
    waits = waiting.find(crowded(loaders=(late,)))
    assert waits is not None and "94% of the wait was for 18 of 20 batches" in waits.why
    assert "num_workers=0" not in waits.instead


@pytest.mark.parametrize(
    "case",
    [
        crowded(replace(USE, busy_ms=1500.0, used=1.5)),  # a core is idle half of the time
        crowded(replace(USE, used=0.55)),  # other work has the cores
        crowded(replace(USE, used=None)),  # not known
        crowded(host=msgspec.structs.replace(HOST, user_ms=None)),  # of an older hotlap
        crowded(host=msgspec.structs.replace(HOST, user_ms=19.0)),  # the model needs more of them
        crowded(workers=0),
        crowded(world=2),
        replace(crowded(), gpu_phases=Phases(data=8.0, forward=12.0)),
    ],
)
def test_else_they_take_none(case: Measured) -> None:
    assert case.taken_ms == 0.0


def test_worker_copies() -> None:
    copied = {"objects": 3_000_000, "objects_in": "rows", "worker_growth_bytes": 200 * 2**20}
    found = worker_copies.find(changed(**copied))
    assert found is not None and "'rows'" in found.evidence and "200 MiB" in found.evidence
    for change in ({"workers": 0}, {"objects": 0}, {"worker_growth_bytes": 2**20}):
        assert worker_copies.find(changed(**{**copied, **change})) is None


def test_worker_processes_are_not_advised_to_a_loader_that_has_them() -> None:
    for workers, said in ((0, "in worker processes"), (4, "in more processes")):
        found = waiting.find(changed(workers=workers))
        assert found is not None and said in found.instead


@pytest.mark.parametrize(
    ("seen", "at_once", "made_once"),
    [
        ({"iterable": True}, False, False),
        ({"draws": True, **TENSORS}, False, False),
        ({}, False, True),
        ({"holds_tensors": True}, False, True),
        (TENSORS, True, True),
        ({"views": True, **TENSORS}, True, False),
        ({"views": False, **TENSORS}, False, True),
    ],
)
def test_how_a_batch_is_made_cheaper(seen: dict[str, object], at_once: bool, made_once: bool) -> None:
    for on_device in (False, True):
        now = changed(**{"iterable": False, **seen})
        found = waiting.find(replace(now, gpu_phases=now.phases if on_device else None))
        assert found is not None and ("a whole batch of indices" in found.instead) is at_once
        assert ("fits on the device" in found.instead) is (on_device and at_once)
        assert ("make them once" in found.instead) is made_once
