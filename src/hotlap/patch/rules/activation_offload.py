"""`save_on_cpu` around the statement in which the loop calls its model: the lever, in part."""

from hotlap.source.places import Places, managers

from ..edits import Changes, under
from ._base import CannotWrite, Edit, Rule, Settings, already, with_torch, written
from ._model import trained_calls

PARTLY = (
    "torch's own hook copies everything that autograd saves, weights too, and waits for each copy. The lever "
    "skips weights and small tensors and does not wait, so it is faster. Copies may change strides, and so "
    "rounding"
)


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses where the source has such hooks itself."""
    sites = trained_calls(places)
    todo = [site for site in sites if not managers(site, "save_on_cpu")]
    if not todo:
        return already(places, sites)
    own = places.calls_named("save_on_cpu", "saved_tensors_hooks")
    if own:
        raise CannotWrite("the source already has hooks on saved tensors", own)
    changes = Changes(places.project)
    for site in todo:
        torch, line = with_torch(site.scope, site.place), site.source.own_line(site.call)
        if line is None:
            raise CannotWrite("the model is called in a statement that shares its line", [site])
        header = f"with {torch}.autograd.graph.save_on_cpu(pin_memory=True)"
        changes.put(site.source, {line: under(site.source, header)})
    return written(changes, todo, PARTLY)


RULE = Rule(edit, order=15)
