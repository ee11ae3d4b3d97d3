"""Jobs that do not get the processor time that they want: rates over the steady steps, and what is found in them."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from test_diagnose import CUDA, DRAINED, FACTS, LOADER, QUEUED, phases, steps

from hotlap.diagnose.advise import advise
from hotlap.diagnose.cpu_use import GpuUse, cpu_use, gpu_use
from hotlap.diagnose.diagnose import diagnose, next_of
from hotlap.diagnose.findings import findings_of
from hotlap.diagnose.findings._base import CpuUse, Measured
from hotlap.diagnose.findings.page_faults import at_line
from hotlap.diagnose.verdict import verdict
from hotlap.levers import settled
from hotlap.records.diagnosis import Diagnosis, Finding, Place, Spread, in_order
from hotlap.records.files import to_json
from hotlap.records.profile import Lines
from hotlap.records.run import Facts, HostFacts, Step
from hotlap.records.telemetry import CpuSample, GpuSample, TelemetrySample
from hotlap.report.run_screen import run_screen
from hotlap.runs.folder import RunFolder
from made_runs import ENVIRONMENT, folder_of, write_lines

LIMITED = msgspec.structs.replace(ENVIRONMENT, cores=16, cpu_quota=3.5)
USE = CpuUse(usable=4, cores=16, quota=4.0, seconds=8.0)


def sample(at: float, **counters: Any) -> TelemetrySample:
    return TelemetrySample(time=at, cpu=CpuSample(**counters))


def over(begin: float, end: float) -> list[Step]:
    """Steps of 0.5 s each."""
    return [
        Step(step=index, time=begin + 0.5 * (index + 1), wall_ms=500.0, phases=phases(data=500.0))
        for index in range(int((end - begin) / 0.5))
    ]


def test_what_nvml_saw_of_the_gpu_is_told_where_it_is_known_which_is_meant() -> None:
    """voxceleb_trainer chooses its GPU itself, and was told that no kernel ran: that was of the one it was given."""
    steady = over(100.0, 104.0)
    gpus = GpuSample(index=0, uuid="GPU-a", busy_percent=40.0, power_w=300.0), GpuSample(index=1, uuid="GPU-b")
    samples = [TelemetrySample(time=100.0 + at / 2, gpus=gpus) for at in range(8)]

    assert gpu_use(samples, steady, ["GPU-a"]) == GpuUse(pytest.approx(0.4), pytest.approx(300.0))
    assert gpu_use(samples, steady, ["GPU-b"]) == GpuUse()  # NVML tells nothing of it
    assert gpu_use(samples, steady, ["GPU-a", "GPU-c"]) == gpu_use(samples, steady, ["GPU-a", None]) == GpuUse()
    assert gpu_use(samples, steady, ["GPU-c"]) == gpu_use(samples, steady, [None]) == GpuUse()
    assert gpu_use(samples[:2], steady, ["GPU-a"]) == GpuUse()  # too few


# rates


def test_rates_are_of_the_steady_steps_alone() -> None:
    """What was counted while the job warmed up, and after it, is not in them."""
    counted = [
        sample(100.0, periods=0, throttled=0, throttled_ms=0.0, steal_ms=0.0, busy_ms=0.0, waited_ms=0.0, running=99),
        sample(110.0, periods=90, throttled=90, throttled_ms=9e4, steal_ms=5e3, busy_ms=1e5, waited_ms=9e3, running=4),
        sample(111.0, periods=100, throttled=94, throttled_ms=9.01e4, steal_ms=5.1e3, busy_ms=1.02e5, waited_ms=9e3,
               running=9),
        sample(112.0, periods=110, throttled=96, throttled_ms=9.04e4, steal_ms=5.2e3, busy_ms=1.04e5, waited_ms=9.5e3,
               running=5),
        sample(120.0, periods=900, throttled=900, throttled_ms=9e5, steal_ms=9e9, busy_ms=9e9, waited_ms=9e9),
    ]  # fmt: skip
    use = cpu_use(counted, over(109.5, 112.5), LIMITED)
    assert (use.usable, use.cores, use.quota, use.seconds) == (4, 16, 3.5, 2.0)
    assert (use.throttled, use.throttled_ms) == (pytest.approx(0.3), pytest.approx(200.0))
    assert (use.steal_ms, use.busy_ms, use.waited_ms, use.running) == (100.0, 2000.0, 250.0, 5)
    used = [msgspec.structs.replace(one, cpu_percent=100.0 * at) for at, one in enumerate(counted)]
    assert use.used is None and cpu_use(used, over(109.5, 112.5), LIMITED).used == 2.0


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [sample(110.0, steal_ms=1.0)],
        [sample(110.0, steal_ms=1.0), sample(110.3, steal_ms=2.0)],  # too short a time
        [sample(100.0, steal_ms=1.0), sample(130.0, steal_ms=2.0)],  # around the steps
        [TelemetrySample(time=110.0), TelemetrySample(time=111.0)],  # of an older hotlap
    ],
)
def test_too_few_samples_tell_nothing(samples: list[TelemetrySample]) -> None:
    assert cpu_use(samples, over(109.5, 112.5), LIMITED) == CpuUse(usable=4, cores=16, quota=3.5)
    assert cpu_use(samples, [], LIMITED).seconds == 0


def test_a_counter_that_begins_anew_is_not_known() -> None:
    counted = [
        sample(110.0, periods=50, throttled=9, steal_ms=7.0),
        sample(111.0, periods=3, throttled=1, steal_ms=8.0),
    ]
    use = cpu_use(counted, over(109.5, 112.5), LIMITED)
    assert (use.throttled, use.steal_ms, use.busy_ms) == (None, 1.0, None)
    idle = [sample(110.0, periods=5, throttled=1), sample(111.0, periods=5, throttled=1)]
    assert cpu_use(idle, over(109.5, 112.5), LIMITED).throttled is None


# findings


def host(**counted: Any) -> Facts:
    return msgspec.structs.replace(FACTS, threads=16, host=HostFacts(steps=50, **counted))


def found(name: str, use: dict[str, Any] | None = None, facts: Facts | None = FACTS, **more: Any) -> Finding | None:
    """What the finding says of a step of 100 ms."""
    told = {"step_ms": 100.0, "phases": phases(data=60.0, forward=40.0), "gpu_phases": None, "backlog_ms": None} | more
    told_of = {finding.id: finding for finding in findings_of(Measured(**told, facts=facts, cpu=_use(use)))}
    return told_of.get(name.replace("_", "-"))


def _use(more: dict[str, Any] | None) -> CpuUse | None:
    return None if more is None else replace(USE, **more)


def beneath(finding: Finding | None) -> Finding:
    assert finding is not None and finding.beneath and finding.share == 0 and finding.bound == "unknown"
    assert finding.title and finding.evidence and finding.why and finding.instead
    return finding


def test_quota() -> None:
    one = beneath(found("cpu_quota", {"throttled": 0.31, "throttled_ms": 120.0}, host()))
    assert (one.cost_ms, one.levers) == (pytest.approx(12.0), ("cpu-threads", "loader-workers"))
    assert "4 cores" in one.title and "31%" in one.evidence and "120 ms a second" in one.evidence
    assert "16 intra-op threads and 0 workers see 16 cores" in one.evidence
    summed = beneath(found("cpu_quota", {"throttled": 0.31, "throttled_ms": 4000.0}))  # over the cores
    assert summed.cost_ms == pytest.approx(31.0)
    for use in (
        {"throttled": 0.04, "throttled_ms": 120.0},
        {"throttled": 0.31, "throttled_ms": 9.0},
        {"throttled": 0.31, "throttled_ms": 120.0, "quota": None},
        {"throttled": None, "throttled_ms": None},
        None,
    ):
        assert found("cpu_quota", use) is None


def test_steal() -> None:
    one = beneath(found("cpu_steal", {"steal_ms": 60.0, "busy_ms": 940.0}))
    assert one.cost_ms == pytest.approx(6.0) and "6% of the time" in one.evidence
    assert one.levers == ()  # one thread: fewer there can't be
    assert beneath(found("cpu_steal", {"steal_ms": 60.0, "busy_ms": 940.0}, host())).levers == ("cpu-threads",)
    assert beneath(found("cpu_steal", {"steal_ms": 1600.0, "busy_ms": 9000.0})).cost_ms == 100.0
    for use in ({"steal_ms": 40.0, "busy_ms": 960.0}, {"steal_ms": None}, {"steal_ms": 0.0, "busy_ms": 0.0}, None):
        assert found("cpu_steal", use) is None


def test_crowded() -> None:
    one = beneath(
        found("cpu_crowded", {"running": 33.0}, host(waited_ms=1.0, threads_waited_ms=900.0, involuntary=2087.0))
    )
    assert (one.cost_ms, one.levers) == (100.0, ("cpu-threads",))
    assert "2087 involuntary" in one.evidence and "16 intra-op threads and 0 workers, 4 cores" in one.evidence
    assert "33 threads on the machine" in one.evidence
    assert one.why.startswith("an operation ends with the last of its threads")
    alone = msgspec.structs.replace(host(waited_ms=4.0, threads_waited_ms=16.0), threads=1)
    assert beneath(found("cpu_crowded", None, alone)).levers == ()
    one = {"usable": 1}
    few, many = (beneath(found("cpu_crowded", {**one, "running": running}, alone)) for running in (1.0, 2.0))
    assert "in the median 1 thread on the machine" in few.evidence and "in the median 2 threads" in many.evidence
    assert few.why.startswith("at times more threads want to run than there are cores")
    assert many.why.startswith("more threads want to run than there are cores")
    ranks = beneath(found("cpu_crowded", None, msgspec.structs.replace(alone, world=2)))
    assert "--numa-binding" in ranks.instead and "--numa-binding" not in few.instead
    short = msgspec.structs.replace(host(waited_ms=0.035, threads_waited_ms=0.035, involuntary=0.03), threads=1)
    crowded = found("cpu_crowded", None, short, step_ms=0.5)
    assert crowded is not None
    said = crowded.evidence
    assert "0.04 ms a step" in said and "0.03 involuntary" in said and "1 intra-op thread and" in said
    assert "over 50 steps: " in said  # the thread's waits are of those, the quoted time of all steady steps
    assert found("cpu_crowded", None, host(waited_ms=4.9, threads_waited_ms=9.9)) is None
    assert found("cpu_crowded", None, host()) is None and found("cpu_crowded", None, None) is None


def test_what_the_thread_that_trains_waits_for_a_core_is_no_computing() -> None:
    """The demo beside a process that keeps one of two cores busy: 519 of 792 ms, and it was told to compute."""
    seen = host(waited_ms=65.0, threads_waited_ms=120.0)
    own = found("cpu_crowded", None, seen)
    assert own is not None and own.named and not own.beneath
    assert (own.share, own.cost_ms, own.levers) == (0.65, 65.0, ("cpu-threads",))
    findings = in_order(findings_of(Measured(100.0, phases(data=20.0, forward=80.0), None, None, seen)))
    assert findings[0].id == "cpu-crowded"
    assert {one.id: round(one.share, 3) for one in findings}["compute"] == pytest.approx(0.35 * 0.8)
    assert sum(one.share for one in findings) <= 1 + 1e-9


@pytest.mark.parametrize(
    ("waited", "threads", "running", "finding", "said"),
    [
        (60.0, 4, 7, False, True),
        (60.0, 4, 5, True, False),  # its own, and the one that looks
        (60.0, 4, None, False, True),
        (60.0, 1, 1, False, True),  # a median says nothing of the moments in which it waited
        (60.0, 16, None, True, False),  # it may crowd itself
        (60.0, 16, 20, True, True),
        (7.0, 4, 7, False, False),
    ],
)
def test_times_beside_other_work_are_said_to_hold_for_that_only(
    waited: float, threads: int, running: int | None, finding: bool, said: bool, tmp_path: Path
) -> None:
    """666 ms and 60.5 ms a step, 21 minutes apart: both right, and nothing told that the first was beside others. That
    is no cause of the script's: its own come first, as shares of what it ran itself."""
    facts = msgspec.structs.replace(host(waited_ms=5 * waited, threads_waited_ms=5 * waited), threads=threads)
    lines = over(0.0, 20.0)
    run = folder_of(tmp_path, (lines, facts))
    machine = msgspec.structs.replace(ENVIRONMENT, cores=4, cpu_quota=None)
    (run / "run.json").write_bytes(to_json(msgspec.structs.replace(RunFolder(run).record, environment=machine)))
    seen = b"".join(msgspec.json.encode(sample(at / 2, running=running)) + b"\n" for at in range(1, 40))
    (run / "telemetry.jsonl").write_bytes(seen)
    found = diagnose(run)
    assert ("cpu-crowded" in {one.id for one in found.findings}) is finding
    text = (
        "other work too; run again" if finding else f"a core for {waited:.0f}% of the time; run again when it is idle"
    )
    assert any(text in one for one in found.unknown) is said


