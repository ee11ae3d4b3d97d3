"""Verdicts from hand-made run folders: what bounds the step, which steps count, and what is said to be unknown."""

import inspect
import json
import math
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.diagnose.diagnose import diagnose, read_ranks, without
from hotlap.diagnose.findings import _modules, all_findings, compute
from hotlap.diagnose.findings._base import DRAINED_MS, DRAINED_SHARE, CpuUse, Measured
from hotlap.diagnose.steps import SteadySteps, mean_phases, spread, step_time, throughput
from hotlap.diagnose.verdict import verdict
from hotlap.levers import settled
from hotlap.records.diagnosis import NOT_STEADY, Diagnosis, Finding
from hotlap.records.durations import ms
from hotlap.records.errors import NothingMeasured, RecordError
from hotlap.records.files import write_record
from hotlap.records.phases import PHASES
from hotlap.records.profile import Profile
from hotlap.records.run import (
    BesidesFacts,
    Facts,
    HostFacts,
    Lever,
    LoaderFacts,
    OptimizerFacts,
    Phases,
    Problem,
    RootFacts,
    Step,
)
from hotlap.records.session import Session
from hotlap.records.telemetry import GpuSample, TelemetrySample
from made_runs import RUN, folder_of, write_lines

TRACES = Path(__file__).parents[1] / "trace" / "data"
LOADER = LoaderFacts(
    dataset="Cells",
    iterable=False,
    workers=0,
    batches=64,
    training=True,
    batch_bytes=30 << 20,
    file="/w/d.py",
    line=7,
    function="Cells.__getitem__",
)
ROOT = RootFacts(
    name="Net",
    parameters=9,
    modules=3,
    dtypes=("float32",),
    conv=1,
    conv_input_4d=True,
    file="/w/n.py",
    function="Net.forward",
)
FACTS = Facts(
    pid=1, rank=0, world=1, argv=("train.py",), python="3.11", torch="2.13", mode="train", samples_from="loader",
    loaders=(LOADER,), roots=(ROOT,), optimizers=(OptimizerFacts(name="SGD", builtin=True, tensors=4),),
)  # fmt: skip
CUDA = msgspec.structs.replace(FACTS, device="cuda", device_name="NVIDIA H100", capability=(9, 0))
QUEUED, DRAINED = 6.0, 0.1


def phases(**times: float) -> Phases:
    """All phases, ms; those that are not given take none."""
    return Phases(**{name: times.get(name, 0.0) for name in PHASES})


def step(number: int = 0, host: Phases | None = None, device: Phases | None = None, **fields: Any) -> Step:
    """A step whose times are the sums of its phases."""
    host = host or phases(forward=4.0, backward=6.0)
    wall = sum(getattr(host, name) or 0.0 for name in PHASES)
    on_device = {} if device is None else {"gpu_phases": device, "gpu_ms": sum(msgspec.structs.astuple(device))}
    return Step(**{"step": number, "time": float(number), "wall_ms": wall, "phases": host, **on_device, **fields})


def steps(count: int = 40, **fields: Any) -> list[Step]:
    return [step(number, **fields) for number in range(count)]


def with_walls(walls: Sequence[float], **fields: Any) -> list[Step]:
    return [step(at, phases(forward=wall), **fields) for at, wall in enumerate(walls)]


def measured(
    host: Phases,
    device: Phases | None = None,
    backlog: float | None = None,
    facts: Facts | None = FACTS,
    levers: tuple[str, ...] = (),
) -> Measured:
    return Measured(sum(msgspec.structs.astuple(host)), host, device, backlog, facts, levers=levers)


# bounds

