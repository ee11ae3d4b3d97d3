"""What a profiled step's facts of masks, copies and autocast say with its trace."""

from typing import Any

import msgspec
import pytest
from test_diagnose import FACTS
from test_known_ops import AT, BANDWIDTH, COMPUTE, on_a_device, on_the_cpu
from test_sampled import verdict

from hotlap.diagnose.autocast import outside_of_forward
from hotlap.diagnose.copied_again import with_kept
from hotlap.diagnose.known_ops import known_ops
from hotlap.diagnose.masks import of_lines
from hotlap.diagnose.profiled import with_traces
from hotlap.records.diagnosis import Finding, Place
from hotlap.records.profile import Lines, MaskedLine
from hotlap.records.run import Facts, RootFacts
from hotlap.records.trace import CopyTime, OpRoofline, RankTrace, TraceReport
from hotlap.trace.findings.attention import MASKED
from hotlap.trace.findings.compute import LESS

MS = 1_000_000
LINES = Lines(
    steps=1,
    files=("model.py",),
    masks=(MaskedLine(0, 7, "Net.forward", "causal", 12),),
    copied=((0, 7, "Net.forward", 96 << 20),),
    autocasts=((0, 40, "train_step"),),
)


def op(name: str, ns: int, dtype: str = "fp32", where: Place | None = AT) -> OpRoofline:
    return OpRoofline(
        op=name, shape="[8]", dtype=dtype, ns=ns, count=2, flops=ns, bytes=1, limit="compute", of_peak=None, where=where
    )


# masks


def device(*ops: OpRoofline) -> RankTrace:
    return msgspec.structs.replace(on_a_device("aten::mm", 12 * MS), roofline=ops)


FLASH = "aten::_scaled_dot_product_efficient_attention"


def test_a_causal_mask_has_the_time_of_attention_at_its_line() -> None:
    rank = device(
        op(FLASH, 3 * MS), op(FLASH + "_backward", 5 * MS), op("aten::add", 9 * MS), op(FLASH, MS, where=None)
    )
    first, rest = known_ops(rank, (BANDWIDTH,), 10.0, masked=list(of_lines(LINES)))
    assert (first.id, first.where, first.share, first.cost_ms) == (
        "causal-mask",
        AT,
        pytest.approx(0.4),
        pytest.approx(2.0),
    )
    assert "4.00 ms a step" in first.evidence and "12 calls" in first.evidence and "is_causal=True" in first.instead
    assert rest.share == pytest.approx(0.5)


def test_on_the_cpu_it_has_its_part_of_the_model() -> None:
    rank = on_the_cpu("aten::_scaled_dot_product_flash_attention_for_cpu", 10 * MS)
    first, *_ = known_ops(rank, (COMPUTE,), 10.0, masked=list(of_lines(LINES)))
    assert (first.id, first.share) == ("causal-mask", pytest.approx(0.4))


def test_a_mask_that_hides_nothing_is_a_cause_of_its_own() -> None:
    lines = msgspec.structs.replace(LINES, masks=(MaskedLine(0, 7, "Net.forward", "nothing", 12),))
    first, *_ = known_ops(device(op(FLASH, 8 * MS)), (BANDWIDTH,), 10.0, masked=list(of_lines(lines)))
    assert first.id == "idle-mask" and first.cost_ms is None and "change nothing" in first.evidence


def of_kind(kind: Any, hidden: float) -> Lines:
    return msgspec.structs.replace(LINES, masks=(MaskedLine(0, 7, "Net.forward", kind, 12, hidden, (0, 3, "main")),))