def test_waits_are_those_of_all_steady_steps_where_the_machine_counted_them() -> None:
    """turbine_rul: none in the ten steps that the agent looked at, 59% of the run; patch_vq the other way round."""
    one = msgspec.structs.replace(host(waited_ms=0.0, threads_waited_ms=0.0), threads=1)
    use = {"waited_ms": 590.0, "processes": 1, "used": 4.0}
    seen = found("cpu_crowded", use, one)
    assert seen is not None and seen.share == pytest.approx(0.59)
    assert found("cpu_crowded", {**use, "processes": 2}, one) is None, "they may be another's"
    timed = msgspec.structs.replace(host(waited_ms=25.3, threads_waited_ms=25.3, took_ms=34.6))
    said = found("cpu_crowded", None, timed)
    assert said is not None and "over 50 steps of 34.6 ms" in said.evidence, "of which steps it is"
    killed = found("cpu_crowded", use, msgspec.structs.replace(FACTS, device="cpu", threads=1))
    assert killed is not None and killed.share == pytest.approx(0.59), "before the process's own counters were read"
    assert "by the machine's counters: 59.0 ms a step" in killed.evidence
    few = msgspec.structs.replace(host(waited_ms=0.4, threads_waited_ms=0.4, took_ms=0.24), threads=1)
    assert found("cpu_crowded", None, few) is None, "one wait in 12 ms was told as 100% of the time"
    early = msgspec.structs.replace(host(waited_ms=15.0, threads_waited_ms=15.0), threads=1)
    assert found("cpu_crowded", {**use, "waited_ms": 10.0}, early) is None