MIXED = phases(data=2.0, h2d=1.0, forward=2.0, backward=3.0, optimizer=0.5, other=1.5)
BOUNDS: dict[str, tuple[str, Phases, Phases | None, float | None]] = {
    "cpu, input": ("input", phases(data=6.0, forward=2.0, backward=2.0), None, None),
    "cpu, compute": ("compute", phases(data=1.0, forward=4.0, backward=4.0, optimizer=1.0), None, None),
    "cpu, unknown": ("unknown", phases(forward=2.0, other=8.0), None, None),
    "cuda, input": ("input", phases(data=6.0, forward=4.0), phases(data=5.5, forward=4.0, other=0.5), QUEUED),
    "cuda, h2d": ("h2d", phases(h2d=7.0, forward=3.0), phases(h2d=7.0, forward=3.0), QUEUED),
    "cuda, launch": ("launch", phases(forward=5.0, backward=5.0), phases(forward=5.0, backward=5.0), DRAINED),
    "cuda, compute": ("compute", phases(forward=1.0, other=9.0), phases(forward=4.0, backward=6.0), QUEUED),
    "cuda, unknown": ("unknown", MIXED, phases(forward=1.0, other=9.0), DRAINED),
    "cuda, a wait that the device does not feel": (
        "compute", phases(data=8.0, forward=2.0), phases(data=0.1, forward=3.9, backward=6.0), QUEUED,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("bound", "host", "device", "backlog"), BOUNDS.values(), ids=BOUNDS.keys())
def test_bound(tmp_path: Path, bound: str, host: Phases, device: Phases | None, backlog: float | None) -> None:
    lines = steps(host=host, device=device, backlog_ms=backlog)
    found = diagnose(folder_of(tmp_path, (lines, FACTS if device is None else CUDA)))
    assert found.bound == bound
    assert found.findings[0].bound == bound
    assert [finding.share for finding in found.findings] == sorted((f.share for f in found.findings), reverse=True)
    assert (found.mode, found.steps, found.steady_steps, found.warmup_steps, found.settled) == (
        "train",
        40,
        39,
        1,
        True,
    )
    assert found.device == ("cpu" if device is None else "cuda")
    assert found.gpu_ms == (None if device is None else pytest.approx(10.0))
    assert found.unknown == ()


PACED = {
    "forward and backward by the host": (phases(forward=4.0, backward=4.0), "launch", 0.8, 0.2),
    "the forward alone": (phases(forward=4.0), "compute", 0.4, 0.6),
    "nothing": (phases(), "compute", None, 1.0),
}


@pytest.mark.parametrize(("paced", "bound", "launch", "compute"), PACED.values(), ids=PACED.keys())
def test_a_phase_that_the_host_paces_is_not_computing(
    tmp_path: Path, paced: Phases, bound: str, launch: float | None, compute: float
) -> None:
    """Seen on public scripts: a forward of 9.92 ms on the host and 9.97 between events was told computing."""
    on_device = phases(forward=4.0, backward=4.0, optimizer=2.0)
    lines = steps(host=on_device, device=on_device, gpu_paced=paced, backlog_ms=QUEUED)
    found = diagnose(folder_of(tmp_path, (lines, CUDA)))
    shares = {finding.id: finding.share for finding in found.findings}
    assert found.bound == bound
    assert shares.get("launch") == (None if launch is None else pytest.approx(launch))
    assert shares["compute"] == pytest.approx(compute)
    told = next(finding.evidence for finding in found.findings if finding.id == "compute")
    assert ("forward" in told) == (not paced.forward)


@pytest.mark.parametrize(("busy", "bound"), [(94.0, "compute"), (81.0, "compute"), (79.0, "launch"), (30.0, "launch")])
def test_a_device_that_nvml_saw_busy_did_not_wait_for_the_host(tmp_path: Path, busy: float, bound: str) -> None:
    """A loss that is read inside of the forward leaves the host without a lead, whoever set the pace."""
    on_device = phases(forward=5.0, backward=5.0)
    lines = steps(host=on_device, device=on_device, gpu_paced=on_device, backlog_ms=QUEUED)
    run = folder_of(tmp_path, (lines, msgspec.structs.replace(CUDA, device_uuid="GPU-a")))
    seen = [TelemetrySample(time=at, gpus=(GpuSample(index=7, uuid="GPU-a", busy_percent=busy),)) for at in range(40)]
    write_lines(run / "telemetry.jsonl", seen)
    found = diagnose(run)
    assert found.bound == bound
    assert f"a kernel ran {busy:.0f}% of the time, by NVML" in found.findings[0].evidence


@pytest.mark.parametrize(("file", "said"), [(None, True), ("trace.json.gz", False)])
def test_a_profile_that_was_not_taken_says_so(tmp_path: Path, file: str | None, said: bool) -> None:
    run = folder_of(tmp_path, (steps(), FACTS))
    before = verdict(run).findings
    write_record(run / "rank-0" / "profile.json", Profile(file=file, wanted=3, note="the run ended before it"))
    found = verdict(run)
    assert ("no profile was taken: the run ended before it" in found.unknown) == said
    assert ["--profile" in one.why for one in (before[0], found.findings[0])] == [True, False]


def test_a_profile_that_a_killed_process_never_took_says_so(tmp_path: Path) -> None:
    """Seven steps of 24 s, ended by SIGTERM: "run with --profile" was the advice to a run with --profile."""
    run = folder_of(tmp_path, (steps(), FACTS))
    Session(folder=str(run), package="", profile_steps=3).write(run / "session.json")
    found = verdict(run)
    assert any(one.startswith("no profile was taken: the process was ended") for one in found.unknown)
    assert "--profile" not in found.findings[0].why


def test_steps_that_were_not_kept_are_told(tmp_path: Path) -> None:
    run = folder_of(tmp_path, (steps(), FACTS))
    assert not [text for text in diagnose(run).unknown if "hotlap keeps the first and the last" in text]
    write_lines(run / "rank-0" / "steps-last.jsonl", [step(10**6 + at) for at in range(20)])
    found = diagnose(run)
    assert any(text.startswith("999,960 steps are not in the numbers") for text in found.unknown)
    assert found.steps == 60


def test_nothing_notable_has_no_bound(tmp_path: Path) -> None:
    found = diagnose(folder_of(tmp_path, (steps(host=Phases(), wall_ms=5.0), FACTS)))
    assert (found.bound, found.findings) == ("unknown", ())
    assert found.next.startswith("hotlap found nothing that it can change")


@pytest.mark.parametrize("device", [None, MIXED])
@pytest.mark.parametrize("backlog", [DRAINED, QUEUED])
def test_shares_are_of_one_whole(tmp_path: Path, device: Phases | None, backlog: float) -> None:
    lines = steps(host=MIXED, device=device, backlog_ms=None if device is None else backlog)
    found = diagnose(folder_of(tmp_path, (lines, CUDA if device else FACTS)))
    h2d_on_the_host = 0.0 if device else 0.1  # a copy is a cause on a device only
    assert sum(finding.share for finding in found.findings) + h2d_on_the_host == pytest.approx(1.0)
    assert sum(msgspec.structs.astuple(found.phases)) == pytest.approx(10.0)
    assert len({finding.id for finding in found.findings}) == len(found.findings)


@given(st.lists(st.floats(0, 1e4), min_size=12, max_size=12).filter(lambda ms: sum(ms) > 1), st.floats(0, 1e4))
def test_findings_never_claim_more_than_the_step(times: list[float], backlog: float) -> None:
    for facts, device, queued in ((FACTS, None, None), (CUDA, times[6:], backlog), (None, times[6:], None)):
        host = Phases(**dict(zip(PHASES, times[:6], strict=True)))
        if not sum(times[:6]) or (device is not None and not sum(device)):
            continue
        on_device = None if device is None else Phases(**dict(zip(PHASES, device, strict=True)))
        seen = [find(measured(host, on_device, queued, facts)) for find in all_findings().values()]
        assert sum(finding.share for finding in seen if finding) <= 1 + 1e-9


def test_levers_that_are_in_are_not_offered(tmp_path: Path) -> None:
    run = folder_of(tmp_path, (steps(), FACTS), levers=(Lever(name="compile"), Lever(name="attention")))
    (finding,) = diagnose(run).findings
    assert "fused-optimizer" in finding.levers
    assert not {"compile", "attention"} & set(finding.levers)
    assert "levers in: compile, attention" in finding.evidence
    assert "fused-optimizer" in diagnose(run).next


def test_levers_that_are_in_are_not_offered_by_a_trace_either(tmp_path: Path) -> None:
    offered = {}
    for levers in ((), (Lever(name="compile"),)):
        run = folder_of(tmp_path / str(len(levers)), (steps(), CUDA), levers=levers)
        shutil.copy(TRACES / "compiled-step.json.gz", run / "rank-0" / "trace.json.gz")
        offered[len(levers)] = {name for one in verdict(run).findings for name in one.levers}
    assert offered[0] - offered[1] == {"compile"}


# each finding, on both sides of its threshold


def fires(name: str, *given_: Any, **more: Any) -> Finding | None:
    return all_findings()[name](measured(*given_, **more))


def test_every_finding_is_tested_here() -> None:
    elsewhere = {"repeated_data", "worker_copies"}  # test_input_findings.py
    elsewhere |= {"cpu_crowded", "cpu_quota", "cpu_steal", "page_faults"}  # test_starved.py
    elsewhere |= {"late_mallocs", "peak_memory"}  # test_late_mallocs.py, test_peak_memory.py
    elsewhere |= {"memory_grows", "idle_gradients", "memory_at_line", "held_weights"}  # test_memory_findings.py
    elsewhere |= {"fragmentation", "startup_peak"}
    elsewhere |= {name for name, module in _modules().items() if "named=" in inspect.getsource(module)}
    elsewhere |= {"communication", "workers_restart"}  # test_communication.py, test_workers_restart.py
    elsewhere |= {"unused_search"}  # test_named_findings.py
    assert set(all_findings()) - elsewhere == {
        "compute",
        "h2d",
        "host_code",
        "input",
        "launch",
        "not_looked_at",
        "own_graph",
    }


def test_finding_input() -> None:
    found = fires("input", phases(data=5.0, forward=5.0))
    assert found is not None
    assert (found.share, found.levers) == (0.5, ("loader-workers",))
    assert "0 workers" in found.evidence and "in the training process" in found.why
    assert found.where is not None
    assert (found.where.file, found.where.line, found.where.function) == ("/w/d.py", 7, "Cells.__getitem__")
    busy = msgspec.structs.replace(LOADER, workers=4, iterable=True)
    on_device = fires(
        "input", phases(data=9.0, forward=1.0), phases(data=1.0, forward=9.0), QUEUED,
        msgspec.structs.replace(CUDA, loaders=(busy,)),
    )  # fmt: skip
    assert on_device is not None
    assert on_device.share == pytest.approx(0.1)
    assert "is idle for 1.00 ms" in on_device.evidence and "4 workers" in on_device.evidence
    assert "more slowly" in on_device.why and "cpu-threads" in on_device.levers

    for late, late_ms, said, instead in (
        (
            19,
            99.0,
            "more slowly than the model uses them up: 99% of the wait was for 19 of 20 batches",
            "more processes",
        ),
        (3, 5.0, "the workers keep up: 17 of 20 batches were ready; receiving a batch", "larger"),
        (0, 0.0, "every batch was ready; receiving a batch", "larger"),
        (3, 93.0, "uses them up: 93% of the wait was for 3 of 20 batches", "more processes"),  # they come in waves
    ):
        waited = msgspec.structs.replace(busy, asked=20, late=late, asked_ms=100.0, late_ms=late_ms)
        of_workers = fires(
            "input", phases(data=5.0, forward=5.0), facts=msgspec.structs.replace(FACTS, loaders=(waited,))
        )
        assert of_workers is not None and instead in of_workers.instead and said in of_workers.why

    assert fires("input", phases(data=5.0, forward=95.0)) is not None
    assert fires("input", phases(data=4.9, forward=95.1)) is None
    evaluating = msgspec.structs.replace(LOADER, training=False)
    assert fires("input", phases(data=9.0), facts=msgspec.structs.replace(FACTS, loaders=(evaluating,))) is None
    assert fires("input", phases(data=9.0), facts=None) is None


def test_finding_h2d() -> None:
    copying = phases(h2d=2.0, forward=98.0)
    found = fires("h2d", copying, copying, QUEUED, CUDA)
    assert found is not None
    assert found.share == pytest.approx(0.02)
    assert "2.00 ms of device time" in found.evidence and "30.0 MiB, from pageable" in found.evidence
    pinned = msgspec.structs.replace(CUDA, loaders=(msgspec.structs.replace(LOADER, pin_memory=True),))
    said = fires("h2d", copying, copying, QUEUED, pinned)
    assert said is not None and "from pinned memory" in said.evidence and "staging" not in said.why
    assert fires("h2d", copying, phases(h2d=1.9, forward=98.1), QUEUED, CUDA) is None
    assert fires("h2d", copying) is None


@pytest.mark.parametrize(
    ("took", "size", "tensors", "waits"),
    [
        (3.58, 2_064_896, 2, True),  # bearing_faults on a GPU that others used too: its trace has 0.04 ms
        (3.58, 20_000_000, 2, False),
        (2.1, 2_064_896, 2, False),
        (3.58, 4_000, 100, False),  # many small ones
        (3.58, 0, 0, False),  # not known
    ],
)
def test_what_no_link_takes_so_long_for_is_a_wait(took: float, size: int, tensors: int, waits: bool) -> None:
    loader = msgspec.structs.replace(LOADER, batch_bytes=size, batch_tensors=tensors)
    spent = phases(h2d=took, forward=10.0)
    found = fires("h2d", spent, spent, QUEUED, msgspec.structs.replace(CUDA, loaders=(loader,)))
    assert found is not None and found.id == ("waits-in-copies" if waits else "h2d")
    assert (found.bound, bool(found.levers)) == (("unknown", False) if waits else ("h2d", True))


MOST = compute.LINE_OF


def test_what_computes_is_what_an_optimizer_updates() -> None:
    small = msgspec.structs.replace(ROOT, name="Student", parameters=5, optimized=5)
    large = msgspec.structs.replace(ROOT, name="Teacher", optimized=0)
    layer = msgspec.structs.replace(ROOT, name="Linear", owner="Field", function="Field.forward", parameters=1)
    for roots, name, others in (
        ((large, small), "Student", "; forwards of Teacher, which no optimizer updates, are included"),
        ((msgspec.structs.replace(large, training=False), small), "Student", ""),
        ((large, msgspec.structs.replace(small, optimized=0)), "Teacher and Student", MOST.format("Teacher")),
        ((msgspec.structs.replace(large, optimized=1), small), "Teacher and Student", MOST.format("Teacher")),
        ((ROOT, msgspec.structs.replace(small, optimized=None)), "Net and Student", MOST.format("Net")),
        ((ROOT, msgspec.structs.replace(ROOT, parameters=1)), "Net", ""),
        ((ROOT, msgspec.structs.replace(ROOT, name="Encoder", parameters=1, part_of="Net")), "Net", ""),
        ((layer, msgspec.structs.replace(layer, name="Block", function="Block.forward")), "Field", ""),
        ((ROOT, layer), "Net and Field", MOST.format("Net")),
        ((msgspec.structs.replace(layer, name="Block", function="Block.forward"),), "Block", ""),
        (
            [msgspec.structs.replace(ROOT, name=name, parameters=at) for at, name in enumerate("ABCDE")],
            "E, D, C and 2 more",
            MOST.format("E"),
        ),
    ):
        facts = msgspec.structs.replace(FACTS, roots=tuple(roots))
        found = fires("compute", phases(forward=4.0, backward=6.0), facts=facts)
        assert found is not None and found.title == f"computing {name}"
        assert found.evidence.rpartition("no autocast")[2] == others


@pytest.mark.parametrize(
    ("line", "kept"),
    [("for a, b in zip(net.parameters(), target.parameters()): b.data.copy_(a.data)", False), ("target = net", True)],
)
def test_what_a_target_network_gives_changes_as_its_weights_are_copied(line: str, kept: bool, tmp_path: Path) -> None:
    """TD3 was told to compute what its target critic returns once, before the loop."""
    file = tmp_path / "train.py"
    file.write_text(f"{line}\n")
    one = BesidesFacts(name="Target", of=10, steps=10, calls=10, took_ms=30.0, place=(str(file), 1, "train"))
    root = msgspec.structs.replace(ROOT, file=str(file), line=1)
    found = fires(
        "host_code", phases(forward=5.0, other=5.0), facts=msgspec.structs.replace(FACTS, roots=(root,), besides=(one,))
    )
    assert found is not None and ("never changes" in found.instead) is kept
    assert found.share == pytest.approx(0.3), "3 ms of the 5 outside of data, model and optimizer"


def test_a_model_that_runs_besides_its_training_forward_is_told_by_name() -> None:
    own = BesidesFacts(
        name="Net", trained=True, of=40, steps=40, calls=80, took_ms=60.0, place=("/w/t.py", 9, "main"),
        inference_mode=True,
    )  # fmt: skip
    target = BesidesFacts(name="Target", of=40, steps=38, calls=38, took_ms=80.0)
    rare = msgspec.structs.replace(own, steps=4, took_ms=900.0)

    def told(*besides: BesidesFacts) -> Finding | None:
        facts = msgspec.structs.replace(FACTS, besides=besides)
        return fires("host_code", phases(other=3.0, forward=7.0), facts=facts)

    found = told(own, rare)
    assert found is not None and found.title == "Net runs besides the training forward" and not found.named
    assert found.where is not None and (found.where.line, found.id) == (9, "host-code")
    assert (
        "under torch.inference_mode, 2 times a step, 1.50 ms on the host; all such forwards 1.50 ms of"
        in found.evidence
    )
    lines = told(msgspec.structs.replace(own, lines=2, part=0.6))
    assert lines is not None and "1.50 ms on the host, from 2 lines, 60% of it from this one; all" in lines.evidence
    both = told(own, target)
    assert both is not None and both.title.startswith("Target, which no optimizer updates, runs besides")
    assert "under torch.no_grad, 1 time a step, 2.00 ms on the host; all such forwards 3.50 ms of" in both.evidence
    for others in ([rare], [msgspec.structs.replace(own, took_ms=50.0)], [msgspec.structs.replace(own, of=0)]):
        less = told(*others)
        assert less is not None and less.title.startswith("code of the loop")


def test_finding_host_code() -> None:
    found = fires("host_code", phases(other=1.0, forward=9.0))
    assert found is not None
    assert (found.id, found.bound, found.levers) == ("host-code", "unknown", ())
    assert "has no DataLoader" not in found.evidence
    bare = fires("host_code", phases(other=1.0), facts=msgspec.structs.replace(FACTS, loaders=()))
    assert bare is not None and "has no DataLoader" in bare.evidence
    device = fires("host_code", phases(other=3.0), phases(other=2.0, forward=8.0), QUEUED, CUDA)
    assert device is not None and "3.00 ms of host time a step, 2.00 ms on the device" in device.evidence
    assert fires("host_code", phases(other=0.9, forward=9.1)) is None
    assert fires("host_code", phases(other=9.0), phases(other=0.1, forward=9.0), QUEUED, CUDA) is None
    functions = fires("host_code", phases(other=3.0, backward=2.0))
    assert functions.why.startswith("the forward and the update are in here: for functions ")
    assert "in here" not in found.why
    layers = msgspec.structs.replace(FACTS, roots=(msgspec.structs.replace(ROOT, owner="Field"),))
    held = fires("host_code", phases(other=1.0, forward=9.0), facts=layers)
    assert held.why.startswith(
        "operations of Field between the calls of its parts are in here; `hotlap run --profile` names"
    )
    updated = fires("host_code", phases(other=3.0, backward=2.0, optimizer=1.0))
    assert updated.why.startswith("the forward is in here: for functions ")
    called = msgspec.structs.replace(FACTS, forwards=9)
    inside = fires("host_code", phases(other=3.0, backward=2.0, optimizer=1.0), facts=called)
    assert inside.why.startswith("the forward is in here: hotlap does not see modules called without gradients, ")
    assert "functions" not in inside.why


@pytest.mark.parametrize(("step_ms", "limit"), [(2.0, DRAINED_MS), (100.0, 100.0 * DRAINED_SHARE)])
def test_findings_launch_and_compute_part_at_an_empty_queue(step_ms: float, limit: float) -> None:
    model = phases(forward=step_ms * 0.75, data=step_ms * 0.25)
    for backlog, launch in ((0.99 * limit, True), (1.01 * limit, False)):
        waits = fires("launch", model, model, backlog, CUDA)
        computes = fires("compute", model, model, backlog, CUDA)
        assert (waits is not None, computes is not None) == (launch, not launch)
        found = waits or computes
        assert found is not None
        assert found.share == pytest.approx(0.75)
        assert "compile" in found.levers
        assert found.where is not None and found.where.function == "Net.forward"


@pytest.mark.parametrize(("changes", "said"), [
    ({"constants": True}, "as buffers, in `__init__`"),
    ({"mask_checks": True}, "`tgt_is_causal=True`"),
])  # fmt: skip
def test_finding_launch_names_operations_that_are_not_needed(changes: dict[str, Any], said: str) -> None:
    model = phases(forward=4.0)
    makes = msgspec.structs.replace(CUDA, roots=(msgspec.structs.replace(CUDA.roots[0], **changes),))
    without, found = (fires("launch", model, model, DRAINED, facts) for facts in (CUDA, makes))
    assert without is not None and found is not None
    assert said in found.instead and said not in without.instead


def test_finding_launch_is_of_a_device_only() -> None:
    assert fires("launch", phases(forward=9.0)) is None
    assert fires("launch", phases(forward=9.0), phases(forward=9.0), None, CUDA) is None


def test_finding_compute_needs_a_model_that_computes() -> None:
    assert fires("compute", phases(data=9.0, other=1.0)) is None
    unseen = fires("compute", phases(forward=9.0), facts=None)
    assert unseen is not None
    assert (unseen.title, unseen.where, unseen.levers) == ("computing", None, ())
    compiled = msgspec.structs.replace(CUDA, roots=(msgspec.structs.replace(ROOT, compiled=True, autocast="bfloat16"),))
    found = fires("compute", phases(forward=9.0), phases(forward=9.0), QUEUED, compiled)
    assert found is not None
    assert not {"compile", "bf16-autocast"} & (set(found.levers) - settled(compiled))
    assert "under autocast to bfloat16" in found.evidence


@pytest.mark.parametrize(("capability", "half"), [((7, 5), "float16"), ((9, 0), "lower precision on the tensor cores")])
def test_a_card_without_bfloat16_is_told_how_to_compute_in_float16(capability: tuple[int, int], half: str) -> None:
    facts = msgspec.structs.replace(CUDA, capability=capability)
    found = fires("compute", phases(forward=9.0), phases(forward=9.0), QUEUED, facts)
    assert found is not None and found.instead.startswith(half)
    assert ("GradScaler" in found.instead) is (capability < (8, 0))


def test_a_model_with_sparse_gradients_is_not_to_be_compiled() -> None:
    """word2vec: `compile` was the first lever, and raises."""
    sparse = msgspec.structs.replace(FACTS, roots=(msgspec.structs.replace(ROOT, sparse=True),))
    assert ("compile" in settled(sparse), "compile" in settled(FACTS)) == (True, False)


@pytest.mark.parametrize("able", [True, False])
def test_on_a_cpu_fewer_bits_come_last(able: bool) -> None:
    """Seen on public scripts: bf16 took 60 and 69% longer than float32 on a CPU that multiplies it in hardware."""
    facts = msgspec.structs.replace(FACTS, cpu_bf16=able)
    found = fires("compute", phases(forward=900.0), facts=facts)
    assert found is not None and found.instead.startswith("fewer passes")
    assert found.levers[-1] == "bf16-autocast" and len(found.levers) > 3
    assert ("bfloat16 where it measures faster" in found.instead) is able


def test_on_a_cpu_the_first_lever_is_one_that_wins() -> None:
    """On public scripts a fused update and memory that is kept were never slower; channels_last and compile were."""
    host = HostFacts(steps=9, faults=9000.0, system_ms=100.0)

    def levers(update: float, host: HostFacts | None, use: CpuUse) -> tuple[str, ...]:
        facts = msgspec.structs.replace(FACTS, host=host, threads=1)
        times = phases(forward=900.0 - update, optimizer=update)
        found = compute.find(Measured(900.0, times, None, None, facts, cpu=use))
        assert found is not None
        return found.levers

    free, full = CpuUse(usable=2, cores=2, busy_ms=1000.0), CpuUse(usable=2, cores=2, busy_ms=1900.0)
    assert levers(90.0, host, free)[:3] == ("host-allocator", "fused-optimizer", "cpu-threads")
    assert levers(20.0, None, full)[0] not in {"host-allocator", "fused-optimizer", "cpu-threads"}, "these win nothing"


@pytest.mark.parametrize(("levers", "lower"), [((), True), (("compile",), True), (("bf16-autocast",), False)])
def test_what_a_recipe_does_already_is_not_proposed(levers: tuple[str, ...], lower: bool) -> None:
    found = fires("compute", phases(forward=9.0), phases(forward=9.0), QUEUED, CUDA, levers=levers)
    assert found is not None
    assert ("lower precision" in found.instead) is lower and "a better memory format" in found.instead
    assert ("the script uses no autocast; levers in: " if levers else "no autocast") in found.evidence


@pytest.mark.parametrize("changes", [{"softmax": True}, {"sdpa": True}])
def test_attention_by_a_mask_with_little_in_it_has_a_kernel(changes: dict[str, Any]) -> None:
    facts = msgspec.structs.replace(CUDA, roots=(msgspec.structs.replace(ROOT, **changes),))
    found = fires("compute", phases(forward=9.0), phases(forward=9.0), QUEUED, facts)
    assert found is not None and "FlexAttention with a block mask" in found.instead


def test_cudnn_is_to_time_its_algorithms_where_the_script_leaves_it_to_choose() -> None:
    for changes, told in (({}, True), ({"cudnn_benchmark": True}, False), ({"deterministic": True}, False)):
        facts = msgspec.structs.replace(CUDA, **changes)
        found = fires("compute", phases(forward=9.0), phases(forward=9.0), QUEUED, facts)
        assert found is not None and ("cudnn.benchmark = True" in found.instead) is told


def test_of_a_large_vocabulary_the_advice_is_about_its_logits() -> None:
    def instead(**fields: Any) -> str:
        roots = (msgspec.structs.replace(ROOT, classes=fields.pop("classes", 50257)),)
        facts = msgspec.structs.replace(CUDA, roots=roots, **fields)
        return str(fires("compute", phases(forward=9.0), phases(forward=9.0), QUEUED, facts).instead)

    assert "`head(hidden[:, -1:])`" in instead(mode="inference")
    assert "`F.linear_cross_entropy`" in instead()
    assert "padded from 50257 to a multiple of 64" in instead() and "padded" not in instead(classes=50304)
    assert "logits" not in instead(classes=1000) + instead(mode="inference", classes=1000)


@pytest.mark.parametrize(
    ("dtypes", "offered"), [(("float32",), True), ((), True), (("float32", "int8"), True), (("float64",), False)]
)
def test_lower_precision_is_offered_where_there_are_float32_weights(dtypes: tuple[str, ...], offered: bool) -> None:
    facts = msgspec.structs.replace(CUDA, roots=(msgspec.structs.replace(ROOT, dtypes=dtypes),))
    assert ({"bf16-autocast", "tf32"} & settled(facts) == set()) is offered


# ranks


def rank_facts(rank: int, world: int, **fields: Any) -> Facts:
    return msgspec.structs.replace(FACTS, rank=rank, world=world, pid=rank + 1, **fields)


def test_the_slowest_rank_decides_and_the_rates_add_up(tmp_path: Path) -> None:
    quick, slow = with_walls([10.0] * 40, samples=20), with_walls([40.0] * 40, samples=20)
    found = diagnose(folder_of(tmp_path, (quick, rank_facts(0, 2)), (slow, rank_facts(1, 2))))
    assert (found.ranks, found.step_ms) == (2, pytest.approx(40.0))
    assert found.throughput == pytest.approx(2000 + 500)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_rank_without_its_facts_still_counts(tmp_path: Path, missing: int) -> None:
    lines = with_walls([10.0] * 40, samples=20), with_walls([12.0] * 40, samples=24)
    facts = [None if number == missing else rank_facts(number, 2) for number in range(2)]
    found = diagnose(folder_of(tmp_path, *zip(lines, facts, strict=True)))
    assert (found.ranks, found.step_ms) == (2, pytest.approx(12.0))
    assert found.throughput == pytest.approx(4000)
    assert any("died before" in text for text in found.unknown) is (missing == 0)


def test_a_rank_that_does_not_know_its_rows_leaves_the_rate_unknown(tmp_path: Path) -> None:
    ranks = (with_walls([10.0] * 40, samples=20), rank_facts(0, 2)), (with_walls([10.0] * 40), rank_facts(1, 2))
    assert diagnose(folder_of(tmp_path, *ranks)).throughput is None


def test_processes_that_are_no_ranks_of_each_other_are_not_added_up(tmp_path: Path) -> None:
    short, long = with_walls([90.0] * 9, samples=9), with_walls([10.0] * 40, samples=20)
    found = diagnose(folder_of(tmp_path, (short, FACTS), (long, FACTS)))
    assert (found.ranks, found.steps, found.step_ms) == (1, 40, pytest.approx(10.0))
    assert found.throughput == pytest.approx(2000)


def test_a_rank_that_only_infers_beside_one_that_trains_is_left_out(tmp_path: Path) -> None:
    inferring = with_walls([70.0] * 90, kind="inference")
    found = diagnose(folder_of(tmp_path, (inferring, None), (steps(), None)))
    assert (found.mode, found.ranks, found.step_ms) == ("train", 1, pytest.approx(10.0))


# which steps count


def test_no_steady_state_is_said(tmp_path: Path) -> None:
    found = diagnose(folder_of(tmp_path, (with_walls([100 * 0.6**at for at in range(12)]), FACTS)))
    assert (found.settled, found.steps, found.warmup_steps, found.steady_steps) == (False, 12, 6, 6)
    assert any(text.startswith("the step time was still changing") for text in found.unknown)


def test_evaluation_compiles_and_probes_are_left_out(tmp_path: Path) -> None:
    lines = with_walls([10.0] * 60)
    for at, field in ((20, "evaluation"), (30, "probe"), (40, "compiles")):
        lines[at] = step(at, phases(other=900.0), **{field: 1 if field == "compiles" else True})
    found = diagnose(folder_of(tmp_path, (lines, FACTS)))
    assert (found.steps, found.steady_steps) == (60, 56)
    assert found.spread.p90 == found.step_ms == pytest.approx(10.0)
    assert found.phases.other == 0.0
    walls = [line.wall_ms for line in lines[found.warmup_steps :] if not line.probe]
    assert (found.evaluations, found.evaluating) == (1, pytest.approx(lines[20].wall_ms / sum(walls)))


def test_what_hotlap_itself_takes_is_no_part_of_the_time(tmp_path: Path) -> None:
    """A trace that was written in 17 s made evaluations of 96% to 60%, and all other shares as wrong."""
    lines = with_walls([10.0] * 60)
    for at, took, probe in ((20, 9000.0, False), (30, 9000.0, True), (40, 17_000.0, True)):
        lines[at] = step(at, phases(other=took), evaluation=at < 40, probe=probe)
    found = verdict(folder_of(tmp_path, (lines, FACTS)))
    shares = {one.id: one.share for one in found.findings}
    assert found.evaluations == 1
    assert found.evaluating == pytest.approx(9000 / (9000 + 10.0 * (57 - found.warmup_steps)))
    assert shares["evaluation"] == pytest.approx(found.evaluating)
    assert sum(shares.values()) == pytest.approx(1.0, abs=0.01)


def test_an_evaluation_in_most_steps_is_part_of_the_loop(tmp_path: Path) -> None:
    found = diagnose(folder_of(tmp_path, (with_walls([10.0] * 40, evaluation=True), FACTS)))
    assert (found.steady_steps, found.settled) == (39, True)
    assert (found.evaluations, found.evaluating) == (0, 0.0)


@pytest.mark.parametrize("count", [40, 41])
def test_an_evaluation_in_every_second_step_is_not(tmp_path: Path, count: int) -> None:
    """Whether one more or one less of them was seen: a trial of the one kind is compared with one of the other."""
    lines = [step(at, phases(forward=10.0 + 2.0 * (at % 2)), evaluation=at % 2 == 1) for at in range(count)]
    found = diagnose(folder_of(tmp_path, (lines, FACTS)))
    assert (found.evaluations, found.steady_steps) == (20, (count - 1) // 2) and found.step_ms == pytest.approx(10.0)


def test_a_teacher_in_each_step_is_part_of_the_loop_where_few_steps_are_looked_at(tmp_path: Path) -> None:
    """Of steps that are only timed nobody knows that a forward without gradients runs in them too."""
    thin = msgspec.structs.replace(step(), phases=None)
    lines = [step(at, phases(forward=10.0), evaluation=True) if at < 40 or at % 8 == 0 else thin for at in range(400)]
    found = diagnose(folder_of(tmp_path, (lines, FACTS)))
    assert (found.evaluations, found.steady_steps) == (0, 399)
    assert found.phases.forward == pytest.approx(10.0)
    rare = [msgspec.structs.replace(line, evaluation=at == 80) for at, line in enumerate(lines)]
    assert diagnose(folder_of(tmp_path / "rare", (rare, FACTS))).evaluations == 1


def test_a_step_whose_update_was_skipped_is_a_step(tmp_path: Path) -> None:
    lines = [step(at, skipped=at == 20) for at in range(40)]
    assert diagnose(folder_of(tmp_path, (lines, FACTS))).steady_steps == 39


def test_a_host_that_issues_many_steps_and_then_waits(tmp_path: Path) -> None:
    """Seen on an H200: replays of a whole step, with a value read every 100 steps. A loader's bursts are another thing:
    the device waits for them too."""
    walls = [1.63 * 20 if at % 20 == 19 else 0.01 for at in range(400)]
    issued = [step(wall_ms=wall, gpu_ms=1.63, backlog_ms=10.0) for wall in walls]
    found = diagnose(folder_of(tmp_path / "issued", (issued, FACTS)))
    assert (found.clock, found.step_ms) == ("device", pytest.approx(1.63))
    fed = [step(wall_ms=wall, gpu_ms=wall, backlog_ms=0.0) for wall in walls]
    assert diagnose(folder_of(tmp_path / "fed", (fed, FACTS))).clock == "host"


def test_steps_of_which_the_device_is_not_known_do_not_change_its_pace(tmp_path: Path) -> None:
    ahead = [step(wall_ms=40.0 if at % 20 == 19 else 1.0, gpu_ms=None if at % 20 == 19 else 25.0) for at in range(400)]
    found = diagnose(folder_of(tmp_path, (ahead, FACTS)))
    assert (found.clock, found.step_ms) == ("device", pytest.approx(25.0))


def test_times_that_four_steps_share_are_no_sign_of_a_queue(tmp_path: Path) -> None:
    """Of very short steps the device is asked at each fourth; a loader of four workers may stall as often."""
    lines = [step(wall_ms=17.0 if at % 4 == 3 else 1.0, gpu_ms=5.0, backlog_ms=0.1) for at in range(400)]
    found = diagnose(folder_of(tmp_path, (lines, FACTS)))
    assert (found.clock, found.step_ms) == ("host", pytest.approx(5.0, rel=0.05))


def test_replays_of_the_scripts_own_graphs(tmp_path: Path) -> None:
    facts = msgspec.structs.replace(FACTS, replayed=("forward", "backward", "optimizer"))
    found = diagnose(folder_of(tmp_path, (steps(host=phases(other=10.0), device=phases(other=10.0)), facts)))
    assert [(finding.id, finding.share) for finding in found.findings[:1]] == [("own-graph", pytest.approx(1.0))]
    assert "host-code" not in {finding.id for finding in found.findings}
    assert any(what.startswith("forward, backward, optimizer can't be timed separately") for what in found.unknown)
    plain = diagnose(folder_of(tmp_path / "plain", (steps(host=phases(other=10.0)), FACTS)))
    assert "own-graph" not in {finding.id for finding in plain.findings}


def test_inference_is_judged_where_nothing_trains(tmp_path: Path) -> None:
    lines = steps(host=phases(forward=10.0), kind="inference", samples=8)
    found = diagnose(folder_of(tmp_path, (lines, msgspec.structs.replace(FACTS, samples_from="forward"))))
    assert (found.mode, found.bound, found.throughput_unit) == ("inference", "compute", "rows/s")
    assert found.throughput == pytest.approx(800)


def test_forwards_before_the_training_are_not_steps_of_it(tmp_path: Path) -> None:
    found = diagnose(folder_of(tmp_path, (with_walls([99.0] * 30, kind="inference") + steps(), FACTS)))
    assert (found.mode, found.steps, found.step_ms) == ("train", 40, pytest.approx(10.0))


# numbers


def test_a_host_that_runs_ahead_times_only_its_issuing(tmp_path: Path) -> None:
    """Seen on an H100: 2.1 ms a step on the host, whose queue takes a thousand kernels, and 25.5 ms on the device."""
    ahead = [step(samples=4, wall_ms=2.0, gpu_ms=25.0, backlog_ms=23.0 * at) for at in range(40)]
    found = diagnose(folder_of(tmp_path / "ahead", (ahead, FACTS)))
    assert (found.clock, found.step_ms) == ("device", pytest.approx(25.0))
    assert found.spread.p50 == pytest.approx(25.0)
    assert found.throughput == pytest.approx(160)
    pace = [step(samples=4, wall_ms=25.0, gpu_ms=25.0 + at % 2, backlog_ms=23.0) for at in range(40)]
    assert diagnose(folder_of(tmp_path / "pace", (pace, FACTS))).clock == "host"
    last = [*ahead, step(samples=4, wall_ms=2.0), step(samples=4, wall_ms=2.0)]
    assert diagnose(folder_of(tmp_path / "last", (last, FACTS))).clock == "device"  # written before the device was done
    half = [*ahead[:20], *steps(count=20)]
    assert diagnose(folder_of(tmp_path / "half", (half, FACTS))).clock == "host"  # the device's clock is not known


def test_a_loop_that_reads_ahead_has_a_rate(tmp_path: Path) -> None:
    """timm's prefetcher: no batch is taken in an epoch's last step, two in the next one's first."""
    rows = [4] * 15 + [None, 8] + [4] * 15
    walls = with_walls([10.0] * 32)
    lines = [msgspec.structs.replace(line, samples=row) for line, row in zip(walls, rows, strict=True)]
    fed = msgspec.structs.replace(FACTS, samples_from="loader")
    assert diagnose(folder_of(tmp_path / "fed", (lines, fed))).throughput == pytest.approx(400, rel=0.02)
    told = msgspec.structs.replace(FACTS, samples_from="forward")
    assert diagnose(folder_of(tmp_path / "told", (lines, told))).throughput is None


def test_throughput_has_a_unit_or_is_unknown(tmp_path: Path) -> None:
    def rate(*lines: Step) -> float | None:
        return throughput(SteadySteps(lines, len(lines), 0, True, "train", 1))

    assert rate(*steps(samples=32)) == pytest.approx(3200)
    assert rate(step(samples=32), step()) is None
    assert rate() is None
    nothing = msgspec.structs.replace(FACTS, samples_from="none")
    found = diagnose(folder_of(tmp_path, (steps(), nothing)))
    assert (found.throughput, found.throughput_unit) == (None, "samples/s")
    assert any(text.startswith("samples/s") for text in found.unknown)


def test_samples_a_second_are_at_the_step_time_that_is_told(tmp_path: Path) -> None:
    """bearing_faults: 8.91 ms a step of 64 rows, and 3,200 samples a second, as some steps waited for new workers."""
    lines = with_walls([10.0] * 60 + [500.0] * 2 + [10.0] * 18)
    found = diagnose(folder_of(tmp_path, ([msgspec.structs.replace(line, samples=64) for line in lines], FACTS)))
    assert found.throughput == pytest.approx(64 / found.step_ms * 1000) and found.step_ms < 11


def test_the_phase_that_grows_is_that_of_the_last_steps_beside_the_first(tmp_path: Path) -> None:
    lines = [step(at, phases(other=4.0 + at / 5, forward=4.0)) for at in range(120)]
    found = diagnose(folder_of(tmp_path, (lines, FACTS))).findings
    (one,) = [one for one in found if one.id == "steps-grow"]
    assert "ms in other)" in one.evidence


def test_stretches_of_another_pace_are_told(tmp_path: Path) -> None:
    """The mean alone does not show them: 16 quick steps, then 16 slow ones and 16 between."""
    walls = [20.0] * 16 + [24.0] * 16 + [32.0] * 16
    found = diagnose(folder_of(tmp_path / "uneven", (with_walls(walls), FACTS)))
    assert f"{NOT_STEADY}: 20.0 ms in one part of the run, 32.0 ms in another" in found.unknown
    even = diagnose(folder_of(tmp_path / "even", (with_walls([20.0] * 24 + [24.0] * 24), FACTS)))
    assert not [text for text in even.unknown if text.startswith(NOT_STEADY)]


@pytest.mark.parametrize(
    ("rare", "said"),
    [
        (100.0, "90% of the steps take 10.0 ms or less, the rest longer"),
        (1.0, "90% of the steps take 10.0 ms or more, the rest less"),
        (10.01, ""),
    ],
)
def test_a_step_time_that_no_single_step_is_near_to_is_explained(rare: float, said: str, tmp_path: Path) -> None:
    """Every twelfth step is another, so each block has one: the blocks agree, and no stretch has another pace."""
    found = diagnose(folder_of(tmp_path, (with_walls([rare if at % 12 == 7 else 10.0 for at in range(97)]), FACTS)))
    assert (found.spread.of > 1) is bool(said), "of single steps, unless the headline lies outside of these"
    assert not said or found.spread.p10 <= found.step_ms <= found.spread.p90
    assert ([text for text in found.unknown if text.startswith(NOT_STEADY)] != []) is bool(said)
    assert any(
        said in text and f"{ms(found.step_ms)} a step is the median over" in text for text in found.unknown
    ) is bool(said)


@settings(max_examples=60)
@given(st.lists(st.sampled_from([1.0, 10.0, 10.02, 11.0, 300.0]), min_size=12, max_size=60), st.integers(0, 9))
def test_a_headline_lies_within_its_deciles_and_is_explained_where_these_are_of_means(
    walls: list[float], workers: int
) -> None:
    """As a reader sees both: in the digits that are shown."""
    fed = msgspec.structs.replace(FACTS, loaders=(msgspec.structs.replace(LOADER, workers=workers),))
    with tempfile.TemporaryDirectory() as folder:
        found = diagnose(folder_of(Path(folder), (with_walls(walls), fed), (with_walls(walls[::-1]), fed)))
    step, low, high = (ms(one) for one in (found.step_ms, found.spread.p10, found.spread.p90))
    assert found.spread.p10 <= found.step_ms <= found.spread.p90 or step in {low, high}
    assert found.spread.of == 1 or any(f"; {step} a step is the median over" in text for text in found.unknown)


def test_the_deciles_are_of_the_rank_whose_step_time_is_told(tmp_path: Path) -> None:
    quick, slow = with_walls([10.0] * 40), with_walls([12.0] * 40)
    found = diagnose(folder_of(tmp_path, (quick, rank_facts(0, 2)), (slow, rank_facts(1, 2))))
    assert (found.step_ms, found.spread.p10, found.spread.p90) == pytest.approx((12.0, 12.0, 12.0))


def test_findings_write_durations_as_the_phase_table_does() -> None:
    long = fires("compute", phases(forward=9284.8, backward=0.004))
    assert long is not None and long.evidence.startswith("forward 9.28 s, backward <0.01 ms")


def test_attention_is_not_offered_where_levers_hide_what_runs() -> None:
    for ran, levers, out in (
        (None, (), False),
        (None, ("compile",), True),
        (True, ("tf32",), False),
        (False, (), True),
    ):
        root = msgspec.structs.replace(ROOT, softmax=True, softmax_ran=ran)
        found = settled(msgspec.structs.replace(FACTS, roots=(root,)), levers)
        assert ("attention" in found) is out and set(levers) <= found


@pytest.mark.parametrize(
    ("changes", "out"),
    [
        ({}, False),
        ({"fused": True}, True),
        ({"sparse": True}, True),
        ({"name": "Adadelta"}, True),
        ({"builtin": False}, True),
    ],
)
def test_optimizers_without_a_fused_form_get_no_fused_optimizer(changes: dict[str, Any], out: bool) -> None:
    adam = OptimizerFacts(name="Adam", builtin=True, tensors=4)
    facts = msgspec.structs.replace(FACTS, optimizers=(msgspec.structs.replace(adam, **changes),))
    assert ("fused-optimizer" in settled(facts)) is out


def test_steps_that_were_looked_at_may_be_too_few_to_say_where_the_time_goes(tmp_path: Path) -> None:
    """The script does something long every 16th step, and that is none of those whose phases are known."""
    for rare, told in ((100.0, True), (10.5, False)):
        lines = with_walls([rare if at % 16 == 0 else 10.0 for at in range(320)])
        thin = [line if at % 16 == 5 else msgspec.structs.replace(line, phases=None) for at, line in enumerate(lines)]
        found = diagnose(folder_of(tmp_path / str(rare), (thin, FACTS)))
        assert found.phases == phases(forward=10.0), "what the others do may be anything"
        assert found.unseen_ms == (pytest.approx(90.0 / 16, rel=0.1) if told else 0.0)
        shares = {one.id: one.share for one in found.findings}
        if told:
            assert shares == {"not-looked-at": pytest.approx(0.36, abs=0.03), "compute": pytest.approx(0.64, abs=0.03)}
            assert "the 20 sampled steps take 10.0 ms on average" in found.findings[1].evidence
        else:
            assert shares == {"compute": 1.0}
        every = diagnose(folder_of(tmp_path / f"every {rare}", (lines, FACTS)))
        assert not every.unseen_ms and "not-looked-at" not in {one.id for one in every.findings}


def test_what_was_not_looked_at_may_be_most_of_a_step(tmp_path: Path) -> None:
    """A rollout in one step of 16, much longer than all updates after it: no bound is named by the updates."""
    lines = with_walls([1000.0 if at % 16 == 0 else 10.0 for at in range(320)])
    thin = [line if at % 16 == 5 else msgspec.structs.replace(line, phases=None) for at, line in enumerate(lines)]
    found = diagnose(folder_of(tmp_path, (thin, FACTS)))
    assert found.bound == "unknown" and found.findings[0].id == "not-looked-at"
    assert sum(one.share for one in found.findings) == pytest.approx(1.0)


@pytest.mark.parametrize("slow", [1.0, 2.0])
def test_phases_of_a_sample_that_took_another_time_are_shares_of_a_step(slow: float, tmp_path: Path) -> None:
    """Nothing is known of the quick steps of a short run but how long they took."""
    early = [step(at, phases(forward=0.2 * slow, other=0.05 * slow)) for at in range(72)]
    lines = [*early, *(step(at, phases(forward=0.25), wall_ms=0.25) for at in range(72, 500))]
    thin = [line if at < 72 else msgspec.structs.replace(line, phases=None) for at, line in enumerate(lines)]
    found = diagnose(folder_of(tmp_path, (thin, FACTS)))
    assert found.step_ms == pytest.approx(0.25) and msgspec.structs.asdict(found.phases) == pytest.approx(
        msgspec.structs.asdict(phases(forward=0.2, other=0.05))
    )
    told = [text for text in found.unknown if text.startswith("phases are of sampled steps")]
    assert bool(told) is (slow > 1) and all("phases are shares of the latter" in text for text in told)
    assert found.findings[0].evidence.startswith("forward 0.20 ms")


def test_one_long_step_of_a_sample_is_not_taken_for_many(tmp_path: Path) -> None:
    """The last step that was looked at held a pause of 8 ms in its backward, and stands for the 128 after it."""
    usual = phases(forward=0.3, backward=0.2)
    lines = [step(at, phases(forward=0.3, backward=8.2) if at == 71 else usual) for at in range(200)]
    thin = [line if at < 72 else msgspec.structs.replace(line, phases=None) for at, line in enumerate(lines)]
    found = diagnose(folder_of(tmp_path, (thin, FACTS)))
    held = 71 * 0.2 + (8.2 / 8.5) * (8.5 + 128 * 0.5)
    assert found.step_ms == pytest.approx(0.5)
    assert found.phases.backward == pytest.approx(0.5 * held / (199 * 0.5 + 8.5), rel=0.02)
    assert sum(msgspec.structs.astuple(found.phases)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("times", "modules", "device", "small"),
    [
        ({"forward": 0.2, "backward": 0.2}, 7, "cpu", True),
        ({"forward": 0.9, "backward": 0.9}, 7, "cpu", False),
        ({"forward": 1.5, "backward": 1.5}, 70, "cpu", False),
        ({"forward": 0.2, "backward": 0.2}, 7, "cuda", False),
    ],
    ids=["small", "large", "long", "device"],
)
def test_small_operations_may_be_limited_by_dispatch(
    times: dict[str, float], modules: int, device: str, small: bool
) -> None:
    root = msgspec.structs.replace(ROOT, modules=modules)
    found = fires("compute", phases(**times), facts=msgspec.structs.replace(FACTS, device=device, roots=(root,)))
    assert found is not None
    assert ("or issuing its operations" in found.title, "Python and dispatch" in found.why) == (small, small)
    assert ("bf16-autocast" in found.levers) is not small and "compile" in found.levers
    compiled = msgspec.structs.replace(FACTS, roots=(msgspec.structs.replace(root, compiled=True),))
    assert "Python and dispatch" not in fires("compute", phases(**times), facts=compiled).why


@pytest.mark.parametrize(("update_ms", "named"), [(0.05, False), (3.0, True)])
def test_a_fused_update_is_no_lever_for_computing_where_the_update_takes_next_to_nothing(
    update_ms: float, named: bool
) -> None:
    found = fires("compute", phases(forward=20.0, backward=30.0, optimizer=update_ms))
    assert found is not None and ("fused-optimizer" in found.levers) is named


def test_step_time_is_the_median_of_blocks() -> None:
    assert math.isnan(step_time([]))
    assert step_time([7.0]) == 7.0
    assert step_time([1.0, 2.0, 3.0]) == 2.0
    bursts = [2.0, 2.0, 2.0, 34.0] * 20  # four workers deliver at once: a plain median would say 2
    assert step_time(bursts, 4) == pytest.approx(10.0)
    long_bursts = ([1.0] * 15 + [145.0]) * 4  # a block is never shorter than the period
    assert step_time(long_bursts, 16) == pytest.approx(10.0)
    hiccup = [10.0] * 80  # one pause of the machine: a plain mean would say 135
    hiccup[40] = 10_010.0
    assert step_time(hiccup) == pytest.approx(10.0)


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=200), st.integers(1, 40))
def test_step_time_lies_among_the_steps(walls: list[float], period: int) -> None:
    assert min(walls) * (1 - 1e-9) <= step_time(walls, period) <= max(walls) * (1 + 1e-9)
    deciles = spread(walls)
    assert min(walls) <= deciles.p10 <= deciles.p50 <= deciles.p90 <= max(walls)


