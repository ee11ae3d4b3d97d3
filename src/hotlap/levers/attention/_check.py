"""Runs what was written by hand and what is put in its place on the same random tensors, before the graph is compiled.

Without dropout, and on a random generator of its own, so that the script's draws stay what they were. Masks that are
constant have their real values; the others are random, one row of them masked throughout.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from ._find import Site, computed, op, shape_of

MOST_SCORES: Final = 1 << 27
"""Larger attention is not checked: the scores of the original would take gigabytes."""
MOST_NODES: Final = 64
ALLOWED: Final = {torch.float64: 1e-7, torch.float32: 1e-2, torch.bfloat16: 5e-2, torch.float16: 2e-2}
"""Relative difference (of the norms) that rounding may make; products in TF32 are float32 here. What is wrong differs
by about 1."""
SPREAD: Final = 0.5
"""Of the random tensors. With larger ones softmax would amplify rounding, where scores are not scaled down."""


class Unchecked(Exception):
    """It can't be run apart; the message says why."""


def differs(graph: Any, site: Site, result: Any, constant: Callable[[Any], Any]) -> float:
    """How far the two are apart, relative to the original. constant: a node's known value, or None.

    Raises Unchecked where they can't be compared.
    """
    if any(type(size) is not int for size in site.shape) or math.prod(site.shape) > MOST_SCORES:
        raise Unchecked("of a size that is not known, or too large")
    order = {node: at for at, node in enumerate(graph.nodes)}
    made = _behind(result, {site.final}, lambda node: "example_value" not in node.meta or node is result)
    masks = {step.node: step for step in site.steps if step.node is not None}
    leaves = {leaf for node in made for leaf in node.all_input_nodes} - made | set(masks)
    own = _behind(site.final, leaves, lambda node: True) | set(site.inside)
    if any(node.op in {"placeholder", "get_attr"} for node in own) or len(own) > MOST_NODES:
        raise Unchecked("it depends on other values")
    generator = torch.Generator("cpu").manual_seed(5)
    values = {}
    for leaf in sorted(leaves, key=order.__getitem__):
        known = constant(leaf)
        values[leaf] = _random(leaf, masks.get(leaf), generator) if known is None else known
    example = site.final.meta["example_value"]
    autocast = torch.autocast(
        example.device.type, dtype=example.dtype, enabled=example.dtype in {torch.bfloat16, torch.float16}
    )
    with torch.no_grad(), autocast:
        theirs = _run(sorted(own, key=order.__getitem__), values)[site.final].double()
        ours = _run(sorted(made, key=order.__getitem__), values)[result].double()
    if theirs.shape != ours.shape:
        return math.inf
    known = theirs.isfinite()  # rows in which everything is masked by minus infinity are NaN in the original
    difference = (ours - theirs).masked_select(known).norm() / theirs.masked_select(known).norm()
    return float(difference) if bool(known.any()) else 0.0


def _behind(node: Any, stop: Iterable[Any], belongs: Callable[[Any], bool]) -> set[Any]:
    """A node and what leads to it, as far as it belongs."""
    stop, todo = set(stop), [node]
    found: set[Any] = set()
    while todo:
        one = todo.pop()
        if one not in found and one not in stop and belongs(one) and len(found) <= MOST_NODES:
            found.add(one)
            todo += one.all_input_nodes
    return found | {node}


def _random(leaf: Any, step: Any, generator: torch.Generator) -> Any:
    example = leaf.meta.get("example_value")
    if not isinstance(example, torch.Tensor) or any(type(size) is not int for size in shape_of(leaf)):
        raise Unchecked("an input of a size that is not known")
    drawn: Any = {"generator": generator, "device": generator.device}
    if example.dtype == torch.bool:
        value = torch.rand(shape_of(leaf), **drawn, dtype=torch.float32) < 0.7
        value.view(-1)[: value.shape[-1] if value.dim() else 1] = step is None or not step.unless
    elif example.dtype.is_floating_point:
        value = SPREAD * torch.randn(shape_of(leaf), **drawn, dtype=torch.float64)
        value = value.to(example.dtype)
    else:
        raise Unchecked("an input of integers")
    return value.to(example.device)


def _run(nodes: list[Any], known: dict[Any, Any]) -> dict[Any, Any]:
    """The values of nodes, in the graph's order, without dropout."""
    values = {node: value.clone() if isinstance(value, torch.Tensor) else value for node, value in known.items()}
    for node in nodes:
        if node in values:
            continue
        args = torch.fx.node.map_arg(node.args, values.__getitem__)
        kwargs = torch.fx.node.map_arg(dict(node.kwargs), values.__getitem__)
        if op(node) == "dropout":
            values[node] = args[0]
            continue
        if "dropout_p" in kwargs:
            kwargs = {**kwargs, "dropout_p": 0.0}
        values[node] = computed(node, args, kwargs)
    return values
