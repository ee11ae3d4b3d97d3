"""`model.to(memory_format=torch.channels_last)`, and the images where the model's first layer is seen to take them."""

from collections.abc import Mapping

import libcst as cst

from hotlap.source.places import Places, Site
from hotlap.source.scopes import dotted

from ..edits import Replacement, after, replace
from ._base import NO_TORCH, CannotWrite, Edit, Outcome, Rule, Settings, already, calls_named, touched, with_torch
from ._model import Spot, same_model, spots, trained_calls

WRAPPED = ("DistributedDataParallel", "FullyShardedDataParallel", "DDP", "FSDP")
INPUTS = (
    "the images are left in their order, since it was not proven that they have four dimensions; the first convolution "
    "converts them"
)


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses where the model is wrapped for several devices, whose buckets fix the strides."""
    sites = trained_calls(places)
    if isinstance(sites, CannotWrite):
        return sites
    wrapped = [source.place(call) for source, call in calls_named(places, *WRAPPED)]
    if wrapped:
        return CannotWrite("the model may be wrapped here; it has to be converted before", tuple(wrapped))
    own = _converted(places, sites)
    if own:
        return already(places, [site.place for site in own])
    found = spots(places, sites)
    if isinstance(found, CannotWrite):
        return found
    return _write(places, found, sites)


def _write(places: Places, found: list[Spot], sites: list[Site]) -> Outcome:
    project, changes = places.project, dict[object, dict[cst.CSTNode, Replacement]]()
    changed = frozenset().union(*(touched(spot.source, spot.scope) for spot in found))
    for spot in found:
        torch = with_torch(spot.scope)
        if torch is None:
            return CannotWrite(NO_TORCH, (spot.source.place(spot.after),))
        text = f"{spot.name}.to(memory_format={torch}.channels_last)"
        changes.setdefault(spot.source, {})[spot.after] = after(spot.source, text)
    left = False
    for site in sites:
        torch = with_torch(site.scope)
        if torch is None or not _takes_images(places, site):
            left = True
            continue
        changes.setdefault(site.source, {})[site.call] = _images(torch)
        changed |= touched(site.source, site.scope)
    for source in {*(spot.source for spot in found), *(site.source for site in sites)}:
        if source in changes:
            project = project.with_sources(replace(source, changes[source]))
    lines = tuple(spot.source.place(spot.after) for spot in found)
    return Edit(project, lines, changed, notes=(INPUTS,) if left else ())


def _images(torch: str) -> Replacement:
    def change(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        first = node.args[0]
        method = cst.Attribute(first.value, cst.Name("to"))
        format = cst.parse_expression(f"f(memory_format={torch}.channels_last)")
        assert isinstance(format, cst.Call)
        return node.with_changes(args=[first.with_changes(value=format.with_changes(func=method)), *node.args[1:]])

    return change


def _takes_images(places: Places, site: Site) -> bool:
    """Whether the model's forward gives its first parameter to a 2-d convolution, and the call gives it by name."""
    if not site.call.args or site.call.args[0].star or site.call.args[0].keyword is not None:
        return False
    if dotted(site.call.args[0].value) is None:
        return False
    origins = places.names.origins(site.call.func, site.scope)
    kinds = [places.names.instance_of(at) for at in origins]
    forwards = [kind.functions.get("forward") if kind is not None else None for kind in kinds]
    return bool(forwards) and all(forward is not None and _convolves_first(places, forward) for forward in forwards)


def _convolves_first(places: Places, forward: object) -> bool:
    from hotlap.source.scopes import Scope

    assert isinstance(forward, Scope)
    own = forward.parameters()
    if len(own) < 2:
        return False
    for scope, call in places.names.calls:
        if scope is forward and call.args and dotted(call.args[0].value) == own[1] and dotted(call.func):
            for at in places.names.origins(call.func, scope):
                if isinstance(at.node, cst.Call):
                    full = places.names.resolve(at.node.func, places.names.scope(at.source, at.node)) or ""
                    if full.endswith("nn.Conv2d"):
                        return True
    return False


def _converted(places: Places, sites: list[Site]) -> list[Site]:
    """Where the source converts one of the models itself."""
    found = []
    for source, call in calls_named(places, "to"):
        if any(arg.keyword is not None and arg.keyword.value == "memory_format" for arg in call.args):
            scope = places.names.scope(source, call)
            assert isinstance(call.func, cst.Attribute)
            if dotted(call.func.value) and same_model(places, call.func.value, scope, sites):
                found.append(Site(source, scope, call))
    return found


RULE = Rule("channels-last", edit, order=5)