def test_phases_are_means_over_the_steps_that_know_them() -> None:
    lines = [step(device=phases(forward=4.0)), step(device=phases(forward=8.0, data=2.0)), *[step()] * 2]
    assert mean_phases(lines[:2], "gpu_phases") == phases(forward=6.0, data=1.0)
    assert mean_phases(lines, "gpu_phases") == phases(forward=7.0, data=1.5)  # the last one stands for three
    assert mean_phases(lines[2:], "gpu_phases") is None
    host = mean_phases(lines, "phases")
    assert host is not None
    assert sum(msgspec.structs.astuple(host)) == pytest.approx(fmean(line.wall_ms for line in lines))


def test_device_time_that_is_missing_is_said(tmp_path: Path) -> None:
    found = diagnose(folder_of(tmp_path, (steps(), CUDA)))
    assert any(text.startswith("device time") for text in found.unknown)


def test_an_uneven_pace_and_own_problems_are_said(tmp_path: Path) -> None:
    walls = [10.0] * 24 + [60.0] * 8 + [10.0] * 20
    run = folder_of(tmp_path, (with_walls(walls), FACTS))
    (run / "rank-0" / "problems.jsonl").write_bytes(msgspec.json.encode(Problem(where="loader", what="boom")))
    unknown = diagnose(run).unknown
    assert any(text.startswith(NOT_STEADY) and "a typical step takes 10.0 ms" in text for text in unknown)
    assert any("problems.jsonl" in text for text in unknown)


