"""Several backwards go through the same graph in a step."""

import ast

from hotlap.diagnose.source import first_of
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms

from ._base import Measured

SEVERAL = 1.5
"""Backwards an update, and below it the share of those that keep their graph, from which on they are told."""
KEPT = 0.4


def find(measured: Measured) -> Finding | None:
    """Share: of the backward all but one of them, at most: what their losses do not share is gone through once."""
    facts = measured.facts
    if facts is None or facts.mode != "train" or not facts.optimizer_steps or facts.retained < KEPT:
        return None
    times = facts.backwards / facts.optimizer_steps
    if times < SEVERAL:
        return None
    more = 1 - 1 / times
    return Finding(
        id="several-backwards",
        bound="compute",
        share=measured.share("backward") * more,
        cost_ms=measured.took_ms("backward") * more,
        title="the backward goes through the same graph several times a step",
        where=first_of(facts, _keeps_graph),
        evidence=f"{times:.1f} backwards an update, {facts.retained:.0%} of them with `retain_graph=True`; they take "
        f"{ms(measured.took_ms('backward'))} a step",
        why="what the losses share is computed again for each of them",
        instead="add the losses and call one backward, `(first + second).backward()`: the gradients are the same, and "
        "no graph is kept",
        named=True,
    )


def _keeps_graph(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and any(
        one.arg == "retain_graph" and not (isinstance(one.value, ast.Constant) and not one.value.value)
        for one in node.keywords
    )
