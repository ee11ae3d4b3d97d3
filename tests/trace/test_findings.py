"""Findings from hand-made answers."""

import ast
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hotlap.diagnose.findings
from hotlap.diagnose.findings import compute
from hotlap.diagnose.findings.compute import ISSUING
from hotlap.diagnose.findings.debug_switches import ANOMALY, CUDNN_OFF, FILLED, ID
from hotlap.diagnose.findings.debug_switches import UNTOLD as UNMEASURED
from hotlap.diagnose.findings.host_code import WITHOUT_A_PROFILE
from hotlap.diagnose.profiled import with_traces
from hotlap.diagnose.verdict import UNTOLD, without_untold
from hotlap.levers import all_levers
from hotlap.records.diagnosis import WAITS, Bound, Diagnosis, Finding, Place
from hotlap.records.durations import ms
from hotlap.records.run import Facts, OptimizerFacts, Phases, RootFacts
from hotlap.records.trace import (
    Annotation,
    Breakdown,
    CopyTime,
    Gap,
    HostTime,
    KernelTime,
    Launches,
    MemoryUse,
    OpRoofline,
    Ranks,
    RankTrace,
    Replay,
    Sync,
    TraceReport,
    WhatIf,
    Window,
)
from hotlap.trace.analyses.syncs import BY_OPTIMIZER, WITHIN_AN_OP
from hotlap.trace.answer import Options, answer, view_of
from hotlap.trace.findings import all_findings, findings_of
from hotlap.trace.findings._base import MANY_WAITS
from hotlap.trace.findings._ranks import of_all
from hotlap.trace.read import read
from made_runs import diagnosis_of

MS = 1_000_000
HERE = Place(file="train.py", line=7, function="main")


def answers(**more: object) -> RankTrace:
    """Two steps of 50 ms, 40 ms of each busy with compute."""
    window = Window(start_ns=0, end_ns=100 * MS, found_by="ProfilerStep", steps=((0, 50 * MS), (50 * MS, 100 * MS)))
    device = Breakdown(
        device=0,
        span_ns=100 * MS,
        compute_ns=80 * MS,
        exposed_communication_ns=0,
        exposed_copy_ns=0,
        idle_ns=20 * MS,
        communication_ns=0,
        copy_ns=0,
        kernel_ns=80 * MS,
        streams=1,
        kernels=200,
    )
    plain = RankTrace(source="t", rank=0, device_name="GPU", events=1, window=window, step_ms=50.0, breakdown=(device,))
    return msgspec.structs.replace(plain, **more)


def labelled(phase: str) -> Annotation:
    """A phase as hotlap labels it."""
    return Annotation(name=f"hotlap:{phase}", instances=2, host_ns=MS, projected_ns=MS, busy_ns=MS, kernels=9)


def gap(cause: str, ms: float, where: Place | None = HERE) -> Gap:
    return Gap(cause=cause, idle_ns=int(ms * MS), count=2, longest_ns=int(ms * MS), doing="something", where=where)


LAUNCHES = Launches(
    count=200,
    unlinked=0,
    host_ns=MS,
    latency_p50_ns=1,
    latency_p90_ns=1,
    ahead_p50_ns=1,
    queue_depth_mean=0.5,
    queue_depth_p50=0.0,
    tiny=100,
    tiny_ns=1,
    tiny_below_ns=5000,
    graph_launches=0,
    graph_kernels=0,
)


@pytest.mark.parametrize(
    ("cause", "bound"),
    [
        ("input", "input"),
        ("launch", "launch"),
        ("python", "launch"),
        ("copy", "h2d"),
        ("communication", "communication"),
        ("allocator", "memory"),
    ],
)
def test_idle_time_becomes_the_finding_of_its_cause(cause: str, bound: str) -> None:
    found = findings_of(answers(gaps=(gap(cause, 12), gap("between kernels", 8)), launches=LAUNCHES))
    assert [finding.bound for finding in found] == [bound]
    assert found[0].cost_ms == pytest.approx(6.0) and found[0].share == pytest.approx(0.12)
    assert found[0].where == HERE and found[0].why and found[0].instead and found[0].evidence


@pytest.mark.parametrize(
    ("count", "doing", "phases", "bound"),
    [
        (2, "", ("forward",), "unknown"),
        (2, "hotlap:other", ("forward",), "unknown"),
        (2, "hotlap:optimizer", ("forward",), "launch"),
        (200, "", ("forward",), "launch"),  # what lies between operations, as a loss's
        (2, "", (), "launch"),  # where the model is is not known
    ],
)
def test_idle_time_of_the_loop_s_own_code_is_no_wait_for_launches(
    count: int, doing: str, phases: tuple[str, ...], bound: str
) -> None:
    of_the_loop = msgspec.structs.replace(gap("python", 12), count=count, doing=doing)
    glue = msgspec.structs.replace(gap("python", 8), doing="hotlap:backward")
    (found,) = findings_of(answers(gaps=(of_the_loop, glue), annotations=tuple(map(labelled, phases))))
    assert (found.id, found.bound) == ("host-code", bound)


def test_idle_time_is_scaled_to_the_step_without_the_profiler() -> None:
    """Of 10 ms idle in a step of 50, 5 are left in one of 45: the busy 40 are not the profiler's doing."""
    found = findings_of(answers(gaps=(gap("input", 20),), unprofiled_ms=45.0))
    assert found[0].cost_ms == pytest.approx(5.0) and found[0].share == pytest.approx(5 / 45)


def test_each_line_that_waits_is_a_finding_and_waits_without_idle_time_are_none() -> None:
    def sync(cause: str, idle: float, line: int) -> Sync:
        where = Place(file="train.py", line=line)
        return Sync(
            cause=cause,
            call="cudaStreamSynchronize",
            op="aten::item",
            count=2,
            host_ns=MS,
            idle_ns=int(idle * MS),
            where=where,
        )

    found = findings_of(answers(syncs=(sync("`.item()`", 8, 3), sync("boolean mask", 4, 9), sync("`nonzero`", 0, 11))))
    assert [(f.id, f.where.line if f.where else None, f.cost_ms) for f in found] == [("sync", 3, 4.0), ("sync", 9, 2.0)]
    assert "keep the value on the device" in found[0].instead and "torch.where" in found[1].instead


def waiting(cause: str, count: int, line: int, idle: float, function: str | None = "loss_of") -> Sync:
    where = Place(file="train.py", line=line, function=function)
    return Sync(cause=cause, call="c", op="", count=count, host_ns=MS, idle_ns=int(idle * MS), where=where)


def test_waits_of_a_kind_in_a_function_are_one_finding_at_the_dearest_line() -> None:
    syncs = (waiting("boolean mask", 4, 5, 2), waiting("boolean mask", 4, 7, 6), waiting("`.item()`", 2, 9, 1))
    mask, item = (one for one in findings_of(answers(syncs=syncs)) if one.id == "sync")
    assert mask.where == Place(file="train.py", line=7, function="loss_of") and mask.share == pytest.approx(0.08)
    assert "4 a step" in mask.evidence and "at lines 5, 7" in mask.evidence
    assert item.where is not None and item.where.line == 9


def test_idle_time_between_many_waits_of_a_function_is_theirs() -> None:
    """The host can't be ahead there, so less to launch is no more what helps than to wait less often."""
    here, there = Place(file="train.py", line=6, function="loss_of"), Place(file="train.py", line=60, function="f")
    gaps = (gap("launch", 40, here), gap("launch", 10, there))
    few, many = (
        {one.id: one for one in findings_of(answers(gaps=gaps, launches=LAUNCHES, syncs=(waiting("?", n, 5, 2),)))}
        for n in (2 * MANY_WAITS - 1, 2 * MANY_WAITS)
    )
    assert (few["sync"].share, few["launch"].share) == (pytest.approx(0.02), pytest.approx(0.5))
    assert (many["sync"].share, many["launch"].share) == (pytest.approx(0.42), pytest.approx(0.1))
    assert few["launch"].where == here and "80% of it in loss_of" in few["launch"].evidence
    assert many["launch"].where == there
    assert many["sync"].named and not few["sync"].named
    assert "in place of the loop" in many["sync"].instead and "in place of the loop" not in few["sync"].instead