def test_phases_are_those_of_the_step_that_is_told(tmp_path: Path) -> None:
    """awd-lstm-lm beside busy processes: 142 ms a step, of which the backward took 208."""
    walls = [10.0] * 24 + [200.0] * 10 + [10.0] * 20
    found = diagnose(folder_of(tmp_path, (with_walls(walls), FACTS)))
    assert found.step_ms < 30.0  # the mean is 45
    assert sum(msgspec.structs.astuple(found.phases)) == pytest.approx(found.step_ms)


def test_an_evaluation_in_each_step_is_told_with_what_computes(tmp_path: Path) -> None:
    """pyGAT evaluates after each update: its forward is in no row of its own."""
    (found,) = diagnose(folder_of(tmp_path / "each", (steps(evaluation=True), FACTS))).findings
    assert "most steps contain an evaluation" in found.evidence and "every few steps" in found.instead
    (found,) = diagnose(folder_of(tmp_path / "none", (steps(), FACTS))).findings
    assert "evaluation" not in found.evidence


# nothing to judge


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_steps_are_refused(tmp_path: Path, count: int) -> None:
    seen, longest = ("1 step was", "It") if count == 1 else ("2 steps were", "The longest")
    told = rf"\. {longest} took 10\.0 ms, warm-up included: forward 4\.00 ms, backward 6\.00 ms$"
    with pytest.raises(NothingMeasured, match=rf"only {seen} seen .* at least 3 are needed, .*{told}"):
        diagnose(folder_of(tmp_path, (steps(count), FACTS)))


