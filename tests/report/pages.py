"""Pages made by hand, with every panel, and the same with hostile texts."""

from typing import Any

import msgspec

from hotlap.diagnose.advise import panel
from hotlap.records.diagnosis import Diagnosis, Finding, Place, Spread
from hotlap.records.memory import (
    Holder,
    Mark,
    MemoryLine,
    MemoryPart,
    MemorySeries,
    MemoryTimeline,
    MemoryUsage,
    ModuleMemory,
    Stays,
)
from hotlap.records.page import Artefact, Curve, Page, RankSteps, Snippet
from hotlap.records.peaks import Peaks
from hotlap.records.run import (
    Environment,
    Facts,
    Gpu,
    Lever,
    LoaderFacts,
    OptimizerFacts,
    Phases,
    Problem,
    RootFacts,
    Run,
)
from hotlap.records.telemetry import GpuSample, TelemetrySample
from hotlap.records.timeline import KINDS, Bars, MemoryCurve, Timeline
from hotlap.records.trace import (
    Breakdown,
    Collective,
    Gap,
    HostTime,
    KernelTime,
    MemoryUse,
    OpRoofline,
    RankLoad,
    Ranks,
    RankTrace,
    Replay,
    Sync,
    TraceReport,
    Trust,
    WhatIf,
    Window,
)
from hotlap.records.tune import Dropped, Interval, Kept, Parity, Proof, Trial, Tune, Worth

HOSTILE = "</script><img src=x onerror=alert(1)><b>&amp;\u2028\u202e%{x}{{7*7}}<a href='javascript:alert(2)'>\x00"
"""What a script might be called by somebody who wants its reader's browser to run something."""
MS = 1_000_000
WHERE = Place(file="/home/u/proj/train.py", line=41, function="main")
FINDINGS = (
    Finding(
        id="input",
        bound="input",
        share=0.61,
        cost_ms=125.5,
        title="waiting for batches",
        where=WHERE,
        evidence="131 ms in next()",
        why="the model stands still",
        instead="use workers",
        levers=("loader-workers",),
    ),
    Finding(id="compute", bound="compute", share=0.35, title="computing Net", evidence="forward 24 ms"),
    Finding(id="sync", bound="sync", share=0.02, cost_ms=4.25, title=".item()", where=WHERE, evidence="1 a step"),
    Finding(id="launch", bound="launch", share=0.01, cost_ms=2.0, title="launches", evidence="many"),
)
USAGE = MemoryUsage(
    device="cuda:0",
    source="allocator",
    peak_bytes=1000 << 20,
    step=23,
    phase="backward",
    parts=(
        MemoryPart(category="activations", bytes=700 << 20),
        MemoryPart(category="parameters", bytes=200 << 20),
        MemoryPart(category="held", bytes=90 << 20),
        MemoryPart(category="rounding", bytes=10 << 20),
    ),
    lines=(
        MemoryLine(
            where=("/home/u/proj/net.py", 7, "Net.forward"),
            category="activations",
            bytes=650 << 20,
            blocks=12,
            inside=("/venv/lib/attend.py", 9, "attend"),
        ),
        MemoryLine(where=("/lib/x.py", 1, "f"), category="held", bytes=90 << 20, blocks=3, names=("best[…]",)),
    ),
    holders=(Holder(name="best[…]", bytes=90 << 20, blocks=3, weights=True), Holder(name="x", bytes=5, blocks=1)),
    modules=(
        ModuleMemory(name="net.body", bytes=150 << 20, parts=(MemoryPart(category="parameters", bytes=150 << 20),)),
        ModuleMemory(name="net.head", bytes=50 << 20, parts=(MemoryPart(category="parameters", bytes=50 << 20),)),
    ),
    stays=(Stays(where=("/home/u/proj/train.py", 44, "main"), bytes=20480.0, blocks=1.5, names=("kept",), graph=True),),
    grown_bytes=20480.0,
    idle_gradients_bytes=33 << 20,
    between_bytes=300 << 20,
    reserved_bytes=1500 << 20,
    free_bytes=77 << 20,
    total_bytes=80 << 30,
    used_bytes=2000 << 20,
)
MEMORY_TIMELINE = MemoryTimeline(
    times=(0, 2 * MS, 5 * MS, 9 * MS),
    categories=("parameters", "activations"),
    bytes=((200 << 20,) * 4, (0, 300 << 20, 700 << 20, 0)),
    marks=(Mark(0, "forward", 23), Mark(4 * MS, "backward", 23), Mark(9 * MS, "step end", 24)),
)
DIAGNOSIS = Diagnosis(
    mode="train",
    bound="input",
    step_ms=215.3125,
    spread=Spread(p10=210.2, p50=215.3, p90=231.4),
    throughput=297.125,
    phases=Phases(data=131.25, h2d=4.25, forward=24.5, backward=48.125, optimizer=6.0, other=1.1875),
    gpu_ms=210.0,
    gpu_phases=Phases(data=120.0, h2d=4.0, forward=30.0, backward=50.0, optimizer=6.0),
    findings=FINDINGS,
    steps=100,
    steady_steps=90,
    warmup_steps=5,
    ranks=2,
    device="cuda",
    device_name="NVIDIA H100",
    unknown=("step time is not steady",),
    memory=USAGE,
)
ENVIRONMENT = Environment(
    hotlap="0.1.0",
    python="3.12.1 (/venv/bin/python)",
    os="Linux",
    cpu="AMD EPYC",
    cores=16,
    memory_gib=127.6,
    driver="550.54",
    gpus=(Gpu(name="NVIDIA H100", memory_gib=80.0),),
    variables={"OMP_NUM_THREADS": "4"},
    git_commit="0123456789abcdef",
)
RUN = Run(
    command=("python", "train.py", "--lr", "3e-4"),
    cwd="/home/u/proj",
    environment=ENVIRONMENT,
    status="finished",
    exit_code=0,
    started=1000.0,
    wall_s=25.0,
    levers=(Lever(name="tf32", settings={"a": 1}),),
    recipe="recipe.toml",
)
FACTS = Facts(
    pid=1,
    rank=0,
    world=2,
    argv=("train.py",),
    python="3.12",
    torch="2.13.0",
    cuda="13.0",
    device="cuda",
    device_name="NVIDIA H100",
    peak_memory_bytes=3 << 30,
    loaders=(LoaderFacts(dataset="D", iterable=False, workers=0),),
    roots=(RootFacts(name="Net", parameters=1000, modules=3),),
    optimizers=(OptimizerFacts(name="AdamW", builtin=True, tensors=4),),
)