@pytest.mark.parametrize(
    ("threads", "use", "told"),
    [
        (1, {"used": 0.3}, False),  # more cores than it has threads: others had them
        (1, {"used": 3.9}, True),  # by what it started, say
        (16, {"used": 0.3}, True),
        (4, {"running": 9.0}, False),
        (4, {"running": 4.0}, True),
    ],
)
def test_waits_for_a_core_are_a_cause_where_the_command_crowds_itself(
    threads: int, use: dict[str, Any], told: bool
) -> None:
    facts = msgspec.structs.replace(host(waited_ms=65.0, threads_waited_ms=65.0), threads=threads)
    times = phases(data=20.0, forward=80.0)
    findings = findings_of(Measured(100.0, times, None, None, facts, cpu=_use(use)))
    assert ("cpu-crowded" in {one.id for one in findings}) is told
    computing = next(one for one in findings if one.id == "compute")
    assert computing.share == pytest.approx(0.8 * (0.35 if told else 1.0))


@pytest.mark.parametrize(
    ("use", "told"),
    [
        ({"used": 0.9, "busy_ms": 3990.0}, False),  # 2.25 cores of 4 if it never waited: others have the rest
        ({"used": 1.6, "busy_ms": 3990.0}, True),  # it would want them all
        ({"used": 0.9, "busy_ms": 2000.0}, True),  # nobody else does: workers that all begin at once, say
        ({"used": 0.9, "busy_ms": None}, True),
        ({"used": None, "busy_ms": 3990.0}, True),
    ],
)
def test_workers_that_mostly_sleep_crowd_nobody(use: dict[str, Any], told: bool) -> None:
    """A CNN with 8 workers on 2 cores that other users had: 57% to 43% was told to be its own, for 1.1 cores of use."""
    facts = msgspec.structs.replace(
        host(waited_ms=55.0, threads_waited_ms=55.0),
        threads=1,
        loaders=(msgspec.structs.replace(LOADER, workers=8),),
    )
    times = phases(data=5.0, forward=95.0)
    crowded = {one.id for one in findings_of(Measured(100.0, times, None, None, facts, cpu=_use({"cores": 4} | use)))}
    assert ("cpu-crowded" in crowded) is told
    starved = phases(data=40.0, forward=60.0)  # by workers that others keep from their cores: these want more
    late = found("cpu_crowded", {"cores": 4, "used": 0.9, "busy_ms": 3990.0}, facts, phases=starved)
    threads = found("cpu_crowded", {"cores": 4} | use, msgspec.structs.replace(facts, threads=8))
    assert late is not None and threads is not None