def in_attention(
    op_: str, shape: str, line: int, ms: float, dtype: str = "fp32", limit: str = "bandwidth"
) -> OpRoofline:
    where = Place(file="model.py", line=line, function="Attention.forward")
    return OpRoofline(
        op=op_, shape=shape, dtype=dtype, ns=int(ms * MS), count=4, flops=0, bytes=1, limit=limit, of_peak=0.5,
        where=where,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("softmax", "bmm", "told"),
    [
        ("[4, 12, 256, 256]", 5, "attention-by-hand"),
        ("[4, 12, 256, 256]", 6, "attention-of-a-module"),  # as torch's own that returns its weights
        ("[4, 12, 256, 8]", 5, None),  # a choice among experts
        ("[1024, 50304]", 5, None),  # over a vocabulary
    ],
)
def test_attention_by_hand_is_told_with_what_its_scores_take(softmax: str, bmm: int, told: str | None) -> None:
    rows = (
        in_attention("aten::bmm", "[48, 256, 64] [48, 64, 256]", bmm, 5, limit="compute"),
        in_attention("aten::_softmax", softmax, 6, 10),
        in_attention("aten::masked_fill_", f"{softmax} [256, 256]", 7 if bmm == 5 else 6, 10),
        in_attention("aten::add", "[4, 256, 768] [4, 256, 768]", 9, 4),
    )
    found = {one.id: one for one in findings_of(answers(roofline=rows))}
    assert {name for name in found if name.startswith("attention")} == ({told} if told else set())
    assert found["bandwidth"].share == pytest.approx(0.04 if told else 0.24)
    if told:
        one = found[told]
        assert one.share == pytest.approx(0.2) and one.where is not None and one.where.line == 6
        change = "scaled_dot_product_attention(q" if told == "attention-by-hand" else "need_weights=False"
        assert change in one.instead and one.levers == ("attention",)


@pytest.mark.parametrize(("others", "told"), [("bf16", True), ("fp32", False)])
def test_attention_in_float32_among_narrower_products_is_told(others: str, told: bool) -> None:
    fused = in_attention("aten::_scaled_dot_product_efficient_attention", "[8, 8, 64, 64]", 6, 30, limit="compute")
    found = {one.id: one for one in findings_of(answers(roofline=(fused, op("compute", 20, True, others))))}
    assert ("float32-attention" in found) is told
    assert found["compute"].share == pytest.approx(0.2 if told else 0.5)


def test_launch_names_the_levers_whose_work_is_in_the_trace() -> None:
    note = Annotation(name="Optimizer.step#SGD.step", instances=2, host_ns=MS, projected_ns=MS, busy_ns=MS, kernels=9)
    softmax = KernelTime(by="op", key="aten::softmax", ns=MS, count=2, share=0.1, longest_ns=MS)
    for more, levers in [
        ({}, ("compile",)),
        ({"annotations": (note,)}, ("compile", "fused-optimizer", "graph-optimizer")),
        ({"annotations": (labelled("forward"),)}, ("compile",)),
        ({"annotations": (labelled("forward"), labelled("backward"))}, ("compile", "graph-training")),
        ({"kernels": (softmax,)}, ("compile", "attention")),
    ]:
        found = findings_of(answers(gaps=(gap("launch", 12),), launches=LAUNCHES, **more))
        assert found[0].levers == levers


def test_plans_of_cudnns_attention_are_told_apart_from_launching() -> None:
    """On an H100 the first call at each new length took 45 ms, each other one 0.07."""
    name = "aten::_cudnn_attention_forward"
    for ns, told in ((24 * 60_000, False), (2 * 45 * MS + 22 * 60_000, True)):
        host = (HostTime(name=name, ns=ns, total_ns=ns, count=24),)
        (found,) = findings_of(answers(gaps=(gap("launch", 12),), launches=LAUNCHES, host=host))
        assert ("enable_cudnn_sdp(False)" in found.instead) is told
        assert ("45.7 ms a step of the host in aten::_cudnn_attention_forward" in found.evidence) is told


def test_small_kernels_are_counted_among_kernels_though_one_launch_may_run_many() -> None:
    """Of 200 kernels, 150 small ones, in two launches of CUDA graphs a step."""
    graphs = msgspec.structs.replace(LAUNCHES, count=4, tiny=150, graph_launches=4, graph_kernels=200)
    (found,) = findings_of(answers(gaps=(gap("launch", 12),), launches=graphs))
    assert "2 launches a step (2 of CUDA graphs, with 100 kernels), 75% of kernels under 5 µs, 400 µs on average" in (
        found.evidence
    )
    more = msgspec.structs.replace(graphs, tiny=5644)
    (found,) = findings_of(answers(gaps=(gap("launch", 12),), launches=more))
    assert "100% of kernels" in found.evidence


def test_waits_for_pageable_copies_are_told_once() -> None:
    """The idle time behind them is that of the copies."""
    wait = Sync(
        cause="pageable host-to-device copy", call="cudaStreamSynchronize", op="aten::to", count=4, host_ns=9 * MS,
        idle_ns=4 * MS, where=HERE,
    )  # fmt: skip
    item = msgspec.structs.replace(wait, cause="`.item()`", op="aten::item")
    found = findings_of(answers(gaps=(gap("copy", 8), gap("sync", 8)), syncs=(wait, item)))
    assert sorted(finding.id for finding in found) == ["h2d", "sync"]


THERE = Place(file="train.py", line=9, function="forward")


def copies(*rows: tuple[str, str, float, int]) -> tuple[CopyTime, ...]:
    """way, within, MiB, exposed ms; out of the device at THERE, in at HERE."""
    return tuple(
        CopyTime(way=way, within=within, count=2, bytes=int(mib * 2**20), exposed_ns=ms * MS,
                 where=THERE if way == "out" else HERE)
        for way, within, mib, ms in rows
    )  # fmt: skip


OFFLOADED = copies(("out", "op", 1000, 12), ("in", "backward", 1000, 12), ("in", "", 100, 4))


def with_copies(*rows: CopyTime, **more: Any) -> RankTrace:
    device = msgspec.structs.replace(
        answers().breakdown[0], compute_ns=60 * MS, exposed_copy_ns=sum(one.exposed_ns for one in rows), idle_ns=12 * MS
    )
    return answers(breakdown=(device,), copies=rows, **more)


def test_offloaded_activations_are_a_cause_and_their_copies_and_waits_no_others() -> None:
    """On an H200 they were 62% of the step, as copies without a line, with the advice to pin the batches."""
    wait = Sync(cause=WITHIN_AN_OP, call="cudaStreamSynchronize", op="aten::conv2d", count=99, host_ns=9 * MS,
                idle_ns=2 * MS, where=THERE)  # fmt: skip
    item = msgspec.structs.replace(wait, cause="`.item()`", op="aten::item", idle_ns=MS, count=2, where=HERE)
    dispatch = msgspec.structs.replace(gap("launch", 6), where=THERE)
    found = {one.id: one for one in findings_of(with_copies(*OFFLOADED, syncs=(wait, item), gaps=(dispatch,)))}
    assert {id_: one.cost_ms for id_, one in found.items()} == {
        "offloaded-activations": pytest.approx((24 + 2 + 6) / 2), "h2d": pytest.approx(2), "sync": pytest.approx(0.5),
    }  # fmt: skip
    offloaded = found["offloaded-activations"]
    assert offloaded.named and offloaded.where == THERE and "0.49 GiB a step" in offloaded.evidence
    assert "save_on_cpu" in offloaded.instead and found["h2d"].where == HERE and found["sync"].where == HERE


@pytest.mark.parametrize(
    "rows",
    [
        copies(("out", "", 1000, 12), ("in", "", 1000, 12)),
        copies(("out", "op", 1000, 12), ("in", "backward", 90, 2)),
        copies(("out", "op", 90, 2), ("in", "backward", 1000, 12)),
        copies(("out", "op", 1, 12), ("in", "backward", 1, 12)),
        (*OFFLOADED, *copies(("out", "backward", 1000, 12), ("in", "op", 1000, 12))),
    ],
)
def test_other_copies_are_no_offloaded_activations(rows: tuple[CopyTime, ...]) -> None:
    """The script's own; a factorisation that a library makes on the host; parameters that come for the backward;
    little; and a function that computes on the host, forward and backward."""
    wait = Sync(cause=WITHIN_AN_OP, call="cudaStreamSynchronize", op="aten::linalg_eig", count=2, host_ns=9 * MS,
                idle_ns=2 * MS, where=THERE)  # fmt: skip
    found = {one.id: one for one in findings_of(with_copies(*rows, syncs=(wait,)))}
    assert set(found) == {"h2d", "sync"} and found["sync"].where == THERE
    assert found["h2d"].cost_ms == pytest.approx(sum(one.exposed_ns for one in rows) / MS / 2)


def test_copies_within_the_device_do_not_have_the_line_of_others() -> None:
    device = msgspec.structs.replace(answers().breakdown[0], exposed_copy_ns=9 * MS)
    (found,) = findings_of(answers(breakdown=(device,), copies=copies(("out", "", 9, 4))))
    assert found.where is None