def steps(rank: int, count: int = 100) -> RankSteps:
    """One warm-up step of a second, one outlier, two left out, the others steady."""
    marks = [
        "warm-up" if i < 5 else "left out" if i in {50, 51} else "outlier" if i == 70 else "steady"
        for i in range(count)
    ]
    walls = [1000.0 if i == 0 else 400.0 if i == 70 else 215.0 + i % 7 for i in range(count)]
    return RankSteps(
        rank=rank,
        step=tuple(range(count)),
        ms=tuple(walls),
        other_ms=(210.0,) * count,
        loss=tuple(2.0 - i / count for i in range(count)),
        mark=tuple(marks),
        outliers=1,
        phases=DIAGNOSIS.phases,
    )  # type: ignore[arg-type]


def bars(label: str, group: Any, kind: str, count: int, span: int) -> Bars:
    """Evenly spaced."""
    each = span // count
    return Bars(
        label=label,
        group=group,
        start=tuple(i * each for i in range(count)),
        dur=(each // 2,) * count,
        kind=(KINDS.index(kind),) * count,
        name=(1,) * count,
        at=(2,) * count,
        count=(1, *(3,) * (count - 1)),
        busy=(each // 2,) * count,
    )


def timeline(bar_count: int = 20, span: int = 200 * MS) -> Timeline:
    """Every group of rows."""
    rows = (
        bars("phases", "phases", "forward", 4, span),
        bars("training thread: ops", "host", "op", bar_count, span),
        bars("device 0, idle", "idle", "idle: input", bar_count, span),
        bars("device 0, stream 7", "device", "compute", bar_count, span),
    )
    return Timeline(
        step=1,
        start_ns=5,
        span_ns=span,
        host=(0, span - 10),
        device=(10, span),
        shortest_ns=1000,
        texts=("", "aten::mm", "train.py:41"),
        rows=rows,
        left_out=2,
    )


def rank_trace(rank: int) -> RankTrace:
    """The answers about a rank, each with numbers of its own."""
    span = 600 * MS
    return RankTrace(
        source="trace.json.gz",
        rank=rank,
        device_name="NVIDIA H100",
        events=12345,
        step_ms=200.0,
        unprofiled_ms=190.5,
        window=Window(start_ns=0, end_ns=span, found_by="ProfilerStep", steps=((0, 200 * MS),) * 3),
        breakdown=(
            Breakdown(
                device=0,
                span_ns=span,
                compute_ns=300 * MS,
                exposed_communication_ns=60 * MS,
                exposed_copy_ns=30 * MS,
                idle_ns=210 * MS,
                communication_ns=0,
                copy_ns=0,
                kernel_ns=0,
                streams=2,
                kernels=50,
            ),
        ),
        gaps=(Gap(cause="input", idle_ns=150 * MS, count=3, longest_ns=60 * MS, doing="next", where=WHERE),),
        idle_ns={"input": 150 * MS, "sync": 60 * MS},
        syncs=(
            Sync(
                cause=".item()",
                call="cudaStreamSynchronize",
                op="aten::item",
                count=3,
                host_ns=9 * MS,
                idle_ns=6 * MS,
                where=WHERE,
            ),
        ),
        kernels=(KernelTime(by="op", key="aten::mm", ns=90 * MS, count=1332, share=0.25, longest_ns=MS, where=WHERE),),
        host=(HostTime(name="aten::mm", ns=MS, total_ns=MS, count=3, where=WHERE),),
        memory=(
            MemoryUse(
                device=0,
                peak_allocated_bytes=5 << 30,
                peak_reserved_bytes=6 << 30,
                allocations=10,
                allocated_bytes=1 << 30,
                driver_allocations=2,
                driver_ns=3 * MS,
            ),
        ),
        roofline=tuple(
            OpRoofline(
                op=op,
                shape="[8, 8]",
                dtype="fp32",
                ns=30 * MS,
                count=3,
                flops=flops,
                bytes=10**9,
                limit=limit,
                of_peak=0.5,
                why_not="fp32 without TF32",
                where=WHERE,
            )
            for op, flops, limit in (
                ("aten::mm", 10**12, "compute"),
                ("aten::add", 0, "bandwidth"),
                ("aten::x", 9, "launch"),
            )
        ),
        peaks=Peaks(name="H100", fp32=66.9, tf32=494.7, bf16=989.4, memory_gbs=3350),
        timeline=timeline(),
        memory_curves=(MemoryCurve(device=0, time=(0, 5, 9), allocated=(1, 9, 3), reserved=(9, 9, 9)),),
        trust=Trust(said=("no stacks",)),
        findings=FINDINGS,
        replay=Replay(
            measured_ms=200.0,
            replayed_ms=199.0,
            predictions=(WhatIf(change="free_input", meaning="batches are there", ms=80.0, gain=2.5),),
        ),
    )


TRACES = TraceReport(
    ranks=(rank_trace(0), rank_trace(1)),
    collectives=(
        Collective(
            name="all_reduce",
            group="0",
            dtype="Float",
            bytes=1 << 20,
            ranks=2,
            group_size=2,
            count=3,
            ns=MS,
            exposed_ns=MS,
            transfer_ns=MS,
            wait_ns=MS,
            skew_ns=MS,
            algorithm_gbs=1.0,
            bus_gbs=99.5,
        ),
    ),
    balance=Ranks(
        loads=tuple(
            RankLoad(
                rank=r,
                step_ns=200 * MS,
                compute_ns=(100 + 50 * r) * MS,
                communication_ns=20 * MS,
                idle_ns=70 * MS,
                input_ns=50 * MS,
                late_ns=9 * MS * r,
            )
            for r in range(2)
        ),
        imbalance=0.2,
        straggler=1,
        cost_ns=9 * MS,
        why="its compute takes longer",
        where=WHERE,
    ),
    findings=FINDINGS,
)
RUN_PAGE = Page(
    title="run one",
    folder="runs/one",
    made="today",
    hotlap="0.1.0",
    run=RUN,
    diagnosis=DIAGNOSIS,
    facts=FACTS,
    problems=(Problem(where="hook", what="it broke"),),
    steps=(steps(0), steps(1)),
    traces=TRACES,
    telemetry=tuple(
        TelemetrySample(
            time=1000.0 + i,
            cpu_percent=50.0,
            rss_bytes=(1 << 29) + i,
            processes=1,
            gpus=(GpuSample(index=0, memory_bytes=2 << 30),),
        )
        for i in range(20)
    ),
    memory=MEMORY_TIMELINE,
    memory_series=MemorySeries(
        steps=(1, 2, 3), allocated=(9 << 20, 11 << 20, 13 << 20), reserved=(20 << 20,) * 3, resident=(0, 0, 0)
    ),
    snippets=(Snippet(where=WHERE, first=39, lines=tuple(f"    line {n} <b>" for n in range(39, 45)), changed=True),),
    artefacts=(
        Artefact(kind="trace", path="/r/trace.json.gz", bytes=9000),
        Artefact(kind="memory", path="/r/m.pickle", bytes=9),
    ),
)
PARITY = Parity(
    ok=True, level="numeric", why="within the tolerance", loss_gap=0.00213, allowed=0.0061, steps=40, samples="same"
)
TUNE = Tune(
    command=RUN.command,
    speedup=2.3125,
    interval=Interval(low=2.25, high=2.375),
    starts=2,
    turns=16,
    before_ms=215.25,
    after_ms=93.125,
    gain=True,
    parity=PARITY,
    baseline=DIAGNOSIS,
    tuned=msgspec.structs.replace(DIAGNOSIS, bound="compute", step_ms=93.5),
    kept=(
        Kept(
            lever="loader-workers",
            settings={"workers": 8},
            risk="exact",
            meaning="loads ahead",
            predicted=2.4375,
            worth=Worth(ratio=2.125, interval=Interval(low=2.0, high=2.25), beside=("slowish",), by="switching"),
        ),
        Kept(lever="slowish", settings={}, risk="numeric", meaning="m", predicted=1.5),
    ),
    dropped=(
        Dropped(lever="channels-last", why="no convolution"),
        Dropped(lever="compile", why="parity failed", ratio=1.4375),
    ),
    trials=(Trial(id=0, purpose="baseline", levers=(), folder="trials/000", outcome="measured"),) * 5,
    proofs=(
        Proof(levers=(Lever(name="loader-workers"),), ratio=2.25, proved=True, at_s=95.0),
        Proof(levers=(Lever(name="loader-workers"), Lever(name="compile")), ratio=2.4, proved=False, at_s=200.0),
        Proof(levers=(Lever(name="loader-workers"), Lever(name="slowish")), ratio=2.3125, proved=True, at_s=300.0),
    ),
    wall_s=581.0,
    break_even_steps=312,
    environment=ENVIRONMENT,
    recipe="recipe.toml",
    complete=False,
    why_incomplete="the budget ended",
)
TUNE_PAGE = Page(
    title="tune one",
    folder="runs/t",
    made="today",
    hotlap="0.1.0",
    tune=TUNE,
    curves=tuple(
        Curve(name=name, trial=i, step=tuple(range(30)), loss=tuple(2.0 - s / 30 + i / 1000 for s in range(30)))
        for i, name in enumerate(("bare command", "bare command again", "recipe"))
    ),
)
TRACE_PAGE = Page(title="trace t", folder="t.json", made="today", hotlap="0.1.0", traces=TRACES)


def advised(page: Page) -> Page:
    """With the advice, as the command gathers it."""
    return msgspec.structs.replace(page, advice=panel(page))


def hostile(value: Any) -> Any:
    """The same record with every text that may be any text replaced."""
    if isinstance(value, msgspec.Struct):
        free = {field.name for field in msgspec.structs.fields(value) if field.type in (str, str | None)}
        changed = {}
        for name in value.__struct_fields__:
            item = getattr(value, name)
            changed[name] = HOSTILE if name in free and item is not None else hostile(item)
        return msgspec.structs.replace(value, **changed)
    if isinstance(value, tuple) and [type(item) for item in value] == [str, int, str]:  # a frame
        return HOSTILE, value[1], HOSTILE
    if isinstance(value, tuple):
        texts = all(isinstance(item, str) for item in value) and not set(value) & {"warm-up", "steady"}
        return tuple(HOSTILE if texts and item else hostile(item) for item in value)
    if isinstance(value, dict):
        return {f"{key}{HOSTILE}": HOSTILE if isinstance(item, str) else hostile(item) for key, item in value.items()}
    return value