def test_times_beside_a_hypervisor_that_takes_cores_are_said_to_hold_for_that_only(tmp_path: Path) -> None:
    facts = msgspec.structs.replace(host(), threads=1)
    run = folder_of(tmp_path, (over(0.0, 20.0), facts))
    for stolen, said in ((100.0, True), (40.0, False)):
        seen = (sample(at / 2, steal_ms=stolen * at, busy_ms=400.0 * at) for at in range(1, 40))
        write_lines(run / "telemetry.jsonl", seen)
        found = diagnose(run)
        assert "cpu-steal" in {one.id for one in found.findings}
        assert any("cores were taken away; run again when it is idle" in text for text in found.unknown) is said


def test_waits_of_others_are_no_cost_where_the_thread_that_trains_never_waits() -> None:
    """As lightning_transformer had it on an H200: 16 threads, 16 cores, and nobody whom the 1.7 ms held up."""
    seen = host(waited_ms=0.0, threads_waited_ms=1.7, involuntary=0.97)
    assert found("cpu_crowded", None, seen, step_ms=16.54) is None
    assert found("cpu_crowded", None, host(waited_ms=0.9, threads_waited_ms=90.0)) is None
    assert beneath(found("cpu_crowded", None, host(waited_ms=1.0, threads_waited_ms=90.0))).cost_ms == 90.0
    assert beneath(found("cpu_crowded", None, host(threads_waited_ms=90.0))).cost_ms == 90.0, "not known to be 0"
    workers = msgspec.structs.replace(seen, loaders=(msgspec.structs.replace(LOADER, workers=4),))
    assert beneath(found("cpu_crowded", {"waited_ms": 800.0}, workers)).cost_ms == 60.0, "the data phase alone"


