"""Gradients are summed over many small micro-batches, with memory for larger ones."""

import ast
from collections.abc import Iterator

from hotlap.diagnose.source import Loop, call_of, called_in, first_of, statements_at
from hotlap.records.diagnosis import Finding, Place
from hotlap.records.durations import ms

from ._base import Measured
from .compute import SHORT_MS, SMALL_MS
from .exchange_each_micro_step import ONCE
from .launch import waits
from .several_backwards import KEPT

LEAST, LEAST_TIMES, FEW = 0.05, 4, 8
"""Of the step; micro-batches an update; rows of one that may be too few for the cores of a CPU."""
ROOM = 0.8
"""Of memory, that as many times the peak may fill."""
OF_EACH = frozenset({"zero_grad", "clip_grad_norm_", "clip_grad_value_"})
"""What is called after each backward where the gradient of each sample is wanted."""


def find(measured: Measured) -> Finding | None:
    """Share: of forward and backward that of the micro-batches that would be gone, at most; on a device where these
    wait for the host alone. Not of several losses, models, shapes, or of gradients that are used one by one."""
    facts, root = measured.facts, measured.root
    if facts is None or root is None or measured.micro is None or measured.memory is None or root.shapes > 1:
        return None
    (times, rows), (used, whole) = measured.micro, measured.memory
    trained = [one for one in facts.roots if one.optimized and one.part_of is None]
    updates = max(1, facts.optimizer_steps)
    if len(trained) > 1 or len(facts.optimizers) != 1 or facts.retained >= KEPT:
        return None
    each = facts.forwards / max(1, facts.backwards) if facts.forwards_each is None else facts.forwards_each
    if min(times, facts.backwards / updates) < LEAST_TIMES or not 1 / ONCE <= each <= ONCE:
        return None
    took = measured.took_ms("forward", "backward")
    waiting = sum(waits(measured)[name] for name in ("forward", "backward")) if measured.cuda else took
    small = took / times < min(SHORT_MS, SMALL_MS * root.modules) and rows <= FEW
    more = max(n for n in range(1, round(times) + 1) if round(times) % n == 0 and n <= max(1, ROOM * whole / used))
    cost = waiting * (1 - 1 / more)
    share = measured.share("forward", "backward") * cost / max(took, 1e-9)
    if not (2 * waiting > took if measured.cuda else small) or share < LEAST:
        return None
    where = call_of(facts, ("backward",))
    if where is not None and wants_each(where):
        return None
    left, of = round(times) // more, "1 row" if rows == 1 else f"{rows:.3g} rows"
    return Finding(
        id="micro-batches",
        bound="launch",
        share=share,
        cost_ms=cost,
        title=f"gradients are summed over {times:.3g} micro-batches of {of}, with memory to spare",
        where=where or first_of(facts, _accumulates) or measured.place_at(root.called) or measured.place_of(root),
        evidence=f"{times:.3g} backwards an update; forward and backward of a micro-batch take {ms(took / times)}; "
        f"at the peak {used / 2**30:.1f} of {whole / 2**30:.1f} GiB are in use; larger micro-batches save "
        f"{ms(cost)} at most",
        why="operations on so few rows take longer to issue than to compute, so larger micro-batches take hardly "
        "longer",
        instead=(
            f"{left} micro-batches of {more * rows:.3g} rows" if left > 1 else f"all {more * rows:.3g} rows at once"
        )
        + f" in place of {times:.3g}: the same samples an update, and the same gradient if the mean loss is "
        f"divided by {left}; BatchNorm then uses statistics of {more * rows:.3g} rows",
        named=True,
    )


def wants_each(place: Place) -> bool:
    """Whether the loop around a backward does something with the gradient each time, and does not step."""
    loop = next((one for one in statements_at(place) if isinstance(one, Loop)), None)
    always = list(_always(loop)) if loop is not None else []
    called = called_in(*always)
    read = any(isinstance(one, ast.Attribute) and one.attr == "grad" for node in always for one in ast.walk(node))
    return "step" not in called and (read or bool(called & OF_EACH))


def _always(loop: Loop) -> Iterator[ast.stmt]:
    """The statements of a loop's body but for those under conditions."""
    return (one for one in loop.body if not isinstance(one, ast.If))


def _accumulates(node: ast.AST) -> bool:
    """`gradient_accumulation_steps=32`, `accumulate_grad_batches=32`."""
    return isinstance(node, ast.keyword) and "accumul" in (node.arg or "")
