"""`model.to(memory_format=torch.channels_last)`; its first convolution converts the images."""

from hotlap.source.names import keyword_of
from hotlap.source.places import Places
from hotlap.source.scopes import dotted

from ..edits import Changes, after
from ._base import CannotWrite, Edit, Rule, Settings, already, with_torch, written
from ._model import spots, trained_calls

WRAPPED = ("DistributedDataParallel", "FullyShardedDataParallel", "DDP", "FSDP")


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses where the model is wrapped for several devices, whose buckets fix the strides."""
    sites = trained_calls(places)
    wrapped = places.calls_named(*WRAPPED)
    if wrapped:
        raise CannotWrite("the model may be wrapped here; convert it before that", wrapped)
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
    return written(changes, lines)


RULE = Rule(edit, order=5)