def test_a_run_without_steps_says_what_was_seen_and_what_counts(tmp_path: Path) -> None:
    with pytest.raises(
        NothingMeasured, match=r"`python train\.py`\. None of its processes imported torch.*A step is one opt"
    ):
        diagnose(folder_of(tmp_path))
    write_record(tmp_path / "seen-7.json", msgspec.structs.replace(FACTS, pid=7, forwards=3))
    write_record(tmp_path / "run.json", msgspec.structs.replace(RUN, exit_code=4))
    with pytest.raises(
        NothingMeasured, match=r"exit code 4\. process 7 \(train\.py\): 3 forwards .* 0 optimizer steps"
    ):
        diagnose(tmp_path)


def test_a_command_that_failed_before_it_trained_is_told_in_one_line(tmp_path: Path) -> None:
    """Its own traceback stands above: what counts as a step is not what the reader looks for."""
    folder_of(tmp_path)
    write_record(tmp_path / "run.json", msgspec.structs.replace(RUN, exit_code=1))
    with pytest.raises(NothingMeasured, match=r"^`python train\.py` ended with exit code 1 before it trained$"):
        diagnose(tmp_path)
    write_record(
        tmp_path / "seen-7.json", msgspec.structs.replace(FACTS, pid=7, forwards=0, backwards=0, optimizer_steps=0)
    )
    with pytest.raises(NothingMeasured, match=r"before it trained$"):
        diagnose(tmp_path)