def test_of_padding_and_of_documents_it_says_what_to_do_and_where_the_mask_is_made() -> None:
    rank = device(op(FLASH, 7 * MS), op("aten::where", MS))
    padded, *_ = known_ops(rank, (BANDWIDTH,), 10.0, masked=list(of_lines(of_kind("padded", 0.6))))
    assert (padded.id, padded.share, padded.cost_ms) == ("causal-mask", pytest.approx(0.4), pytest.approx(2.4))
    assert "is_causal=True" in padded.instead and "ignore_index" in padded.instead and "line 3" in padded.instead
    partly, *_ = known_ops(rank, (BANDWIDTH,), 10.0, masked=list(of_lines(of_kind("partly", 0.75))))
    assert (partly.id, partly.named, partly.cost_ms) == ("hiding-mask", True, pytest.approx(3.0))
    assert "75%" in partly.evidence and "FlexAttention" in partly.instead


GIVEN_A_MASK = Finding(id=MASKED, bound="compute", share=0.4, title="a mask", where=AT, evidence="4 ms", instead="x")


def test_what_a_trace_says_of_a_mask_gives_way_to_what_is_known_of_it() -> None:
    rank = device(op(FLASH, 8 * MS))
    ids = [one.id for one in known_ops(rank, (GIVEN_A_MASK,), 10.0, masked=list(of_lines(LINES)))]
    assert ids == ["causal-mask"]
    (needed,) = known_ops(rank, (GIVEN_A_MASK,), 10.0, masked=list(of_lines(of_kind("partly", 0.1))))
    assert not needed.named and "hide 10% of" in needed.evidence and needed.instead == LESS
    (little,) = known_ops(device(op(FLASH, MS)), (GIVEN_A_MASK,), 10.0, masked=list(of_lines(LINES)))
    assert not little.named and "is_causal=True" in little.instead
    assert known_ops(rank, (GIVEN_A_MASK,), 10.0) == (GIVEN_A_MASK,)


@pytest.mark.parametrize(
    ("ops", "lines"),
    [
        ((op(FLASH, 9 * MS),), of_kind("partly", 0.1)),
        ((op(FLASH, MS),), LINES),  # 5%
        ((op("aten::add", 9 * MS),), LINES),
        ((op(FLASH, 9 * MS, where=Place(file="model.py", line=8)),), LINES),
        ((op(FLASH, 9 * MS),), msgspec.structs.replace(LINES, files=())),
        ((op(FLASH, 9 * MS),), msgspec.structs.replace(LINES, masks=())),
    ],
)
def test_masks_that_cost_little_are_not_told(ops: tuple[OpRoofline, ...], lines: Lines) -> None:
    found = known_ops(device(*ops), (BANDWIDTH,), 10.0, masked=list(of_lines(lines)))
    assert [one.id for one in found] == ["bandwidth"]


def test_a_device_that_is_slower_under_the_profiler_has_no_more_than_a_step() -> None:
    rank = device(op(FLASH, 16 * MS))
    first, *_ = known_ops(rank, (BANDWIDTH,), 4.0, masked=list(of_lines(LINES)))
    assert first.share == pytest.approx(0.8) and "3.20 ms a step" in first.evidence, "of 20 ms in two steps, not of 8"


# copies

H2D = Finding(id="h2d", bound="h2d", share=0.4, cost_ms=4.0, title="copies", evidence="4.00 ms a step", levers=("x",))


def copies(*of: CopyTime) -> RankTrace:
    return msgspec.structs.replace(on_a_device("aten::mm", 12 * MS), copies=of)


def copy(ns: int, mib: int, where: Place | None = AT, way: str = "in") -> CopyTime:
    return CopyTime(way=way, within="", count=2, bytes=mib << 20, exposed_ns=ns, where=where)


OTHER = Place(file="model.py", line=30, function="main")


