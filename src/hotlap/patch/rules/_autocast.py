"""What the rules of half precision share: `with torch.autocast(...)` around the model's call in the training loop, and
`.float()` on what it returns, as the levers do."""

import libcst as cst

from hotlap.records.patch import Line
from hotlap.source.places import Places, Site
from hotlap.source.scopes import dotted
from hotlap.source.tensors import TENSOR_METHODS
from hotlap.source.tree import Source

from ..edits import Replacement, fresh, inside_with, replace, statement
from ._base import (
    NO_TORCH,
    CannotWrite,
    Edit,
    Outcome,
    already,
    calls_named,
    lines_of,
    managers,
    touched_by,
    with_torch,
)
from ._model import Converted, convert, same_model, trained_calls

QUIET = TENSOR_METHODS | {"to", "cuda", "contiguous", "requires_grad_", "type", "long", "int", "bool", "cat", "stack"}
"""Calls that autocast does nothing to, so that they may stand inside."""
EVALUATION = "evaluation is left in float32; the recipe runs it in {} too"


def autocast(places: Places, half: str) -> Outcome:
    """Autocast to `bfloat16` or `float16`.

    Refuses models in float64, outputs that are not proven to be tensors, and statements that can't be split.
    """
    sites = trained_calls(places)
    if isinstance(sites, CannotWrite):
        return sites
    double = _in_float64(places, sites)
    if double:
        return CannotWrite("the model computes in float64", tuple(double))
    todo = [site for site in sites if not _inside(site, half)]
    if not todo:
        return already(places, lines_of(sites))
    plans: list[tuple[Converted, str]] = []
    for site in todo:
        torch = with_torch(site.scope)
        if torch is None:
            return CannotWrite(NO_TORCH, (site.place,))
        if not _arguments_are_quiet(site.call):
            return CannotWrite("an argument of the call is computed in it; give it a line of its own", (site.place,))
        plan = convert(places, site, "float", fresh(site.source, "output"))
        if isinstance(plan, CannotWrite):
            return plan
        if any(other.line is plan.line for other, _ in plans):
            return CannotWrite("the model is called twice in one statement", (site.place,))
        plans.append((plan, f'{torch}.autocast("{"cuda" if places.cuda else "cpu"}", dtype={torch}.{half})'))
    return _write(places, plans, half)


def _write(places: Places, plans: list[tuple[Converted, str]], half: str) -> Edit:
    project = places.project
    for source in {plan.site.source for plan, _ in plans}:
        changes: dict[cst.CSTNode, Replacement] = {}
        for plan, header in plans:
            if plan.site.source is source:
                changes |= plan.changes
                changes[plan.line] = _wrapped(source, plan, header)
        project = project.with_sources(replace(source, changes))
    done = [plan.site for plan, _ in plans]
    notes = () if places.inference else (EVALUATION.format(half),)
    return Edit(project, lines_of(done), touched_by(done), notes=notes)


def _wrapped(source: Source, plan: Converted, header: str) -> Replacement:
    def change(node: cst.CSTNode) -> cst.FlattenSentinel[cst.BaseStatement]:
        rest = [statement(source, text) for text in plan.following]
        if not plan.first:
            block = inside_with(source, header)(node)
            assert isinstance(block, cst.FlattenSentinel)
            return cst.FlattenSentinel([*block, *rest])
        assert isinstance(node, cst.SimpleStatementLine)
        first = statement(source, plan.first).with_changes(leading_lines=node.leading_lines)
        block = inside_with(source, header)(first)
        assert isinstance(block, cst.FlattenSentinel)
        return cst.FlattenSentinel([*block, node.with_changes(leading_lines=[]), *rest])

    return change


def _in_float64(places: Places, sites: list[Site]) -> list[Line]:
    """Where a model is converted by `double()`."""
    return [
        source.place(call)
        for source, call in calls_named(places, "double")
        if isinstance(call.func, cst.Attribute)
        and same_model(places, call.func.value, places.names.scope(source, call), sites)
    ]


def _inside(site: Site, half: str) -> bool:
    """Whether the call stands in an autocast to this dtype already."""
    texts = map(site.source.tree.code_for_node, managers(site, "autocast"))
    return any(f".{half}" in text and "enabled" not in text for text in texts)


def _arguments_are_quiet(call: cst.Call) -> bool:
    """Whether the arguments compute nothing that autocast would compute otherwise."""
    finder = _Loud()
    for arg in call.args:
        arg.visit(finder)
    return not finder.loud


class _Loud(cst.CSTVisitor):
    def __init__(self) -> None:
        self.loud = False

    def visit_Call(self, node: cst.Call) -> None:
        name = node.func.attr.value if isinstance(node.func, cst.Attribute) else dotted(node.func)
        self.loud |= name not in QUIET

    def visit_MatrixMultiply(self, node: cst.MatrixMultiply) -> None:
        self.loud = True
