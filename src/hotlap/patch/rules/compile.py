"""`model.compile()` where the model has its final value."""

import re

import libcst as cst

from hotlap.source.names import At
from hotlap.source.places import CannotTell, Places, Site
from hotlap.source.scopes import dotted

from ..edits import Changes, after
from ._base import CannotWrite, Edit, Rule, Settings, already, written
from ._compiled import refuse_differentiated_again, with_loss
from ._model import spots, trained_calls

LAYER = re.compile(r"torch\.nn\.(?:modules\.\w+\.)?(?!Module$)[A-Z]\w*$")
LOOKED_PAST = (
    "the model's class is torch's own, on which `.compile()` has no effect. `model = torch.compile(model)` "
    "works, but prefixes state_dict names with `_orig_mod.`"
)


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses where the source compiles the model itself."""
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
        ours = {(spot.after, f"{spot.name}.compile({argument})") for spot in found}
        if len(own) == len(found) and ours.issuperset((s.source.own_line(s.call), s.source.code(s.call)) for s in own):
            return already(places, own)
        raise CannotWrite("the source already compiles the model", own)
    refuse_differentiated_again(places)
    changes = Changes(places.project)
    for spot in found:
        changes.put(spot.scope.source, {spot.after: after(spot.scope.source, f"{spot.name}.compile({argument})")})
    return with_loss(places, written(changes, [spot.scope.source.place(spot.after) for spot in found]))


def looked_past(places: Places, at: At) -> bool:
    """Whether an expression makes a module whose forward is in torch's own files."""
    kind = places.names.instance_of(at)
    if kind is None:
        called = at.node.func if isinstance(at.node, cst.Call) else at.node
        return LAYER.match(places.names.resolve(called, at.source.scope(at.node))) is not None
    return "forward" not in kind.functions and places.names.derives(kind, LAYER)


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


RULE = Rule(edit, order=20)