def test_what_lives_on_and_is_copied_again_is_the_cause_and_batches_are_the_rest() -> None:
    found, rest = with_kept(H2D, LINES, copies(copy(6 * MS, 192), copy(2 * MS, 64, OTHER)), None)
    assert (found.id, found.named, found.where) == ("copied-again", True, AT) and found.levers == ()
    assert (found.share, found.cost_ms) == pytest.approx((0.3, 3.0)) and "96.0 MiB" in found.evidence
    assert (rest.id, rest.share, rest.cost_ms, rest.levers) == ("h2d", pytest.approx(0.1), pytest.approx(1.0), ("x",))
    (whole,) = with_kept(H2D, LINES, copies(copy(6 * MS, 192), copy(MS // 10, 4, OTHER, "out")), 1e12)
    assert (whole.id, whole.share) == ("copied-again", 0.4)


def test_a_line_that_copies_batches_too_has_its_part() -> None:
    found, rest = with_kept(H2D, LINES, copies(copy(8 * MS, 384)), None)
    assert (found.share, rest.share) == pytest.approx((0.2, 0.2))


@pytest.mark.parametrize(
    ("changes", "free"),
    [
        ({"copied": ()}, None),
        ({"copied": ((0, 7, "Net.forward", 80),)}, None),  # a few numbers
        ({"files": ()}, None),
        ({}, 1e6),  # there is no room for it on the device
    ],
)
def test_else_copies_are_those_of_batches(changes: dict[str, Any], free: float | None) -> None:
    assert with_kept(H2D, msgspec.structs.replace(LINES, **changes), copies(copy(6 * MS, 192)), free) == (H2D,)
    assert with_kept(H2D, LINES, copies(copy(6 * MS, 192, OTHER), copy(6 * MS, 192, AT, "out")), None) == (H2D,)
    assert with_kept(H2D, None, copies(copy(6 * MS, 192)), None) == (H2D,)
    assert with_kept(BANDWIDTH, LINES, copies(copy(6 * MS, 192)), None) == (BANDWIDTH,)


def test_the_verdict_has_both() -> None:
    rank = msgspec.structs.replace(
        copies(copy(6 * MS, 192)), roofline=(op(FLASH, 10 * MS),), kernels=on_a_device("aten::mm", MS).kernels
    )
    before = verdict("compute", "compute")
    found = with_traces(before, TraceReport(ranks=(rank,), findings=(H2D,)), lines=LINES)
    assert {one.id for one in found.findings} >= {"copied-again", "causal-mask"} and found.bound == "compute"


# autocast

SLOW = Finding(
    id="no-tensor-cores", bound="compute", share=0.6, title="fp32 aten::mm without tensor cores", where=AT,
    evidence="5 ms a step in aten::mm; the largest, aten::mm [8] [8] reaches 61% of the fp32 peak", why="slow",
    levers=("bf16-autocast", "tf32"),
)  # fmt: skip


def facts(**root: Any) -> Facts:
    made = msgspec.structs.replace(
        RootFacts(name="Net", parameters=9, modules=2, devices=("cuda",), dtypes=("float32",), optimized=9), **root
    )
    return msgspec.structs.replace(FACTS, roots=(made,))


def test_a_forward_outside_of_autocast_has_the_line_that_turns_it_on() -> None:
    found = outside_of_forward(SLOW, LINES, facts(), device(op("aten::mm", 9 * MS)))
    assert found.named and found.title == "the model's forward runs outside of autocast, in float32"
    assert found.where == Place(file="model.py", line=40, function="train_step")
    assert "at line 7 in Net.forward" in found.evidence and (found.share, found.levers) == (0.6, SLOW.levers)


@pytest.mark.parametrize(
    ("lines", "root", "dtype"),
    [
        ({"autocasts": ()}, {}, "fp32"),  # no autocast anywhere, or in a module
        ({}, {"autocast": "bfloat16"}, "fp32"),
        ({}, {"optimized": 0}, "fp32"),
        ({}, {}, "bf16"),  # most products are in half precision
        ({"files": ()}, {}, "fp32"),
    ],
)
def test_else_it_is_told_as_it_was(lines: dict[str, Any], root: dict[str, Any], dtype: str) -> None:
    rank = device(op("aten::mm", 9 * MS, dtype))
    assert outside_of_forward(SLOW, msgspec.structs.replace(LINES, **lines), facts(**root), rank) == SLOW
    double = msgspec.structs.replace(SLOW, title="fp64 aten::mm without tensor cores")
    assert outside_of_forward(double, LINES, facts(), device()) == double