def test_a_problem_that_switched_hotlap_off_is_named(tmp_path: Path) -> None:
    run = folder_of(tmp_path, ((), None))
    problems = [Problem(where=where, what="boom " * 100) for where in ("facts", "profile_op", "forward_begin")]
    (run / "rank-0" / "problems.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, problems)))
    named = r"itself off .* in forward_begin: boom .*rank-0/problems\.jsonl"
    with pytest.raises(NothingMeasured, match=named) as caught:
        diagnose(run)
    assert "imported torch" not in str(caught.value)
    assert len(str(caught.value)) < 800


def test_an_agent_that_could_not_start_is_quoted(tmp_path: Path) -> None:
    folder_of(tmp_path)
    (tmp_path / "session.json.error").write_bytes(b"ImportError: \xff no torch" + b"x" * 10**6)
    with pytest.raises(NothingMeasured, match=r"could not start: ImportError: . no torch") as caught:
        diagnose(tmp_path)
    assert len(str(caught.value)) < 1000


def test_broken_facts_are_named(tmp_path: Path) -> None:
    run = folder_of(tmp_path, (steps(), None))
    (run / "rank-0" / "facts.json").write_text('{"pid": "one"}')
    with pytest.raises(RecordError, match=r"rank-0/facts\.json is not a facts record: .*pid"):
        diagnose(run)


HOSTILE = st.sampled_from([0.0, -1.0, 5e-324, 1e-6, 1e12, 1e13, 1e308, math.inf, 10**400]) | st.floats(-10, 1e4)


@settings(max_examples=60)
@given(st.data())
def test_hostile_numbers_are_judged_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    lines = []
    same = data.draw(st.none() | HOSTILE)
    for _ in range(12):
        line = msgspec.to_builtins(step(device=MIXED, backlog_ms=1.0, samples=8))
        for _ in range(data.draw(st.integers(0, 2))):
            inner = line[data.draw(st.sampled_from(["phases", "gpu_phases"]))]
            inner[data.draw(st.sampled_from(PHASES))] = data.draw(HOSTILE)
            line[data.draw(st.sampled_from(["wall_ms", "gpu_ms", "samples", "backlog_ms"]))] = data.draw(HOSTILE)
        lines.append(json.dumps(line if same is None else {**line, "wall_ms": same}))
    run = folder_of(tmp_path_factory.mktemp("run"), ((), CUDA))
    (run / "rank-0" / "steps.jsonl").write_text("\n".join(lines))
    try:
        found = diagnose(run)
    except NothingMeasured:
        assert len(read_ranks(run)) == 0 or read_ranks(run)[0].steady.seen < 3
    else:
        assert isinstance(found, Diagnosis)
        assert math.isfinite(found.step_ms)


def test_a_host_that_waits_for_a_value_was_ahead() -> None:
    """An LSTM with `.item()` at the end of its step, as seen on an H200: nothing is queued at its end, yet the device
    is what the step waits for."""
    host = phases(forward=3.05, backward=4.92, other=13.8)
    device = phases(forward=7.48, backward=13.6, other=0.71)
    assert fires("launch", host, device, 0.0, CUDA) is None
    computes = fires("compute", host, device, 0.0, CUDA)
    assert computes is not None and "the host is 13.1 ms ahead" in computes.evidence


# records of which a sample was looked at


@given(st.integers(0, 15), st.integers(1, 16), st.integers(0, 3))
def test_a_sample_of_equal_steps_says_what_all_say(first: int, every: int, kind: int) -> None:
    host = (phases(data=6.0, forward=4.0), MIXED, phases(forward=5.0, backward=5.0), phases(other=10.0))[kind]
    full = [step(at, host, samples=8) for at in range(64)]
    seen = [one if at < 20 or at % every == first % every else unseen(one) for at, one in enumerate(full)]
    assert equal(seen, full)
    rates = [throughput(SteadySteps(tuple(lines), 64, 0, True, "train", 1)) for lines in (seen, full)]
    assert rates[0] == pytest.approx(rates[1])


def unseen(one: Step) -> Step:
    """The step as it is recorded when it is timed and not looked at."""
    return msgspec.structs.replace(one, phases=None, samples=None, loss=None)


def equal(one: Sequence[Step], two: Sequence[Step]) -> bool:
    rows = [mean_phases(lines, "phases") for lines in (one, two)]
    return msgspec.structs.astuple(rows[0]) == pytest.approx(msgspec.structs.astuple(rows[1]))


def test_a_step_that_was_looked_at_stands_for_those_that_were_not() -> None:
    """A loop whose second half is slower, looked at in full and then at every tenth step."""
    fast, slow = phases(data=1.0, forward=1.0), phases(data=8.0, forward=2.0)
    full = [step(at, fast if at < 100 else slow, samples=4 if at < 100 else 8) for at in range(200)]
    seen = full[:100] + [one if at % 10 == 4 else unseen(one) for at, one in enumerate(full[100:])]
    assert equal(seen, full)
    rates = [throughput(SteadySteps(tuple(lines), 200, 0, True, "train", 1)) for lines in (seen, full)]
    assert rates[0] == pytest.approx(rates[1])


def test_a_verdict_from_a_sample(tmp_path: Path) -> None:
    host = phases(data=6.0, forward=2.0, backward=2.0)
    full = [step(at, host, samples=8) for at in range(120)]
    seen = [one if at < 40 or at % 16 == 3 else unseen(one) for at, one in enumerate(full)]
    whole, sampled = (
        diagnose(folder_of(tmp_path / name, (lines, FACTS))) for name, lines in (("full", full), ("seen", seen))
    )
    assert whole.phase_steps == whole.steady_steps
    assert sampled.phase_steps == sum(one.phases is not None for one in seen) - sampled.warmup_steps
    again = msgspec.structs.replace(sampled, phase_steps=whole.phase_steps, phases=whole.phases, findings=())
    assert again == msgspec.structs.replace(whole, findings=())
    assert [(one.id, pytest.approx(one.share)) for one in sampled.findings] == [
        (one.id, one.share) for one in whole.findings
    ]


def test_ranks_of_which_samples_were_looked_at_differently(tmp_path: Path) -> None:
    late = phases(data=4.0, forward=2.0, backward=4.0)
    usual = phases(data=0.5, forward=2.0, backward=7.5)
    ranks = [
        [one if (at + shift) % 7 == 0 else unseen(one) for at, one in enumerate(step(n, host) for n in range(70))]
        for shift, host in enumerate((usual, late))
    ]
    facts = [msgspec.structs.replace(FACTS, rank=at, world=2) for at in range(2)]
    found = diagnose(folder_of(tmp_path / "run", *zip(ranks, facts, strict=True)))
    assert "straggler" in {finding.id for finding in found.findings}


@pytest.mark.parametrize(
    ("levers", "instead"),
    [
        ((), "compile, so that chains of them become one kernel; fused optimizer; smaller types; fewer copies"),
        (("fused-optimizer", "bf16-autocast"), "compile, so that chains of them become one kernel; fewer copies"),
        (("compile", "tf32"), "fused optimizer; smaller types; fewer copies"),
    ],
)
def test_what_is_in_use_is_not_advised(levers: tuple[str, ...], instead: str) -> None:
    """Healthy scripts in bf16 were told of lower precision and a fused optimizer."""
    said = "compile, so that chains of them become one kernel; fused optimizer; smaller types; fewer copies"
    one = Finding(id="bandwidth", bound="bandwidth", share=0.5, instead=said, levers=("compile", "fused-optimizer"))
    assert without(one, levers).instead == instead
    launches = "compile the model, with CUDA graphs where shapes are static; fuse the optimizer; larger batches"
    fused = without(msgspec.structs.replace(one, instead=launches), ("fused-optimizer",)).instead
    assert fused == "compile the model, with CUDA graphs where shapes are static; larger batches"