@pytest.mark.parametrize(("stolen", "told"), [(0.9, False), (9.0, False), (11.0, True)])
def test_what_costs_next_to_nothing_is_not_told(stolen: float, told: bool, tmp_path: Path) -> None:
    """A tenth of what little the cores worked was stolen: of a step of 500 ms up to 0.45, 4.5 and 5.5 ms."""
    counted = [
        sample(at, steal_ms=(at - 100) * stolen, busy_ms=(at - 100) * 9 * stolen) for at in (100.0, 105.0, 110.0)
    ]
    folder = folder_of(tmp_path, (over(100.0, 110.0), FACTS))
    write_lines(folder / "telemetry.jsonl", counted)
    assert ("cpu-steal" in {finding.id for finding in diagnose(folder).findings}) is told


def test_workers_that_wait() -> None:
    """800 ms a second of 4 workers are 20% of their time, less what is the training thread's own."""
    facts = msgspec.structs.replace(
        host(waited_ms=1.0, threads_waited_ms=2.0), loaders=(msgspec.structs.replace(LOADER, workers=4),)
    )
    one = beneath(found("cpu_crowded", {"waited_ms": 800.0}, facts))
    assert one.cost_ms == pytest.approx(62.0) and "waited for 800 ms a second" in one.evidence
    assert found("cpu_crowded", {"waited_ms": 405.0}, facts) is None
    assert found("cpu_crowded", {"waited_ms": None}, facts) is None
    assert found("cpu_crowded", {"waited_ms": 800.0}, host(waited_ms=1.0, threads_waited_ms=2.0)) is None


