"""Much of each batch is padding, which the model computes like all else."""

import ast
import re

from hotlap.diagnose.source import call_of, calls_in, first_of, name_at, name_of
from hotlap.records.diagnosis import Finding, Place

from ._base import Measured
from .launch import computing

LEAST = 0.3
"""Of a batch, from which another way to make it is worth a change."""
PADS = ("pad_sequence", "pad", "pad_sequences", "ljust")
FILLS = ("full", "full_like", "new_full")
PAD = re.compile(r"pad(ding)?(_|$)", re.IGNORECASE)
LEAVES_OUT = ("pack_padded_sequence", "nested_tensor", "flash_attn_varlen_func")
TO_THE_LONGEST = (
    "pad to the longest row of the batch, in a collate_fn: `pad_sequence(rows, batch_first=True)` "
    '(transformers: `DataCollatorWithPadding`, or padding="longest")'
)
BY_LENGTH = (
    "batches of rows of one length: sort within chunks of many batches (transformers: `group_by_length=True`), or "
    "several short rows in one"
)


def find(measured: Measured) -> Finding | None:
    """Share: of the time that the model computes what padding is of the ids that it is handed."""
    facts, root = measured.facts, measured.root
    if root is None or root.padding < LEAST or call_of(facts, LEAVES_OUT):
        return None
    share, took = computing(measured)
    all_alike = root.padding_of_all > root.padding / 2
    return Finding(
        id="padding",
        bound="compute",
        share=share * root.padding,
        cost_ms=took * root.padding,
        title="tokens that are padding are computed",
        where=call_of(facts, PADS) or first_of(facts, _fills_up) or _made_at(measured),
        evidence=f"{root.padding:.0%} of the tokens in the first forwards of {root.name}; at {root.padding_of_all:.0%} "
        "of the places all rows of a batch are padded",
        why="the model computes it like all else, attention with the square of the length",
        instead=f"{TO_THE_LONGEST}; then {BY_LENGTH}" if all_alike else BY_LENGTH,
        named=True,
    )


def _fills_up(node: ast.AST) -> bool:
    """Whether it makes what fills rows up: `[PAD] * (longest - len(row))`, `torch.full(shape, pad_id)`."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        filled = [one for one in (node.left, node.right) if isinstance(one, ast.List) and len(one.elts) == 1]
        return bool(filled) and any(name_of(call) == "len" for call in calls_in(node))
    if not isinstance(node, ast.Call) or name_at(node.func) not in FILLS:
        return False
    names = (name for argument in node.args for one in ast.walk(argument) if (name := name_at(one)))
    return any(map(PAD.match, names))


def _made_at(measured: Measured) -> Place | None:
    """The function that makes batches of samples, else where these are made, else the model."""
    loader = measured.loader
    if loader is not None and loader.collate is not None:
        return measured.place_at(loader.collate)
    return measured.place_of(loader) or measured.place_of(measured.root)
