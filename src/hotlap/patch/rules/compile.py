"""`model.compile()` where the model has its final value."""

import re
from collections.abc import Mapping
from dataclasses import replace as with_fields

import libcst as cst

from hotlap.source.names import At, subclasses
from hotlap.source.places import Places, Site
from hotlap.source.project import Project
from hotlap.source.scopes import dotted

from ..edits import Replacement, after, before, replace, statement
from ._asked_gradients import differentiated_again
from ._base import (
    NO_TORCH,
    CannotWrite,
    Edit,
    Outcome,
    Rule,
    Settings,
    Touched,
    already,
    calls_named,
    lines_of,
    touched,
    with_torch,
)
from ._loss import with_loss
from ._model import Spot, in_place, same_model, spots, trained_calls

LAYER = re.compile(r"torch\.nn\.(?:modules\.\w+\.)?(?!Module$)[A-Z]\w*$")
GRADIENTS = (
    "a backward that adds to gradients which an earlier one left raises with CUDA graphs, unless the first ones were "
    "`zero_grad(set_to_none=False)`; under the recipe they are moved out of the graphs' memory"
)
LOOKED_PAST = (
    "the model is one of torch's own, which `.compile()` looks past without a word: `model = torch.compile(model)` "
    "takes it, but puts `_orig_mod.` before the names in its state_dict"
)


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses where the source compiles the model itself. With CUDA graphs (`reduce-overhead`) outputs are cloned, as
    the lever does, so it refuses outputs that are not proven to be tensors."""
    sites = trained_calls(places)
    if isinstance(sites, CannotWrite):
        return sites
    mode = settings["mode"]
    argument = {"default": "", "dynamic": "dynamic=True"}.get(mode, f'mode="{mode}"')
    passed = [site.place for site in sites if any(looked_past(places, at) for at in origins_of(places, site))]
    if passed:
        return CannotWrite(LOOKED_PAST, tuple(passed))
    own = compiled_by_source(places, sites)
    found = spots(places, sites)
    if own:
        mine = not isinstance(found, CannotWrite) and _are_ours(own, found, argument)
        lines = lines_of(own)
        return already(places, lines) if mine else CannotWrite("the source compiles the model itself", lines)
    if isinstance(found, CannotWrite):
        return found
    again = differentiated_again(places)
    if again is not None:
        return again
    project, changed = places.project, frozenset[Touched]()
    if mode == "reduce-overhead":
        cloned = _cloned(places, sites)
        if isinstance(cloned, CannotWrite):
            return cloned
        project, changed = cloned
    edit = _write(places, project, found, argument, changed)
    return with_fields(edit, notes=(*edit.notes, GRADIENTS)) if mode == "reduce-overhead" else edit


def origins_of(places: Places, site: Site) -> list[At]:
    """What makes the model that a call runs."""
    return places.names.origins(site.call.func, site.scope)


def looked_past(places: Places, at: At) -> bool:
    """Whether an expression makes a module whose forward is in torch's own files."""
    kind = places.names.instance_of(at)
    if kind is None:
        scope = places.names.scope(at.source, at.node)
        called = at.node.func if isinstance(at.node, cst.Call) else at.node
        return LAYER.match(places.names.resolve(called, scope) or "") is not None
    return "forward" not in kind.functions and subclasses(places.names, kind, LAYER)


def _write(places: Places, project: Project, found: list[Spot], argument: str, changed: frozenset[Touched]) -> Edit:
    for source in {spot.source for spot in found}:
        current = project.sources[source.path]
        changes: dict[cst.CSTNode, Replacement] = {}
        for spot in [spot for spot in found if spot.source is source]:
            node = spot.after if current is source else _counterpart(source.tree, current.tree, spot.after)
            changes[node] = after(current, f"{spot.name}.compile({argument})")
            changed |= touched(source, spot.scope)
        project = project.with_sources(replace(current, changes))
    lines = tuple(spot.source.place(spot.after) for spot in found)
    return with_loss(places, Edit(project, lines, changed))


def _cloned(places: Places, sites: list[Site]) -> tuple[Project, frozenset[Touched]] | CannotWrite:
    """Outputs out of the graph's own memory, and a mark where each step begins."""
    project, changed = places.project, frozenset[Touched]()
    by_source: dict[object, dict[cst.CSTNode, Replacement]] = {}
    for site in sites:
        torch = with_torch(site.scope)
        plan = in_place(places, site, "clone")
        if isinstance(plan, CannotWrite):
            return plan
        if torch is None:
            return CannotWrite(NO_TORCH, (site.place,))
        changes = by_source.setdefault(site.source, {})
        changes |= plan.changes
        changes[plan.line] = _marked(site, f"{torch}.compiler.cudagraph_mark_step_begin()", plan.following)
        changed |= touched(site.source, site.scope)
    for source in {site.source for site in sites}:
        project = project.with_sources(replace(source, by_source[source]))
    return project, changed


def _marked(site: Site, text: str, following: tuple[str, ...]) -> Replacement:
    def change(node: cst.CSTNode) -> cst.FlattenSentinel[cst.BaseStatement]:
        nodes = before(site.source, text)(node)
        assert isinstance(nodes, cst.FlattenSentinel)
        return cst.FlattenSentinel([*nodes, *(statement(site.source, line) for line in following)])

    return change


def _counterpart(old: cst.CSTNode, new: cst.CSTNode, wanted: cst.CSTNode) -> cst.CSTNode:
    """The statement of a rewritten tree that equals one of the old tree, at the same place among such."""
    finder, other = _Equal(wanted), _Equal(wanted)
    old.visit(finder)
    new.visit(other)
    at = next(index for index, node in enumerate(finder.found) if node is wanted)
    return other.found[at]


class _Equal(cst.CSTVisitor):
    def __init__(self, wanted: cst.CSTNode) -> None:
        self.wanted = wanted
        self.found: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if type(node) is type(self.wanted) and node.deep_equals(self.wanted):
            self.found.append(node)
        return super().on_visit(node)


def compiled_by_source(places: Places, sites: list[Site]) -> list[Site]:
    """Where the source compiles one of the models."""
    found = []
    for source, call in calls_named(places, "compile"):
        scope = places.names.scope(source, call)
        full = places.names.resolve(call.func, scope)
        if full == "torch.compile" and call.args:
            model: cst.BaseExpression = call.args[0].value
        elif isinstance(call.func, cst.Attribute) and full is None:
            model = call.func.value
        else:
            continue
        if dotted(model) and same_model(places, model, scope, sites):
            found.append(Site(source, scope, call))
    return found


def _are_ours(own: list[Site], found: list[Spot], argument: str) -> bool:
    """Whether these are the statements that this rule would write."""
    ours = {(spot.source, f"{spot.name}.compile({argument})") for spot in found}
    for site in own:
        line = site.source.parent(site.source.parent(site.call) or site.call)
        if (site.source, site.source.tree.code_for_node(site.call)) not in ours or not any(
            line is s.after for s in found
        ):
            return False
    return len(own) == len(found)


RULE = Rule("compile", edit, order=20)
