"""`model.compile()` where the model has its final value."""

import re
from dataclasses import replace

import libcst as cst

from hotlap.source.names import At
from hotlap.source.places import CannotTell, Places, Site
from hotlap.source.scopes import dotted

from ..edits import Changes, Replacement, Statements, after, before, statement
from ._asked_gradients import refuse_differentiated_again
from ._base import CannotWrite, Edit, Rule, Settings, already, with_torch, written
from ._loss import with_loss
from ._model import Spot, convert, spots, trained_calls

LAYER = re.compile(r"torch\.nn\.(?:modules\.\w+\.)?(?!Module$)[A-Z]\w*$")
GRADIENTS = (
    "a backward that adds to gradients which an earlier one left raises with CUDA graphs, unless the first ones were "
    "`zero_grad(set_to_none=False)`; under the recipe they are moved out of the graphs' memory"
)
LOOKED_PAST = (
    "the model is one of torch's own, which `.compile()` looks past without a word: `model = torch.compile(model)` "
    "takes it, but puts `_orig_mod.` before the names in its state_dict"
)


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses where the source compiles the model itself. With CUDA graphs (`reduce-overhead`) outputs are cloned, as
    the lever does, so it refuses outputs that are not proven to be tensors."""
    sites = trained_calls(places)
    mode = settings["mode"]
    argument = {"default": "", "dynamic": "dynamic=True"}.get(mode, f'mode="{mode}"')
    passed = [site for site in sites if any(looked_past(places, at) for at in places.origins(site))]
    if passed:
        raise CannotWrite(LOOKED_PAST, passed)
    own = compiled_by_source(places, sites)
    try:
        found = spots(places, sites)
    except CannotTell:
        if not own:
            raise
        found = []
    if own:
        if _are_ours(own, found, argument):
            return already(places, own)
        raise CannotWrite("the source compiles the model itself", own)
    refuse_differentiated_again(places)
    changes = Changes(places.project)
    if mode == "reduce-overhead":
        for site in sites:
            _clone(places, site, changes)
    for spot in found:
        changes.put(spot.scope, spot.after, after(spot.source, f"{spot.name}.compile({argument})"))
    edit = with_loss(places, written(changes, [spot.source.place(spot.after) for spot in found]))
    return replace(edit, notes=(*edit.notes, GRADIENTS)) if mode == "reduce-overhead" else edit


def looked_past(places: Places, at: At) -> bool:
    """Whether an expression makes a module whose forward is in torch's own files."""
    kind = places.names.instance_of(at)
    if kind is None:
        called = at.node.func if isinstance(at.node, cst.Call) else at.node
        return LAYER.match(places.names.resolve(called, at.source.scope(at.node))) is not None
    return "forward" not in kind.functions and places.names.derives(kind, LAYER)


def _clone(places: Places, site: Site, changes: Changes) -> None:
    """An output out of the graph's own memory, and a mark where each step begins."""
    plan = convert(places, site, "clone", "")
    text = f"{with_torch(site.scope, site.place)}.compiler.cudagraph_mark_step_begin()"
    for node, change in plan.changes.items():
        changes.put(site.scope, node, change)
    changes.put(site.scope, plan.line, _marked(site, text, plan.following))


def _marked(site: Site, text: str, following: tuple[str, ...]) -> Replacement:
    def change(node: cst.CSTNode) -> Statements:
        nodes = before(site.source, text)(node)
        assert isinstance(nodes, cst.FlattenSentinel)
        return cst.FlattenSentinel([*nodes, *(statement(site.source, line) for line in following)])

    return change


def compiled_by_source(places: Places, sites: list[Site]) -> list[Site]:
    """Where the source compiles one of the models."""
    found = []
    for site in places.calls_named("compile"):
        full, model = places.names.resolve(site.call.func, site.scope), None
        if full == "torch.compile" and site.call.args:
            model = site.call.args[0].value
        elif isinstance(site.call.func, cst.Attribute) and not full:
            model = site.call.func.value
        if dotted(model) and model is not None and places.same_model(model, site.scope, sites):
            found.append(site)
    return found


def _are_ours(own: list[Site], found: list[Spot], argument: str) -> bool:
    """Whether these are the statements that this rule would write."""
    ours = {(spot.after, f"{spot.name}.compile({argument})") for spot in found}
    lines = {(site.source.own_line(site.call), site.source.code(site.call)) for site in own}
    return len(own) == len(found) and lines <= ours


RULE = Rule("compile", edit, order=20)
