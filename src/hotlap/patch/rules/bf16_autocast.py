"""`with torch.autocast(...)` around the model's call in the training loop; what it returns is float32 again."""

import libcst as cst

from hotlap.source.places import Places, Site, managers
from hotlap.source.scopes import last_name, nodes
from hotlap.source.tensors import TENSOR_METHODS
from hotlap.source.tree import Source

from ..edits import Changes, Replacement, Statements, fresh, statement, under
from ._base import CannotWrite, Edit, Rule, Settings, already, with_torch, written
from ._model import Converted, convert, trained_calls

QUIET = TENSOR_METHODS | {"to", "cuda", "contiguous", "requires_grad_", "type", "long", "int", "bool", "cat", "stack"}
"""Calls that autocast does nothing to, so that they may stand inside."""
EVALUATION = "evaluation is left in float32; the recipe runs it in bfloat16 too"


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses models in float64, outputs that are not proven to be tensors, and statements that can't be split."""
    sites = trained_calls(places)
    double = [
        site
        for site in places.calls_named("double")
        if isinstance(site.call.func, cst.Attribute) and places.same_model(site.call.func.value, site.scope, sites)
    ]
    if double:
        raise CannotWrite("the model computes in float64", double)
    todo = [site for site in sites if not _inside(site)]
    if not todo:
        return already(places, sites)
    changes, lines = Changes(places.project), set[cst.CSTNode]()
    for site in todo:
        torch = with_torch(site.scope, site.place)
        if not _arguments_are_quiet(site.call):
            raise CannotWrite("an argument of the call is computed in it; give it a line of its own", [site])
        plan = convert(places, site, fresh(site.source, "output"))
        if plan.line in lines:
            raise CannotWrite("the model is called twice in one statement", [site])
        lines.add(plan.line)
        for node, change in plan.changes.items():
            changes.put(site.scope, node, change)
        header = f'with {torch}.autocast("{"cuda" if places.cuda else "cpu"}", dtype={torch}.bfloat16)'
        changes.put(site.scope, plan.line, _wrapped(site.source, plan, header))
    return written(changes, todo, notes=() if places.inference else [EVALUATION])


def _wrapped(source: Source, plan: Converted, header: str) -> Replacement:
    def change(node: cst.CSTNode) -> Statements:
        line, within = cst.ensure_type(node, cst.SimpleStatementLine), under(source, header)
        rest = [statement(source, text) for text in plan.following]
        if not plan.first:
            return cst.FlattenSentinel([within(line), *rest])  # type: ignore[list-item]
        first = statement(source, plan.first).with_changes(leading_lines=line.leading_lines)
        return cst.FlattenSentinel([within(first), line.with_changes(leading_lines=[]), *rest])  # type: ignore[list-item]

    return change


def _inside(site: Site) -> bool:
    """Whether the call stands in an autocast to this dtype already."""
    texts = map(site.source.code, managers(site, "autocast"))
    return any(".bfloat16" in text and "enabled" not in text for text in texts)


def _arguments_are_quiet(call: cst.Call) -> bool:
    """Whether the arguments compute nothing that autocast would compute otherwise."""
    inner = [node for arg in call.args for node in nodes(arg, cst.Call, cst.MatrixMultiply)]
    return all(isinstance(node, cst.Call) and last_name(node) in QUIET for node in inner)


RULE = Rule(edit, order=10)
