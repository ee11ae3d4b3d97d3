"""`model.to(memory_format=torch.channels_last)`, and the images where the model's first layer is seen to take them."""

import libcst as cst

from hotlap.source.names import keyword_of
from hotlap.source.places import Places, Site
from hotlap.source.scopes import Scope, dotted

from ..edits import Changes, after, torch_in
from ._base import CannotWrite, Edit, Rule, Settings, already, with_torch, written
from ._model import spots, trained_calls

WRAPPED = ("DistributedDataParallel", "FullyShardedDataParallel", "DDP", "FSDP")
INPUTS = (
    "the images are left in their order, since it was not proven that they have four dimensions; the first convolution "
    "converts them"
)


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses where the model is wrapped for several devices, whose buckets fix the strides."""
    sites = trained_calls(places)
    wrapped = places.calls_named(*WRAPPED)
    if wrapped:
        raise CannotWrite("the model may be wrapped here; it has to be converted before", wrapped)
    own = [
        site
        for site in places.methods_of(sites, "to")
        if keyword_of(site.call, "memory_format") is not None and dotted(site.call.func)
    ]
    if own:
        return already(places, own)
    changes, lines = Changes(places.project), []
    for spot in spots(places, sites):
        source = spot.scope.source
        place = source.place(spot.after)
        text = f"{spot.name}.to(memory_format={with_torch(spot.scope, place)}.channels_last)"
        changes.put(source, {spot.after: after(source, text)})
        lines.append(place)
    images = [(site, torch_in(site.scope)) for site in sites if _takes_images(places, site)]
    for site, torch in images:
        if torch is not None:
            changes.put(site.source, {site.call: _images(torch, site.call)})
    left = len(images) < len(sites) or any(torch is None for _, torch in images)
    return written(changes, lines, notes=[INPUTS] if left else ())


def _images(torch: str, call: cst.Call) -> cst.Call:
    """The call with its first argument in that format."""
    first, *others = call.args
    made = cst.ensure_type(cst.parse_expression(f"f(memory_format={torch}.channels_last)"), cst.Call)
    made = made.with_changes(func=cst.Attribute(first.value, cst.Name("to")))
    return call.with_changes(args=[first.with_changes(value=made), *others])


def _takes_images(places: Places, site: Site) -> bool:
    """Whether the model's forward gives its first parameter to a 2-d convolution, and the call gives it by name."""
    first = site.call.args[0] if site.call.args else None
    if first is None or first.star or first.keyword is not None or dotted(first.value) is None:
        return False
    kinds = [places.names.instance_of(at) for at in places.origins(site)]
    forwards = [kind.functions.get("forward") if kind is not None else None for kind in kinds]
    return bool(forwards) and all(forward is not None and _convolves_first(places, forward) for forward in forwards)


def _convolves_first(places: Places, forward: Scope) -> bool:
    _, images, *_ = [*forward.parameters(), "", ""]
    given = [
        Site(scope, call)
        for scope, call in places.names.calls
        if scope is forward and call.args and dotted(call.args[0].value) == images and dotted(call.func)
    ]
    return any(places.names.made_by(at).endswith("nn.Conv2d") for site in given for at in places.origins(site))


RULE = Rule(edit, order=5)