def test_copies_of_many_lines_have_none() -> None:
    (found,) = findings_of(with_copies(*copies(("out", "", 9, 5), ("in", "", 9, 5))))
    assert found.where in (HERE, THERE), "half of it"
    rows = (
        *copies(("out", "", 9, 4), ("in", "", 9, 4)),
        CopyTime(way="in", within="", count=2, bytes=9, exposed_ns=5 * MS),
    )
    (found,) = findings_of(with_copies(*rows))
    assert found.where is None


SCRIPT = """
def step(model, x):
    with save_on_cpu(pin_memory=True):
        loss = model(x).mean()
"""


@pytest.mark.parametrize("updates", [40, 10])
@pytest.mark.parametrize(("peak", "fits"), [(30, True), (79, False)])
def test_what_the_run_knows_of_offloaded_activations(peak: int, fits: bool, updates: int, tmp_path: Path) -> None:
    """0.5 GiB a step; of four backwards in each update, 0.125 at once. 80 GiB are there, of which 72 may be used."""
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    root = RootFacts(name="Net", parameters=9, modules=3, called=("other.py", 4, "step"))
    facts = Facts(pid=1, rank=0, world=1, argv=(str(file),), python="3.12", torch="2.13.0", roots=(root,),
                  backwards=40, optimizer_steps=updates)  # fmt: skip
    rank = with_copies(*OFFLOADED)
    report = TraceReport(ranks=(rank,), findings=findings_of(rank))
    run = diagnosis(Finding(id="compute", bound="compute", share=0.1))
    run = msgspec.structs.replace(run, peak_bytes=peak * 2**30, memory_bytes=80 * 2**30)
    first = with_traces(run, report, None, facts).findings[0]
    assert first.id == "offloaded-activations" and first.where == Place(file=str(file), line=3, function="step")
    assert first.named is fits and f"{peak}.0 of 80.0 GiB" in first.evidence
    assert ("to spare" in first.title) is fits and ("save_on_cpu" in first.instead) is fits
    assert ("checkpoint" in first.instead) is not fits
    facts = msgspec.structs.replace(facts, argv=("unknown.py",))
    tight = msgspec.structs.replace(run, peak_bytes=int(71.7 * 2**30))
    first = with_traces(tight, report, None, facts).findings[0]
    assert first.named is (updates == 10) and first.where == Place(file="other.py", line=4, function="step")


def op(limit: str, ms: float, tensor_cores: bool | None, dtype: str = "fp32") -> OpRoofline:
    return OpRoofline(
        op="aten::mm", shape="[8, 8] [8, 8]", dtype=dtype, ns=int(ms * MS), count=4, flops=1, bytes=1, limit=limit,
        of_peak=0.7, tensor_cores=tensor_cores, why_not="" if tensor_cores is not False else "no TF32", where=HERE,
    )  # fmt: skip


def test_busy_time_is_divided_into_arithmetic_with_and_without_tensor_cores_and_data_movement() -> None:
    replay = Replay(
        measured_ms=50, replayed_ms=50, predictions=(WhatIf(change="tf32_matmuls", meaning="", ms=30, gain=50 / 30),)
    )
    rows = (op("compute", 30, False), op("compute", 20, True, "bf16"), op("bandwidth", 10, None))
    found = {finding.id: finding for finding in findings_of(answers(roofline=rows, replay=replay))}
    assert found["no-tensor-cores"].cost_ms == pytest.approx(20) and found["no-tensor-cores"].share == pytest.approx(
        0.3
    )
    assert found["compute"].share == pytest.approx(0.2) and found["compute"].cost_ms is None
    assert found["bandwidth"].share == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "of_peak", "told"),
    [
        (
            "aten::mm",
            "[8192, 512] [512, 50257]",
            "bf16",
            0.2,
            "50257, a layer's width or a vocabulary's, padded to 50304",
        ),
        ("aten::addmm", "[512] [8192, 363] [363, 512]", "fp16", 0.1, "363, a layer's width"),
        ("aten::mm", "[8192, 512] [512, 362]", "tf32", 0.2, "padded to 384"),
        ("aten::mm", "[8192, 512] [512, 364]", "tf32", 0.2, ""),  # 16 bytes
        ("aten::mm", "[8192, 512] [512, 50304]", "bf16", 0.2, ""),
        ("aten::mm", "[512, 8191] [8191, 512]", "bf16", 0.2, ""),  # a batch's rows, which lie apart
        ("aten::addmm", "[512] [8191, 512] [512, 512]", "bf16", 0.2, ""),
        ("aten::mm", "[8192, 512] [512, 50257]", "bf16", 0.8, ""),  # fast all the same
        ("aten::mm", "[8192, 512] [512, 50257]", "fp32", 0.2, ""),  # not on the tensor cores
        ("aten::mm", "[8192, 512] [512, 10]", "bf16", 0.01, ""),
        ("aten::_scaled_dot_product_x", "[8, 3, 99, 99] [8, 3, 99, 99]", "bf16", 0.2, ""),
    ],
)
def test_a_dimension_that_fast_kernels_do_not_take_is_to_be_padded(
    name: str, shape: str, dtype: str, of_peak: float, told: str
) -> None:
    for cores, found in ((True, "compute"), (False, "no-tensor-cores")):
        row = msgspec.structs.replace(op("compute", 20, cores, dtype), op=name, shape=shape, of_peak=of_peak)
        (one,) = findings_of(answers(roofline=(row,)))
        assert one.id == found and ("padded" in one.instead) is bool(told) and told in one.instead
    (one,) = findings_of(answers(roofline=(row := msgspec.structs.replace(row, tensor_cores=True),)))
    assert ("is no multiple of" in one.evidence) is bool(told)
    others = op("compute", 90, True, "bf16")  # of which it is a small part
    assert "padded" not in findings_of(answers(roofline=(row, others)))[0].instead


def test_slow_arithmetic_says_which_kernels_ran() -> None:
    ran = "Memset (Device)", "void cudnn::fusion::compute_dot<true, 64>(void const*)", "sm90_xmma_dgrad", "third"
    said = []
    for reached in (0.1, 0.8):
        row = msgspec.structs.replace(op("compute", 20, True, "bf16"), of_peak=reached, kernels=ran)
        (one,) = findings_of(answers(roofline=(row,)))
        assert one.instead == "less to compute"
        said.append((one.evidence.partition("peak")[2], one.why))
    assert said[0][0] == ", in compute_dot and sm90_xmma_dgrad" and "reach no more" in said[0][1]
    assert said[1][0] == "" and "as fast as" in said[1][1]


def test_of_kernels_without_sizes_those_move_data_whose_names_say_so() -> None:
    """20 of 80 ms have no sizes. An optimizer's lists of tensors move data; what cuDNN's RNNs do is not known."""

    def share(**named: float) -> float:
        kernels = [
            KernelTime(by="name", key=key, ns=int(ms * MS), count=1, share=0.1, longest_ns=1)
            for key, ms in named.items()
        ]
        rows = (op("compute", 50, True), op("bandwidth", 10, None))
        found = findings_of(answers(roofline=rows, kernels=tuple(kernels)))
        return next(finding.share for finding in found if finding.id == "bandwidth")

    assert share(RNN_blockPersist_fp_GRU=20.0) == pytest.approx(0.1)
    assert share(multi_tensor_apply_kernel=18.0, vectorized_elementwise_kernel=10.0) == pytest.approx(0.28)
    assert share(multi_tensor_apply_kernel=100.0) == pytest.approx(0.3)


