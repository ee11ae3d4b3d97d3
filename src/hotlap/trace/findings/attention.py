"""Attention whose scores pass through memory, whose operands are float32, or that is given a mask."""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding, Place
from hotlap.records.durations import ms
from hotlap.records.trace import OpRoofline, RankTrace

from ..scaling import per_step_ms, share
from ._base import inside

SOFTMAX: Final = "aten::_softmax"
PRODUCTS: Final = ("aten::bmm", "aten::baddbmm")
FUSED: Final = "aten::_scaled_dot_product_"
BY_HAND: Final = (
    "attention-by-hand",
    "attention by hand writes its scores to memory",
    "`F.scaled_dot_product_attention(q, k, v, is_causal=...)`, with `attn_mask=` and `dropout_p=`, which keeps "
    "no scores (flash attention, in half precision)",
)
OF_A_MODULE: Final = (
    "attention-of-a-module",
    "a module's attention keeps its scores in memory",
    "`need_weights=False` in the call of `nn.MultiheadAttention`, which returns the weights by default; "
    "`attn_implementation='sdpa'` in transformers; if `F.scaled_dot_product_attention` finds no fused kernel, "
    "half precision and a mask without gradient",
)
MASKED: Final = "masked-attention"
NO_MASK: Final = (
    "for a causal mask `is_causal=True` without `attn_mask`, also if rows are padded at their end and the loss "
    "ignores the padding; for documents, a window or much padding: FlexAttention with a block mask, or nested "
    "tensors"
)
LEAST: Final = 64
"""Positions on both sides, from which scores are many."""


def find(answers: RankTrace) -> list[Finding]:
    """Time in ops on scores; in fused attention of float32 operands, which has no flash kernel; in that
    with a mask."""
    return [*_kept(answers, False), *_kept(answers, True), *_wide(answers), *_masked(answers)]


def _kept(answers: RankTrace, same_line: bool) -> Iterator[Finding]:
    """Scores that pass through memory. same_line: in a module of a library's, all at one line of the user's."""
    rows = _scores(answers, same_line)
    softmax = max((row for row in rows if row.op == SOFTMAX), key=lambda row: row.ns, default=None)
    if softmax is None:
        return
    ns, id_, title, instead = sum(row.ns for row in rows), *(OF_A_MODULE if same_line else BY_HAND)
    yield Finding(
        id=id_,
        bound="bandwidth",
        share=share(answers, per_step_ms(answers, ns)),
        title=title,
        where=softmax.where,
        evidence=f"{ms(per_step_ms(answers, ns))} a step in {len({row.op for row in rows})} kinds of operations on "
        f"scores of {softmax.shape}",
        why="each of them reads and writes a score for every pair of positions",
        instead=instead,
        levers=answering("attention"),
        named=True,
    )


def _wide(answers: RankTrace) -> Iterator[Finding]:
    rows = wide(answers)
    if not rows:
        return
    ns, first = sum(row.ns for row in rows), max(rows, key=lambda row: row.ns)
    yield Finding(
        id="float32-attention",
        bound="compute",
        share=share(answers, per_step_ms(answers, ns)),
        title="attention in float32",
        where=first.where,
        evidence=f"{ms(per_step_ms(answers, ns))} a step; most in {first.op} {first.shape}",
        why="flash attention needs half precision; the float32 kernel is several times slower",
        instead="use bf16 or fp16 operands: under autocast, without `.float()` before it or `autocast(enabled=False)` "
        "around it",
        levers=answering("precision"),
        named=True,
    )


def wide(answers: RankTrace) -> list[OpRoofline]:
    """Fused attention of float32 operands, where most other products are of narrower ones."""
    rows = [row for row in answers.roofline if row.op.startswith(FUSED) and row.dtype == "fp32"]
    others = [row for row in answers.roofline if row.flops and row.op.endswith("mm")]
    half = sum(row.ns for row in others if row.dtype in {"bf16", "fp16"})
    return rows if 2 * half > sum(row.ns for row in others) else []


def _masked(answers: RankTrace) -> Iterator[Finding]:
    """By line. What the masks hide a trace does not tell, so no cause is named; cost: not known."""
    lines: defaultdict[Place | None, list[OpRoofline]] = defaultdict(list)
    for row in masked(answers):
        lines[row.where].append(row)
    for where, rows in lines.items():
        ns, first = sum(row.ns for row in rows), max(rows, key=lambda row: row.ns)
        yield Finding(
            id=MASKED,
            bound="compute",
            share=share(answers, per_step_ms(answers, ns)),
            title="attention is given a mask as a tensor",
            where=where,
            evidence=f"{ms(per_step_ms(answers, ns))} a step; most in {first.op} with a mask of {list(_mask(first))}",
            why="all scores are computed, even hidden ones, the mask is read for each head, and it rules out the "
            "flash kernel",
            instead=NO_MASK,
        )


def masked(answers: RankTrace) -> list[OpRoofline]:
    """Fused attention on tensor cores that is given a mask of all pairs of positions."""
    rows = (row for row in answers.roofline if row.op.startswith(FUSED) and row.tensor_cores is not False)
    told = wide(answers)
    return [row for row in rows if row.limit == "compute" and row not in told and _mask(row)]


def _mask(row: OpRoofline) -> tuple[int, ...]:
    """The operand of the queries' by the keys' length, where none of the others can be; else empty."""
    every = [tuple(map(int, re.findall(r"\d+", one))) for one in re.findall(r"\[([^]]*)\]", row.shape)]
    operands = every["backward" in row.op :]  # the first of a backward is the gradient
    if len(operands) < 4 or any(len(one) < 2 for one in operands[:3]):
        return ()
    pairs = operands[0][-2], operands[1][-2]
    if min(pairs) < LEAST or pairs[1] in {one[-1] for one in operands[:3]}:
        return ()
    return next((one for one in operands[3:] if one[-2:] == pairs), ())


def scores(answers: RankTrace) -> list[OpRoofline]:
    """Ops on attention's scores, one for each pair of positions, that memory traffic limits."""
    rows = [*_scores(answers, same_line=False), *_scores(answers, same_line=True)]
    return [row for at, row in enumerate(rows) if row not in rows[:at]]


def _scores(answers: RankTrace, same_line: bool) -> list[OpRoofline]:
    """Those of the shape of a softmax in a function that multiplies batches of matrices at other lines; same_line: at
    the very one, as where torch or another library does."""
    products = [row.where for row in answers.roofline if row.op in PRODUCTS and row.where is not None]
    shapes = {
        _first(row.shape)
        for row in answers.roofline
        if row.op == SOFTMAX
        and _are_pairs(_first(row.shape))
        and any(inside(row.where) == inside(one) and (row.where == one) is same_line for one in products)
    }
    return [
        row
        for row in answers.roofline
        if row.limit in {"bandwidth", "launch"} and _first(row.shape) in shapes and row.op not in PRODUCTS
    ]


def _first(shape: str) -> tuple[int, ...]:
    """Dimensions of the first operand."""
    sizes = re.match(r"\[([\d, ]*)\]", shape)
    return tuple(map(int, re.findall(r"\d+", sizes[1]))) if sizes else ()


def _are_pairs(shape: tuple[int, ...]) -> bool:
    return len(shape) in {3, 4} and min(shape[-2:]) >= LEAST