def test_page_faults() -> None:
    one = beneath(found("page_faults", None, host(faults=9000.0, system_ms=8.0)))
    assert one.cost_ms is None and "8.00 ms a step over all threads" in one.evidence, (
        "no bound: caches lose by them too"
    )
    assert one.levers == ("host-allocator",) and "disk" not in one.evidence
    assert (
        "3 of them read from a disk"
        in beneath(found("page_faults", None, host(faults=9e3, system_ms=8, major=3))).evidence
    )
    slower = host(faults=9000.0, system_ms=20.0, took_ms=250.0)
    assert "8.00 ms a step" in beneath(found("page_faults", None, slower)).evidence, "of steps that take 250 ms"
    assert found("page_faults", None, host(faults=255.0, system_ms=8.0)) is None
    assert found("page_faults", None, host(faults=9000.0, system_ms=4.9)) is None
    assert found("page_faults", None, FACTS) is None


@pytest.mark.parametrize(("part", "told"), [(0.8, True), (0.4, False)])
def test_page_faults_have_the_line_that_makes_most_of_the_large_tensors(part: float, told: bool) -> None:
    """vamp: tensors of 8 MB were made at one line of a density, and the faults had none."""
    one = found("page_faults", None, host(faults=9000.0, system_ms=8.0))
    other = found("cpu_quota", {"throttled": 0.5, "throttled_ms": 300.0})
    assert one is not None and other is not None
    spread = Spread(p10=99, p50=100, p90=101)
    bare = Diagnosis(
        mode="train", bound="unknown", step_ms=100.0, spread=spread, phases=phases(), findings=(one, other)
    )
    lines = Lines(
        files=("density.py", "net.py"),
        large=((0, 11, "log_normal", int(part * 100 * 2**20), part), (1, 4, "Net.forward", 2**20, 1 - part)),
    )
    with_line = {found.id: found for found in at_line(bare, lines).findings}
    assert (with_line["page-faults"].where is not None) is told and with_line[other.id] == other
    if told:
        assert with_line["page-faults"].where == Place(file="density.py", line=11, function="log_normal")
        assert "80% of the bytes of large tensors" in with_line["page-faults"].evidence
    assert at_line(bare, Lines()) == bare
    assert at_line(bare, Lines(large=((7, 1, "gone", 2**20, 1.0),))) == bare


@pytest.mark.parametrize(
    ("more", "share"),
    [
        ({}, 0.18),
        ({"took_ms": 200.0}, 0.09),  # of steps that take twice as long: less than a tenth of it
        ({"waited_ms": 40.0}, 0.3),  # of the 60 ms in which it had a core
        ({"system_ms": 12.0}, 0.12),  # more than the kernel takes it can't be
        ({"own_faults": 4000.0}, 0.0),  # other threads have them beside it
        ({"grown": 6000.0}, 0.0),  # a history that grows: nothing is given back
        ({"fault_us": None}, 0.0),
        ({"own_faults": None}, 0.0),
    ],
)
def test_page_faults_that_take_a_tenth_of_the_step_have_a_share(more: dict[str, Any], share: float) -> None:
    """129 ms of 336 were won by settings of malloc, and it stood last as "at most"."""
    counts = {"faults": 9000.0, "own_faults": 9000.0, "fault_us": 2.0, "system_ms": 20.0} | more
    if share < 0.1:
        beneath(found("page_faults", None, host(**counts)))
        return
    alone = msgspec.structs.replace(host(**counts), threads=1)
    one = found("page_faults", {"used": 0.6}, alone)  # others have the cores, where it waits for one
    assert one is not None and one.named is (share >= 0.25) and not one.beneath
    assert (one.share, one.levers) == (share, ("host-allocator",)) and one.cost_ms == min(18.0, counts["system_ms"])
    assert "of it in the training thread, for 9,000 faults" in one.evidence
    findings = in_order(findings_of(Measured(100.0, phases(data=2, forward=98), None, None, alone, cpu=USE)))
    assert findings[share < 0.25].id == "page-faults", "by its share, as no line makes them, until it is much"
    assert "host-allocator" in next_of(findings)
    on_device = phases(forward=100.0)
    told = {"phases": on_device, "gpu_phases": on_device, "backlog_ms": DRAINED}
    beneath(found("page_faults", None, msgspec.structs.replace(CUDA, host=HostFacts(steps=9, **counts)), **told))