def test_copies_within_the_device_are_traffic_of_its_memory_and_not_of_the_host() -> None:
    def found(inside: int, *names: str) -> dict[str, float]:
        one = msgspec.structs.replace(answers().breakdown[0], exposed_copy_ns=12 * MS, exposed_inside_ns=inside * MS)
        copies = [KernelTime(by="name", key=name, ns=12 * MS, count=1, share=0.1, longest_ns=1) for name in names]
        rows = (op("compute", 70, True), op("bandwidth", 10, None))
        told = findings_of(answers(breakdown=(one,), roofline=rows, kernels=tuple(copies)))
        return {one.id: one.share for one in told if one.id in {"h2d", "bandwidth"}}

    assert found(0, "Memcpy HtoD (Pinned -> Device)") == {"h2d": pytest.approx(0.12), "bandwidth": pytest.approx(0.1)}
    assert found(12, "Memcpy DtoD (Device -> Device)") == {"bandwidth": pytest.approx(0.12)}
    assert found(2, "Memset (Device)")["h2d"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("kind", "size", "pinned", "small"),
    [("Pageable", 192 << 20, True, False), ("Pinned", 192 << 20, False, False), ("Pageable", 64, True, True)],
)
def test_copies_of_pageable_memory_say_so_and_numbers_alone_are_made_once(
    kind: str, size: int, pinned: bool, small: bool
) -> None:
    row = KernelTime(by="name", key=f"Memcpy HtoD ({kind} -> Device)", ns=30 * MS, count=2, share=0.3, longest_ns=1)
    there = Place(file="train.py", line=60, function="batches")
    copies = (
        CopyTime(way="in", within="", count=2, bytes=2 * size, exposed_ns=30 * MS, where=HERE),
        CopyTime(way="in", within="", count=1, bytes=size // 8, exposed_ns=MS, where=there),
    )
    one = msgspec.structs.replace(answers().breakdown[0], exposed_copy_ns=31 * MS)
    gaps = (gap("copy", 1, there),)  # the little that it waits is elsewhere
    found = {one.id: one for one in findings_of(answers(breakdown=(one,), kernels=(row,), copies=copies, gaps=gaps))}
    told = found["h2d"]
    assert told.where == HERE, "where most of it is copied"
    assert ("pin_memory()" in told.instead) is ("staging" in told.why) is pinned
    assert ("torch.tensor([...])" in told.instead) is small
    assert ("192.0 MiB a step" in told.evidence) is not small


def test_an_optimizer_is_named_where_one_pass_would_win() -> None:
    note = Annotation(
        name="Optimizer.step#AdamW.step", instances=2, host_ns=MS, projected_ns=MS, busy_ns=6 * MS, kernels=100
    )
    for without, named in ((48.0, True), (50.0, False)):
        replay = Replay(
            measured_ms=50,
            replayed_ms=50,
            predictions=(WhatIf(change="fused_optimizer", meaning="", ms=without, gain=50 / without),),
        )
        found = findings_of(answers(annotations=(note,), replay=replay))
        assert [finding.id for finding in found] == (["optimizer"] if named else [])
        assert not named or found[0].cost_ms == pytest.approx(2.0)


def test_driver_allocations_are_counted_per_step() -> None:
    use = MemoryUse(
        device=0,
        peak_allocated_bytes=1,
        peak_reserved_bytes=1,
        allocations=1,
        allocated_bytes=1,
        driver_allocations=8,
        driver_ns=MS,
    )
    found = findings_of(answers(gaps=(gap("allocator", 10),), memory=(use,)))
    assert found[0].evidence.startswith("4 driver allocations a step") and found[0].levers == ("allocator",)


def device(compute: float, communication: float, idle: float, copy: float = 0.0) -> Breakdown:
    """Of two steps of 50 ms: ms a step."""
    span = 2 * round((compute + communication + idle + copy) * MS)
    return Breakdown(
        device=0,
        span_ns=span,
        compute_ns=round(2 * compute * MS),
        exposed_communication_ns=round(2 * communication * MS),
        exposed_copy_ns=round(2 * copy * MS),
        idle_ns=round(2 * idle * MS),
        communication_ns=round(2 * communication * MS),
        copy_ns=round(2 * copy * MS),
        kernel_ns=round(2 * (compute + communication) * MS),
        streams=1,
        kernels=200,
    )


def of_rank(number: int, **more: object) -> RankTrace:
    known = answers(rank=number, **more)
    return msgspec.structs.replace(known, findings=findings_of(known))


def balanced(straggler: int | None = 1, cost: float = 20.0, cause: str | None = "input") -> Ranks:
    return Ranks(loads=(), imbalance=0.0, straggler=straggler, cost_ns=round(cost * MS), cause=cause, why="its input")


WAITING = {"breakdown": (device(22, 25, 3),), "waited_ns": 40 * MS}
"""Of 25 ms of collectives 20 are waiting: 5 are transfer."""
LATE = {"breakdown": (device(22, 5, 23),), "waited_ns": 0, "gaps": (gap("input", 44), gap("launch", 2))}


def test_a_wait_for_a_late_rank_is_the_stragglers_and_no_communication() -> None:
    found = of_all([of_rank(0, **WAITING), of_rank(1, launches=LAUNCHES, **LATE)], balanced())
    costs = {finding.id: finding.cost_ms for finding in found}
    assert [finding.id for finding in found] == ["straggler", "communication", "input", "launch"]
    assert costs == {"straggler": 20.0, "communication": 5.0, "input": pytest.approx(2.0), "launch": 1.0}
    assert "rank 1" in found[0].title and found[0].share == pytest.approx(0.4)
    assert found[0].evidence == "20.0 ms a step; its input"
    assert "only traces of all ranks" not in found[1].evidence


def test_the_straggler_has_the_place_and_levers_of_what_makes_it_late_which_is_not_told_twice() -> None:
    found = {one.id: one for one in of_all([of_rank(0, **WAITING), of_rank(1, **LATE)], balanced())}
    assert found["straggler"].where == HERE and found["straggler"].levers == ("loader-workers",)
    assert "20.0 ms of it is counted with rank 1" in found["input"].evidence and found["input"].share == pytest.approx(
        0.04
    )
    unknown = {one.id: one for one in of_all([of_rank(0, **WAITING), of_rank(1, **LATE)], balanced(cause=None))}
    assert unknown["input"].cost_ms == 22.0 and unknown["straggler"].levers == ()
    whole = of_all([of_rank(0, **WAITING), of_rank(1, **LATE)], balanced(cost=22.0))
    assert "input" not in {one.id for one in whole}


def test_waiting_for_a_slow_host_is_scaled_to_the_step_without_the_profiler() -> None:
    """Rank 1 has 27 ms of work in each step; of its 23 ms idle 2.3 are left in a step of 29.3. With 37 ms of work no
    idle time is left, and the 10 that its work takes longer are 10/37 of the step."""
    for more, cost in (({}, 2.0), ({"breakdown": (device(32, 5, 13),)}, 29.3 * 10 / 37)):
        late = {**LATE, **more, "unprofiled_ms": 29.3}
        found = of_all([of_rank(0, **WAITING, unprofiled_ms=29.3), of_rank(1, **late)], balanced(cause="host"))
        named = next(one for one in found if one.id == "straggler")
        assert named.cost_ms == pytest.approx(cost) and named.share == pytest.approx(cost / 29.3)
        assert f"{ms(cost)} a step (20.0 ms under the profiler); its input" == named.evidence


def test_what_a_trace_tells_is_a_share_of_its_own_steps() -> None:
    """40 of 50 ms are busy: in a run whose steps take 25 ms, or 100, that is all of them, or four fifths."""
    rows = op("compute", 60, True), op("bandwidth", 20, None)
    for step, of in ((25.0, 40.0), (45.0, 45.0), (100.0, 50.0)):
        found = {
            one.id: one
            for one in findings_of(
                answers(roofline=rows, gaps=(gap("launch", 20.0),), launches=LAUNCHES, unprofiled_ms=step)
            )
        }
        assert found["compute"].share == pytest.approx(30 / of)
        assert found["compute"].evidence.startswith(f"{ms(step * 30 / of)} a step")
        assert sum(one.share for one in found.values()) == pytest.approx(1.0)


def test_a_trace_and_a_run_are_scaled_by_the_same_rule() -> None:
    """19% of a step its threads wait for a core: the rest leaves 81% to be divided."""
    waits = Finding(id="cpu-crowded", bound="unknown", share=0.19, named=True)
    rank = answers(roofline=(op("compute", 80, True),), unprofiled_ms=45.0)
    traces = TraceReport(ranks=(rank,), findings=findings_of(rank))
    found = {one.id: one.share for one in with_traces(diagnosis(waits), traces).findings}
    assert found == {"cpu-crowded": 0.19, "compute": pytest.approx(0.81 * 40 / 45)}


@pytest.mark.parametrize(
    ("id_", "way", "stays"), [("h2d", "in", False), ("waits-in-copies", "in", False), ("h2d", "out", True)]
)
def test_copies_in_a_trace_decide_what_they_take(id_: str, way: str, stays: bool) -> None:
    """19% by the events around them; in the trace they are next to nothing."""
    copied = CopyTime(way=way, within="", count=2, bytes=4 << 20, exposed_ns=80_000)
    run = diagnosis(Finding(id=id_, bound="h2d", share=0.19))
    found = with_traces(run, TraceReport(ranks=(answers(copies=(copied,)),), findings=())).findings
    assert [one.id for one in found] == [id_] * stays


def test_waits_of_the_host_are_those_of_the_step_without_the_profiler() -> None:
    """30 of the trace's 50 ms a step."""
    waits = Sync(
        call="cudaStreamSynchronize",
        op="aten::item",
        cause="`.item()`",
        where=HERE,
        count=2,
        host_ns=60 * MS,
        idle_ns=10 * MS,
    )
    (found,) = [one for one in findings_of(answers(syncs=(waits,), unprofiled_ms=45.0)) if one.id == "sync"]
    assert f"the host waits {ms(45.0 * 30 / 50)} a step" in found.evidence


@pytest.mark.parametrize(
    "name",
    [
        "compiled-step.json.gz",
        "fp32-step.json.gz",
        "item-wait.json.gz",
        "straggler-rank0.json.gz",
        "eager.json",
        "graphs.json",
        "ddp.json",
        "stacks.json",
    ],
)
def test_nothing_takes_longer_than_the_step(name: str) -> None:
    """Of kept traces, whatever a step of the run took."""
    trace = read(Path(__file__).with_name("data") / name)
    kept = answer(view_of(trace), 0, Options())
    for times in (0.05, 0.5, 0.9, 1.0, 1.5, 20.0):
        step = times * kept.step_ms
        found = findings_of(msgspec.structs.replace(kept, unprofiled_ms=step))
        traces = TraceReport(ranks=(msgspec.structs.replace(kept, unprofiled_ms=step),), findings=found)
        whole = with_traces(diagnosis(step_ms=step), traces).findings
        for one in (*found, *whole):
            assert 0 <= one.share <= 1 and (one.cost_ms or 0.0) <= step * 1.001, one
            said = re.findall(r"([\d.,]+) (m?s) a step", one.evidence)
            assert all(
                float(of.replace(",", "")) * (1 if unit == "ms" else 1000) <= step * 1.01 + 0.01 for of, unit in said
            ), one
        idle = sum(one.share for one in found if one.id in {"launch", "input", "sync", "host-code", "allocator"})
        assert idle <= 1.001


def test_no_cost_exceeds_the_step_without_the_profiler() -> None:
    ranks = [of_rank(0, breakdown=(device(5, 45, 0),), unprofiled_ms=30.0), of_rank(1, **LATE, unprofiled_ms=30.0)]
    found = of_all(ranks, balanced(cost=45.0, cause="compute"))
    assert {one.id for one in found} >= {"communication", "straggler"}
    assert all(one.cost_ms <= 30.0 for one in found if one.cost_ms is not None)


def test_ranks_that_wait_for_one_another_are_told_apart_from_the_transfer_too() -> None:
    found = of_all([of_rank(0, **WAITING), of_rank(1, **WAITING)], balanced(straggler=None))
    assert [(one.id, one.cost_ms) for one in found] == [("imbalance", 20.0), ("communication", 5.0)]
    little = {**WAITING, "waited_ns": MS}
    assert "imbalance" not in {one.id for one in of_all([of_rank(0, **little)] * 2, balanced(straggler=None))}


def test_of_one_ranks_trace_waiting_is_not_told_from_transfer() -> None:
    (found,) = findings_of(answers(breakdown=(device(22, 25, 3),)))
    assert (found.id, found.cost_ms) == ("communication", 25.0) and "traces of all ranks" in found.evidence


def test_a_cause_that_ranks_share_is_told_once_with_the_largest_cost_and_a_place_that_is_known() -> None:
    there = Place(file="train.py", line=40)
    quiet = balanced(straggler=None)
    more = {"waited_ns": 0, "launches": LAUNCHES}
    first = of_rank(0, breakdown=(device(22, 8, 20),), talks_at=there, gaps=(gap("launch", 8),), **more)
    second = of_rank(1, breakdown=(device(22, 9, 19),), gaps=(gap("launch", 12, None),), **more)
    found = of_all([first, second], quiet)
    assert [(one.id, one.cost_ms, one.where) for one in found] == [
        ("communication", 9.0, there),
        ("launch", 6.0, HERE),
    ]


def test_lines_that_wait_stay_apart() -> None:
    def waits(line: int) -> tuple[Sync, ...]:
        where = Place(file="train.py", line=line)
        return (Sync(cause="`.item()`", call="c", op="", count=2, host_ns=MS, idle_ns=8 * MS, where=where),)

    found = of_all([of_rank(0, syncs=waits(3)), of_rank(1, syncs=waits(3) + waits(9))], balanced(straggler=None))
    assert sorted(one.where.line for one in found if one.where and one.where.line) == [3, 9]


def test_every_finding_holds_its_contract() -> None:
    """On answers that hold everything, and on those that hold nothing."""
    replay = Replay(
        measured_ms=50,
        replayed_ms=50,
        predictions=(
            WhatIf(change="tf32_matmuls", meaning="", ms=30, gain=5 / 3),
            WhatIf(change="fused_optimizer", meaning="", ms=40, gain=1.25),
            WhatIf(change="free_input", meaning="", ms=0, gain=float("inf")),
        ),
    )
    causes = ("input", "launch", "python", "copy", "communication", "allocator", "sync", "unknown")
    half = op("compute", 70, True, "bf16")
    wide = in_attention("aten::_scaled_dot_product_efficient_attention", "[8, 8, 64, 64]", 6, 4, limit="compute")
    by_hand = in_attention("aten::_softmax", "[4, 12, 256, 256]", 6, 4), in_attention("aten::bmm", "[48, 8, 8]", 5, 1)
    full = answers(
        gaps=tuple(gap(cause, 2) for cause in causes),
        launches=LAUNCHES,
        roofline=(
            op("compute", 30, False),
            op("compute", 20, True),
            op("bandwidth", 5, None),
            op("launch", 5, None),
            half,
            wide,
            *by_hand,
            in_attention("aten::_scaled_dot_product_a", f"{QKV} [512, 512]", 6, 4, "bf16", limit="compute"),
            convolution("convolution", 5, IM2COL),
        ),
        annotations=(
            Annotation(name="Optimizer.step#X", instances=2, host_ns=1, projected_ns=1, busy_ns=MS, kernels=9),
        ),
        syncs=(Sync(cause="?", call="c", op="", count=1, host_ns=1, idle_ns=MS),),
        copies=copies(("out", "op", 9, 1), ("in", "backward", 9, 1), ("in", "", 9, 1)),
        replay=replay,
    )
    found = findings_of(full)
    assert {finding.id for finding in found} == {
        "input", "launch", "host-code", "h2d", "communication", "allocator", "no-tensor-cores", "compute", "bandwidth",
        "optimizer", "sync", "attention-by-hand", "float32-attention", "offloaded-activations", "masked-attention",
        "slow-convolution",
    }  # fmt: skip
    assert len({finding.id for finding in found}) == len(all_findings()) + 2  # attention has three
    for finding in found:
        assert 0 < finding.share <= 1 and finding.title and finding.evidence and finding.why and finding.instead
        assert finding.cost_ms is None or 0 <= finding.cost_ms <= full.step_ms
        assert set(finding.levers) <= set(all_levers())
    empty = RankTrace(source="t", rank=0, device_name="cpu", events=0, window=full.window, step_ms=0.0)
    assert findings_of(empty) == () and findings_of(answers()) == ()


def diagnosis(*findings: Finding, step_ms: float = 45.0) -> Diagnosis:
    return diagnosis_of(bound=findings[0].bound if findings else "unknown", step_ms=step_ms, findings=findings)


def test_the_traces_findings_take_the_place_of_the_runs_and_decide_the_bound() -> None:
    run = diagnosis(Finding(id="input", bound="input", share=0.5), Finding(id="compute", bound="compute", share=0.4))
    rank = answers()
    better = (
        Finding(id="sync", bound="sync", share=0.6),
        Finding(id="compute", bound="compute", share=0.3, title="mm"),
    )
    found = with_traces(run, TraceReport(ranks=(rank,), findings=better))
    assert found.bound == "sync"
    assert [(f.id, f.title) for f in found.findings] == [("sync", ""), ("input", ""), ("compute", "mm")]


def test_on_the_cpu_the_traces_name_the_ops_only() -> None:
    run = diagnosis(
        Finding(id="input", bound="input", share=0.5), Finding(id="compute", bound="compute", share=0.4, evidence="x")
    )
    host = (
        HostTime(name="(no event)", ns=9 * MS, total_ns=9 * MS, count=1),
        HostTime(name="aten::mm", ns=5 * MS, total_ns=5 * MS, count=1, where=HERE),
        HostTime(name="aten::add", ns=4 * MS, total_ns=4 * MS, count=1),
        HostTime(name="aten::mm", ns=3 * MS, total_ns=3 * MS, count=1),
    )
    slow = with_traces(run, TraceReport(ranks=(answers(breakdown=(), model=host, unprofiled_ms=25.0),)))
    assert slow.findings[1].evidence == "x; most time, in a trace of 2 steps: aten::mm 2.00 ms, aten::add 1.00 ms", (
        "of a step of 25 ms"
    )
    found = with_traces(run, TraceReport(ranks=(answers(breakdown=(), model=host),)))
    assert (
        found.bound == "input"
        and found.findings[1].evidence == "x; most time, in a trace of 2 steps: aten::mm 4.00 ms, aten::add 2.00 ms"
        and found.findings[1].where == HERE
    )


@pytest.mark.parametrize(("name", "told"), [("aten::_is_any_true", True), ("aten::any", False)])
def test_what_anomaly_detection_takes_at_least(name: str, told: bool) -> None:
    """The script's own `isnan` beside one for each gradient is not counted with it."""
    seen = Finding(id=ID, bound="unknown", share=0.0, named=True, title=ANOMALY, evidence=f"on{UNMEASURED}")
    host = (
        HostTime(name=name, ns=3 * MS, total_ns=3 * MS, count=6),
        HostTime(name="aten::isnan", ns=1, total_ns=8 * MS, count=12),
    )
    run = diagnosis(seen, Finding(id="compute", bound="compute", share=0.9))
    found = with_traces(run, TraceReport(ranks=(answers(breakdown=(), model=host, unprofiled_ms=100.0),)))
    first = found.findings[0]
    assert (first.id, first.cost_ms, first.share > 0) == (ID, None, told)
    assert ("check for NaN alone takes 7.00 ms" in first.evidence) is told
    assert (UNMEASURED in first.evidence) is not told


@pytest.mark.parametrize(("fills", "zeros", "share"), [(40, 10, 0.2), (0, 0, 0.0)])
def test_what_deterministic_fill_takes(fills: int, zeros: int, share: float) -> None:
    """Where next to nothing, as in a step of products, it is no cause that comes first."""
    seen = Finding(id=ID, bound="unknown", share=0.0, named=True, title=FILLED, evidence=f"on{UNMEASURED}")
    host = (
        HostTime(name="aten::fill_", ns=0, total_ns=60 * MS * (fills > 0), count=fills),
        HostTime(name="aten::zero_", ns=0, total_ns=3 * MS, count=zeros),
        HostTime(name="aten::mm", ns=9 * MS, total_ns=9 * MS, count=9),
    )
    run = diagnosis(seen, Finding(id="compute", bound="compute", share=0.9))
    found = with_traces(run, TraceReport(ranks=(answers(breakdown=(), model=host, unprofiled_ms=20.0),))).findings
    one = next(one for one in found if one.id == ID)
    assert one.share == pytest.approx(share) and UNMEASURED not in one.evidence
    assert (found[0] is one) is (one.share >= 0.1)


def row(name: str, took: int, line: int | None = None, total: int = 0) -> HostTime:
    where = None if line is None else Place(file="t.py", line=line, function="f")
    return HostTime(name=name, ns=took * MS, total_ns=(total or took) * MS, count=1, where=where)


def test_on_the_cpu_the_line_of_computing_is_the_dearest_in_all() -> None:
    """numgan was told the discriminator's line "of Generator", timegan the line that calls its backward."""
    said = f"x{compute.LINE_OF.format('Generator')}; y"
    run = msgspec.structs.replace(
        diagnosis(Finding(id="compute", bound="compute", share=0.9, evidence=said, where=HERE)),
        phases=Phases(forward=10.0, backward=20.0, optimizer=5.0),
    )
    labels = [row("hotlap:forward", 1, 2, 10), row("hotlap:backward", 1, 3, 20), row("hotlap:optimizer", 1, 4, 5)]
    ops = [row("aten::copy_", 8, 3), row("aten::mm", 6, 57), row("aten::addmm", 4, 80), row("aten::mm", 3, 80)]
    (found,) = with_traces(
        run, TraceReport(ranks=(answers(breakdown=(), model=(*ops, *labels), unprofiled_ms=45.0),))
    ).findings
    assert found.where is not None and found.where.line == 80
    assert found.evidence.startswith("x; y; most time, in a trace of 2 steps: aten::mm 4.05 ms")
    bare = [row("aten::copy_", 8, 3), row("aten::sqrt", 8, 4), *labels]
    (found,) = with_traces(run, TraceReport(ranks=(answers(breakdown=(), model=bare),))).findings
    assert found.where == HERE and found.evidence.startswith(said), "no other line is known"


@pytest.mark.parametrize(("traced", "told"), [(1, True), (14, False)])
def test_ops_that_contradict_the_phases_are_not_told(traced: int, told: bool) -> None:
    """1.99 ms of an op of the backward stood beside a backward of 0.37 ms."""
    run = msgspec.structs.replace(
        diagnosis(Finding(id="compute", bound="compute", share=0.1)),
        phases=Phases(forward=2.0, backward=1.0, optimizer=1.0, other=41.0),
    )
    backward = row("hotlap:backward", 0, 3, traced)
    ops = (row("torch::autograd::CopyBackwards", traced, 9), row("hotlap:forward", 0, 2, 2), backward)
    (found,) = with_traces(run, TraceReport(ranks=(answers(breakdown=(), model=ops),))).findings
    assert ("CopyBackwards" in found.evidence) is told and ("arithmetic" in found.why) is told
    assert ("in the profiled steps" in found.why) is not told


@pytest.mark.parametrize(("calls", "bound"), [(100, "compute"), (1300, "launch"), (2600, "launch")])
def test_lower_precision_is_no_advice_where_small_operations_take_more_than_arithmetic(calls: int, bound: str) -> None:
    """deepfm: arithmetic took 2% of the operations' time, and autocast stood first."""
    levers = ("bf16-autocast", "compile", "channels-last")
    lower = "lower precision if this CPU supports it, compiled kernels"
    run = diagnosis(
        Finding(id="compute", bound="compute", share=0.9, title="computing Net", instead=lower, levers=levers)
    )
    product = HostTime(name="aten::mm", ns=4 * MS, total_ns=4 * MS, count=10)
    small = HostTime(name="aten::mul", ns=calls * 4000, total_ns=calls * 4000, count=calls)
    (found,) = with_traces(run, TraceReport(ranks=(answers(breakdown=(), model=(product, small)),))).findings
    issued = bound == "launch"
    assert (found.bound, found.title) == (bound, ("issuing small operations of" if issued else "computing") + " Net")
    assert ("lower precision" in found.instead, "bf16-autocast" in found.levers) == (not issued, not issued)
    assert ("under 10 us each" in found.why) is issued
    assert "channels-last" not in found.levers, "there is no convolution"
    large = msgspec.structs.replace(small, count=calls // 4)
    (found,) = with_traces(run, TraceReport(ranks=(answers(breakdown=(), model=(large,)),))).findings
    assert (found.title, found.instead, found.levers) == ("computing Net", "compiled kernels", ("compile",))
    assert found.bound == "bandwidth", "large operations that compute next to nothing"
    convolution = msgspec.structs.replace(product, name="aten::mkldnn_convolution")
    (found,) = with_traces(run, TraceReport(ranks=(answers(breakdown=(), model=(convolution, large)),))).findings
    moves = "compute" if calls == 100 else "bandwidth"  # the products take more than half of the time, or less
    assert (found.bound, found.levers) == (moves, levers)


def test_a_step_of_mostly_small_operations_is_not_bound_by_computing() -> None:
    """treelstm: arithmetic took 25%, small operations 46%; Rainbow: arithmetic 29%, moving data most."""
    run = diagnosis(Finding(id="compute", bound="compute", share=0.9, title="computing Net"))
    product, moves = row("aten::mm", 25), row("aten::copy_", 29)
    small = HostTime(name="aten::mul", ns=46 * MS, total_ns=46 * MS, count=9000)
    for rows, bound in (
        ((product, moves, small), "launch"),
        ((product, row("aten::copy_", 50), small), "compute"),  # there is no one thing
        ((row("aten::mm", 29), row("aten::sqrt", 60)), "bandwidth"),
    ):
        (found,) = with_traces(run, TraceReport(ranks=(answers(breakdown=(), model=rows),))).findings
        assert found.bound == bound


def test_nothing_that_a_trace_tells_is_said_to_take_one() -> None:
    computing = Finding(id="compute", bound="compute", share=0.4, why=UNTOLD[0])
    waits = Finding(id="expert-loop", bound="launch", share=0.0, named=True, evidence=f"none queued{UNTOLD[1]}")
    host = (
        HostTime(name="aten::addmm", ns=6 * MS, total_ns=6 * MS, count=1),
        HostTime(name="aten::mkldnn_convolution", ns=3 * MS, total_ns=3 * MS, count=1),
        HostTime(name="aten::clamp_min", ns=3 * MS, total_ns=3 * MS, count=1),
    )
    computing, waits = map(without_untold, (computing, waits))
    cpu = with_traces(diagnosis(computing), TraceReport(ranks=(answers(breakdown=(), model=host),)))
    assert cpu.findings[0].why.startswith("in the trace arithmetic (matrix products, convolutions) takes 75% of")
    small = msgspec.structs.replace(computing, why=ISSUING)
    cpu = with_traces(diagnosis(small), TraceReport(ranks=(answers(breakdown=(), model=host),)))
    assert cpu.findings[0].why == ISSUING
    gpu = with_traces(diagnosis(waits, computing), TraceReport(ranks=(answers(),)))
    assert [(one.id, one.why, one.evidence) for one in gpu.findings] == [
        ("expert-loop", "", "none queued"),
        ("compute", "", ""),
    ]


def test_what_findings_say_of_traces_and_profiles_is_known_where_there_is_one() -> None:
    told = "".join((*UNTOLD, WITHOUT_A_PROFILE))
    for file in Path(hotlap.diagnose.findings.__file__).parent.glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        texts = {one.value for one in ast.walk(tree) if isinstance(one, ast.Constant) and isinstance(one.value, str)}
        docstrings = {
            one.value.value
            for one in ast.walk(tree)
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
        }
        for text in texts - docstrings:
            assert not re.search(r"\b(a|the) (trace|profile)\b|--profile", text) or text in told, (file.name, text)


@pytest.mark.parametrize(
    ("seen", "said"),
    [(HERE, "data.py"), (None, "data.py"), (Place(file="pad.py", line=3, function="pad"), "pad.py")],
    ids=["the loop", "nothing", "an op inside the loader"],
)
def test_where_the_trace_shows_only_the_loop_the_place_that_makes_batches_stays(seen: Place | None, said: str) -> None:
    made = Place(file="data.py", line=2, function="Data.__getitem__")
    run = diagnosis(Finding(id="input", bound="input", share=0.2, where=made))
    host = (HostTime(name="enumerate(DataLoader)#_Iter.__next__", ns=9 * MS, total_ns=9 * MS, count=1, where=HERE),)
    shown = answers(gaps=(gap("input", 12, seen),), host=host)
    found = with_traces(run, TraceReport(ranks=(shown,), findings=findings_of(shown)))
    assert found.bound == "input" and found.findings[0].where is not None
    assert found.findings[0].where.file == said and found.findings[0].cost_ms == pytest.approx(6.0)


def traced(*findings: Finding) -> TraceReport:
    return TraceReport(ranks=(answers(),), findings=findings)


def test_a_run_says_compute_or_launch_only_until_a_trace_says_what_it_is() -> None:
    compute = Finding(id="compute", bound="compute", share=0.99)
    moved = traced(Finding(id="bandwidth", bound="bandwidth", share=0.9))
    assert with_traces(diagnosis(compute), moved).bound == "bandwidth"
    launch = Finding(id="launch", bound="launch", share=0.99)
    waits = traced(Finding(id="sync", bound="sync", share=0.5))
    assert with_traces(diagnosis(launch), waits).bound == "sync"
    idle = traced(Finding(id="launch", bound="launch", share=0.3))
    assert with_traces(diagnosis(compute), idle).bound == "compute"


def test_of_the_runs_compute_stays_what_a_trace_calls_computing() -> None:
    """Device events hold waiting in collectives too."""
    run = diagnosis(Finding(id="compute", bound="compute", share=0.99))
    shown = traced(Finding(id="communication", bound="communication", share=0.3))
    assert [(one.id, one.share) for one in with_traces(run, shown).findings] == [
        ("compute", pytest.approx(40 / 45)),
        ("communication", 0.3),
    ]
    alone = msgspec.structs.replace(shown, ranks=(answers(breakdown=(device(1, 49, 0),)),))
    assert [one.id for one in with_traces(run, alone).findings] == ["communication"]
    said = msgspec.structs.replace(shown, findings=(Finding(id="no-tensor-cores", bound="compute", share=0.2),))
    assert [one.id for one in with_traces(run, said).findings] == ["no-tensor-cores"]


def test_the_runs_straggler_stays_until_a_trace_names_one() -> None:
    run = diagnosis(Finding(id="straggler", bound="communication", share=0.4))
    shown = traced(Finding(id="communication", bound="communication", share=0.1))
    assert [one.id for one in with_traces(run, shown).findings] == ["straggler", "communication"]
    named = traced(Finding(id="straggler", bound="communication", share=0.3))
    assert [one.share for one in with_traces(run, named).findings] == [0.3]


def test_a_straggler_that_is_late_with_its_input_has_the_place_that_makes_batches() -> None:
    made = Place(file="data.py", line=2, function="Data.__getitem__")
    host = (HostTime(name="enumerate(DataLoader)#_Iter.__next__", ns=9 * MS, total_ns=9 * MS, count=1, where=HERE),)
    run = diagnosis(Finding(id="compute", bound="compute", share=0.5))
    for cause, where in (("input", made), ("host", HERE)):
        named = Finding(id="straggler", bound="communication", share=0.3, where=HERE)
        traces = TraceReport(ranks=(answers(host=host),), balance=balanced(cause=cause), findings=(named,))
        assert with_traces(run, traces, made).findings[-1].where == where


@pytest.mark.parametrize(("explained", "left"), [(0.9, None), (0.85, None), (0.1, 0.8)])
def test_of_the_loops_own_code_stays_what_the_traces_do_not_explain(explained: float, left: float | None) -> None:
    run = diagnosis(Finding(id="host-code", bound="unknown", share=0.9))
    found = with_traces(run, traced(Finding(id="sync", bound="sync", share=explained)))
    assert {f.id: f.share for f in found.findings}.get("host-code") == (left if left is None else pytest.approx(left))
    assert found.bound == ("sync" if left is None else "unknown")


@pytest.mark.parametrize(
    ("outside_ms", "bound", "left"),
    [(40, "bandwidth", None), (20, "bandwidth", 0.9 - 20 / 45), (0, "bandwidth", 0.9), (40, "input", 0.9)],
)
def test_of_the_loops_own_code_does_not_stay_what_the_device_does_there(
    outside_ms: int, bound: Bound, left: float | None
) -> None:
    run = diagnosis(Finding(id="host-code", bound="unknown", share=0.9))
    shown = traced(Finding(id="attention-by-hand", bound=bound, share=0.85, named=True))
    rank = msgspec.structs.replace(shown.ranks[0], outside_ns=2 * outside_ms * MS)
    found = with_traces(run, msgspec.structs.replace(shown, ranks=(rank,)))
    assert {f.id: f.share for f in found.findings}.get("host-code") == (left if left is None else pytest.approx(left))
    assert found.findings[0].id == "attention-by-hand"


@pytest.mark.parametrize(("waited", "kept", "launch"), [(0.1, 0.6, 0.1), (0.4, None, 0.3)])
def test_waits_for_batches_that_the_trace_s_steps_lack(waited: float, kept: float | None, launch: float) -> None:
    """Batches of workers come in waves. There is no more idle time than these waits leave."""
    run = diagnosis(Finding(id="input", bound="input", share=0.6, evidence="of all steps"))
    shown = traced(
        Finding(id="input", bound="input", share=waited, evidence="of the trace"),
        Finding(id="launch", bound="launch", share=0.3, cost_ms=3.0, evidence="idle"),
        Finding(id="bandwidth", bound="bandwidth", share=0.3),
    )
    found = {one.id: one for one in with_traces(run, shown).findings}
    assert found["input"].share == pytest.approx(kept or waited)
    assert found["launch"].share == pytest.approx(launch) and found["launch"].cost_ms == pytest.approx(10 * launch)
    assert ("hardly waited" in found["launch"].evidence) is (kept is not None)


def test_a_cause_that_the_run_names_stays_beside_a_trace() -> None:
    """On an H200 rows fetched one by one, iterators made each step and recomputing were named only without a trace."""
    rows = Finding(id="rows-one-by-one", bound="input", share=0.6, named=True)
    again = Finding(id="recomputing", bound="compute", share=0.2, named=True)
    waits = Finding(id="input", bound="input", share=0.6)
    products = Finding(id="no-tensor-cores", bound="compute", share=0.3)
    found = with_traces(diagnosis(rows, again), traced(waits, products))
    assert [one.id for one in found.findings] == ["rows-one-by-one", "recomputing", "no-tensor-cores"]
    assert found.bound == "input"


READS = Finding(
    id="sync", bound="sync", share=0.3, cost_ms=15.0, title=WAITS + BY_OPTIMIZER, evidence="90 a step", instead="x",
    where=Place(file="train.py", line=84), named=True,
)  # fmt: skip
LOOP = Finding(
    id="optimizer", bound="bandwidth", share=0.1, cost_ms=9.0, title="AdamW.step in 900 kernels", evidence=""
)


def with_optimizers(*optimizers: dict[str, Any], run: tuple[Finding, ...] = ()) -> tuple[Finding, ...]:
    usual = OptimizerFacts(name="AdamW", builtin=True, tensors=90, made=("train.py", 73, "main"))
    facts = Facts(
        pid=1, rank=0, world=1, argv=(), python="3.12", torch="2.13.0", mode="train",
        optimizers=tuple(msgspec.structs.replace(usual, **one) for one in optimizers),
    )  # fmt: skip
    return with_traces(diagnosis(*run), traced(READS, LOOP), facts=facts).findings


@pytest.mark.parametrize(
    ("optimizer", "title", "instead"),
    [
        ({"on_device": ("lr",)}, "AdamW reads its learning rate (`lr`) from", "lr=1e-3)` at line 73"),
        ({}, "AdamW reads its learning rate, or another setting, from", "`fused=True`"),  # of an older hotlap
        ({"on_device": (), "counters": 90}, "AdamW reads its step counters from", "map_location='cpu'"),
    ],
)
def test_what_an_optimizer_reads_and_its_loop_are_one_finding(
    optimizer: dict[str, Any], title: str, instead: str
) -> None:
    run = Finding(id="counters-on-device", bound="sync", share=0.5, named=True)
    (found,) = with_optimizers(optimizer, run=(run,))
    assert found.title.startswith(title) and instead in found.instead and "90 parameters" in found.evidence
    assert (found.share, found.cost_ms) == (pytest.approx(0.4), pytest.approx(20.0))


@pytest.mark.parametrize(
    "optimizers",
    [
        ({"on_device": ()},),
        ({"fused": True, "on_device": ("lr",)},),
        ({"name": "SGD", "on_device": ("lr",)},),
        ({"builtin": False},),
        ({"on_device": ("lr",)}, {"on_device": ("lr",)}),  # which one waits is not known
    ],
)
def test_else_it_is_told_as_the_trace_has_it(optimizers: tuple[dict[str, Any], ...]) -> None:
    assert {one.title for one in with_optimizers(*optimizers)} == {READS.title, LOOP.title}


def test_a_rate_on_the_device_is_no_cause_where_a_trace_has_no_waits() -> None:
    rate = Finding(id="rate-on-device", bound="sync", share=0.5, named=True)
    assert [one.id for one in with_traces(diagnosis(rate), traced(LOOP)).findings] == ["optimizer"]


def test_of_several_optimizers_it_is_that_whose_step_waits() -> None:
    other = {"name": "Adam", "on_device": ("lr",), "stepped": ("train.py", 80, "main")}
    found = with_optimizers(other, {"on_device": ("lr",), "stepped": ("train.py", 84, "main")})
    assert found[0].title.startswith("AdamW reads its learning rate") and len(found) == 1


def test_a_trace_alone_says_what_such_an_optimizer_wants() -> None:
    waits = Sync(
        cause=BY_OPTIMIZER, call="c", op="aten::item", count=2 * MANY_WAITS, host_ns=MS, idle_ns=8 * MS, where=HERE
    )
    (found,) = (one for one in findings_of(answers(syncs=(waits,))) if one.id == "sync")
    assert "fused=True" in found.instead and "in place of the loop" not in found.instead and found.named


def convolution(name: str, ms: float, *kernels: str, limit: str = "compute") -> OpRoofline:
    return msgspec.structs.replace(op(limit, ms, True, "bf16"), op=f"aten::{name}", of_peak=0.02, kernels=kernels)


IM2COL = "void at::native::im2col_kernel<c10::BFloat16>(long)"


def test_convolutions_without_cudnn_are_told_by_their_kernels() -> None:
    rows = (
        convolution("convolution_backward", 20, IM2COL, "void at::native::col2im_kernel<float>", "nvjet"),
        convolution("convolution", 10, IM2COL, "nvjet", limit="bandwidth"),
        convolution("convolution", 4, "sm90_xmma_fprop_implicit_gemm"),
        msgspec.structs.replace(convolution("im2col", 5, IM2COL, limit="bandwidth"), of_peak=0.5),  # `F.unfold`
    )
    found = {one.id: one for one in findings_of(answers(roofline=rows))}
    slow = found["slow-convolution"]
    assert slow.named and slow.share == pytest.approx(0.3) and slow.where == HERE
    assert "col2im and im2col" in slow.evidence and "cudnn.enabled" in slow.instead
    assert found["compute"].share == pytest.approx(0.04) and found["bandwidth"].share == pytest.approx(0.05)
    assert "slow-convolution" not in {one.id for one in findings_of(answers(roofline=rows[2:]))}


def test_the_switch_that_a_run_saw_is_told_with_what_the_convolutions_take() -> None:
    at = Place(file="train.py", line=3)
    off = Finding(id=ID, bound="unknown", share=0.0, title=CUDNN_OFF, where=at, instead="take it out", named=True)
    rows = (convolution("convolution", 20, IM2COL),)
    shown = TraceReport(ranks=(answers(),), findings=findings_of(answers(roofline=rows)))
    (first,) = (one for one in with_traces(diagnosis(off), shown).findings if one.named)
    assert (first.id, first.where, first.instead) == ("slow-convolution", at, "take it out")
    assert first.title.startswith(CUDNN_OFF) and first.share == pytest.approx(0.2)
    others = traced(Finding(id="bandwidth", bound="bandwidth", share=0.3))
    assert [one.id for one in with_traces(diagnosis(off), others).findings] == ["bandwidth"], "it costs nothing"


QKV = " ".join(["[4, 12, 512, 64]"] * 3)


@pytest.mark.parametrize(
    ("op_", "shape", "mask"),
    [
        ("_flash_attention", QKV, ""),
        ("_cudnn_attention", f"{QKV} [4, 1, 512, 512]", "[4, 1, 512, 512]"),
        ("_cudnn_attention_backward", f"{QKV} {QKV} [4, 12, 512, 1] [4, 1, 512, 512]", "[4, 1, 512, 512]"),
        ("_efficient_attention_backward", f"{QKV} {QKV} [4, 12, 512]", ""),
        ("_cudnn_attention", f"{QKV} [4, 1, 1, 512]", ""),  # of keys alone
        ("_efficient_attention", f"{QKV} [4, 12, 512, 64]".replace("512", "64"), ""),  # may be any operand
    ],
)
def test_attention_with_a_mask_is_told_apart_and_no_cause_is_named(op_: str, shape: str, mask: str) -> None:
    rows = in_attention(f"aten::_scaled_dot_product{op_}", shape, 5, 8, "bf16", limit="compute"), op("compute", 9, True)
    found = {one.id: one for one in findings_of(answers(roofline=rows))}
    assert ("masked-attention" in found) is bool(mask)
    if mask:
        one = found["masked-attention"]
        assert not one.named and f"a mask of {mask}" in one.evidence and "is_causal=True" in one.instead
        assert one.where is not None and one.where.line == 5 and found["compute"].share == pytest.approx(0.09)


@pytest.mark.parametrize(("reached", "little"), [(0.02, True), (0.15, True), (0.3, False), (None, False)])
def test_kernels_that_hardly_use_memory_are_not_limited_by_it(reached: float | None, little: bool) -> None:
    """'Kernels that memory traffic limits, at 1% of memory bandwidth' was told of many small ones."""
    rows = (msgspec.structs.replace(op("bandwidth", 10, None), of_peak=reached),)
    (found,) = (one for one in findings_of(answers(roofline=rows)) if one.id == "bandwidth")
    assert found.title.startswith("kernels that reach little" if little else "kernels that memory traffic limits")
    assert ("larger batches" in found.instead) is little and ("smaller types" in found.instead) is not little


@pytest.mark.parametrize(
    ("dtype", "reached", "softmax", "said"),
    [
        ("bf16", 0.7, False, "less to compute"),
        ("bf16", 0.3, False, "less to compute"),
        ("fp32", 0.7, False, "lower precision, less to compute"),
        ("bf16", 0.7, True, "fused attention, less to compute"),
    ],
)
def test_arithmetic_is_not_advised_what_it_does_already(dtype: str, reached: float, softmax: bool, said: str) -> None:
    by_hand = (
        in_attention("aten::bmm", "[48, 256, 64] [48, 64, 256]", 5, 1, "bf16", limit="unknown"),
        in_attention("aten::_softmax", "[4, 12, 256, 256]", 6, 1),
        in_attention("aten::bmm", "[48, 256, 256] [48, 256, 64]", 7, 1, "bf16", limit="unknown"),
    )
    rows = (msgspec.structs.replace(op("compute", 10, True, dtype), of_peak=reached), *(by_hand if softmax else ()))
    (found,) = (one for one in findings_of(answers(roofline=rows)) if one.id == "compute")
    assert found.instead == said
