"""Much of each batch is padding, which the model computes like all else."""

import ast
import re

from hotlap.diagnose.source import call_of, calls_in, first_of, name_at, name_of
from hotlap.records.diagnosis import LEAST_NAMED, Finding, Place
from hotlap.records.run import RootFacts

from ._base import Measured
from .launch import computing

LEAST = 0.3
"""Of a batch, from which another way to make it is worth a change."""
PADS = ("pad_sequence", "pad", "pad_sequences", "ljust")
FILLS = ("full", "full_like", "new_full")
PAD = re.compile(r"pad(ding)?(_|$)", re.IGNORECASE)
LEAVES_OUT = ("pack_padded_sequence", "nested_tensor", "flash_attn_varlen_func")
UNPACKS, FIXED = "pad_packed_sequence", "total_length"
MOSTLY = 0.5
"""Of the places, that are padding of all rows, from which it is told where the rest is packed."""
TO_THE_LONGEST = (
    "pad to the longest row of the batch, in a collate_fn: `pad_sequence(rows, batch_first=True)` "
    '(transformers: `DataCollatorWithPadding`, or padding="longest"), or cut it to that: `x[:, : lengths.max()]`'
)
BY_LENGTH = (
    "batch rows of similar length: sort within chunks of many batches (transformers: `group_by_length=True`), "
    "or pack several short rows into one"
)


def find(measured: Measured) -> Finding | None:
    """Share: of the time that the model computes what padding is of the ids that it is handed, or of the steps of
    sequences of numbers. Where these are packed and padded again it is not known."""
    facts, root = measured.facts, measured.root
    if root is None or root.padding < LEAST:
        return None
    share, took = computing(measured)
    if call_of(facts, LEAVES_OUT):
        return _padded_again(measured, root) if share >= LEAST_NAMED else None
    all_alike = root.padding_of_all > root.padding / 2
    return Finding(
        id="padding",
        bound="compute",
        share=share * root.padding,
        cost_ms=took * root.padding,
        title="padding is computed",
        where=call_of(facts, PADS) or first_of(facts, _fills_up) or _made_at(measured),
        evidence=_places(root),
        why="the model computes padding like everything else, in attention with the square of the length",
        instead=f"{TO_THE_LONGEST}; then {BY_LENGTH}" if all_alike else BY_LENGTH,
        named=True,
    )


def _padded_again(measured: Measured, root: RootFacts) -> Finding | None:
    """Rows that are packed, and then padded to a length that none of them has."""
    where = first_of(measured.facts, _to_a_length)
    if where is None or root.padding_of_all < MOSTLY:
        return None
    return Finding(
        id="padding",
        bound="compute",
        share=0.0,
        title=f"{UNPACKS} pads all rows to `{FIXED}`",
        where=where,
        evidence=_places(root),
        why="packing skips padding only in the recurrent layer; what follows it, the loss and their backward "
        "compute it",
        instead=f"leave out `{FIXED}`, and cut the targets to the longest row of the batch: `x[:, : lengths.max()]`",
        named=True,
    )


def _places(root: RootFacts) -> str:
    return (
        f"{root.padding:.0%} of positions are padding in the first forwards of {root.name}; at "
        f"{root.padding_of_all:.0%} of positions all rows are padded"
    )


def _to_a_length(node: ast.AST) -> bool:
    named = isinstance(node, ast.Call) and name_at(node.func) == UNPACKS
    return named and any(one.arg == FIXED for one in getattr(node, "keywords", ()))


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