@pytest.mark.parametrize(
    ("device", "backlog", "told"),
    [
        ({"forward": 100.0}, QUEUED * 10, False),  # the device always has work
        ({"forward": 90.0, "data": 10.0}, QUEUED * 10, True),
        ({"forward": 100.0}, DRAINED, True),
    ],
)
def test_nothing_is_lost_while_the_device_has_work(device: dict[str, float], backlog: float, told: bool) -> None:
    on_device = phases(**device)
    more = {"phases": on_device, "gpu_phases": on_device, "backlog_ms": backlog}
    facts = msgspec.structs.replace(
        CUDA, threads=16, host=HostFacts(steps=9, faults=9e3, system_ms=9, waited_ms=9, threads_waited_ms=9)
    )
    use = {"throttled": 0.31, "throttled_ms": 120.0, "steal_ms": 60.0, "busy_ms": 940.0}
    for name in ("cpu_quota", "cpu_steal", "cpu_crowded", "page_faults"):
        assert (found(name, use, facts, **more) is not None) == told, name


def test_levers_of_the_host_on_a_device() -> None:
    """Threads matter there where the process makes its batches itself; memory where it comes from the kernel anew."""
    faulting = msgspec.structs.replace(CUDA, threads=16, host=HostFacts(steps=9, faults=9e3))
    assert not {"cpu-threads", "host-allocator"} & settled(faulting)
    assert "cpu-threads" in settled(msgspec.structs.replace(FACTS, threads=2, world=2))  # its launcher sets them
    assert "cpu-threads" not in settled(msgspec.structs.replace(FACTS, threads=2))
    busy = msgspec.structs.replace(LOADER, workers=4)
    for other in ({"loaders": (busy,)}, {"loaders": ()}, {"threads": 1}):
        assert "cpu-threads" in settled(msgspec.structs.replace(faulting, **other))
    assert "host-allocator" in settled(CUDA) and "cpu-threads" not in settled(FACTS)


# a run


def starved(tmp_path: Path) -> Path:
    """A run whose telemetry says that its quota ran out."""
    lines = steps(host=phases(data=3.0, forward=5.0, other=2.0), wall_ms=500.0)
    folder = folder_of(tmp_path, (lines, FACTS))
    run = msgspec.structs.replace(
        RunFolder(folder).record, environment=msgspec.structs.replace(ENVIRONMENT, cpu_quota=4.0)
    )
    (folder / "run.json").write_bytes(to_json(run))
    begin, end = lines[5].time, lines[-1].time
    told = [sample(begin + part * (end - begin), periods=100 * part, throttled=31 * part, throttled_ms=5000.0 * part)
            for part in (0, 1)]  # fmt: skip
    write_lines(folder / "telemetry.jsonl", told)
    return folder


def test_a_run_says_it_beneath_its_findings(tmp_path: Path) -> None:
    folder = starved(tmp_path)
    told = verdict(folder)
    (quota,) = [one for one in told.findings if one.beneath]
    assert quota.id == "cpu-quota" and told.findings[0] is not quota
    assert told.bound == told.findings[0].bound == "compute"
    file = io.StringIO()
    Console(file=file, width=100).print(run_screen(RunFolder(folder).record, told, [], folder))
    text = " ".join(file.getvalue().split())
    assert "≤ " in text and "the CPU quota of 4 cores runs out" in text and "31% of the cgroup's periods" in text
    assert text.index("the CPU quota") > text.index("computing Net")


def test_no_advice_counts_its_time_twice(tmp_path: Path) -> None:
    told = diagnose(starved(tmp_path))
    without = msgspec.structs.replace(told, findings=tuple(one for one in told.findings if not one.beneath))
    assert len(without.findings) < len(told.findings)
    assert advise(told, "run") == advise(without, "run")
