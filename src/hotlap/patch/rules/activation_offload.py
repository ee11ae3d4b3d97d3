"""`save_on_cpu` around the statement in which the loop calls its model: the lever, in part."""

from collections.abc import Mapping

import libcst as cst

from hotlap.source.places import Places

from ..edits import Replacement, inside_with, own_line, replace
from ._base import (
    NO_TORCH,
    CannotWrite,
    Edit,
    Outcome,
    Rule,
    Settings,
    already,
    calls_named,
    lines_of,
    managers,
    touched_by,
    with_torch,
)
from ._model import trained_calls

PARTLY = (
    "torch's own hook copies whatever autograd saves, the weights too, and waits for each copy; the lever leaves "
    "weights and small tensors where they are and does not wait, so it is faster. Copies are laid out "
    "anew, so rounding may change"
)


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses where the source has such hooks itself."""
    sites = trained_calls(places)
    if isinstance(sites, CannotWrite):
        return sites
    todo = [site for site in sites if not managers(site, "save_on_cpu")]
    if not todo:
        return already(places, lines_of(sites))
    own = tuple(source.place(call) for source, call in calls_named(places, "save_on_cpu", "saved_tensors_hooks"))
    if own:
        return CannotWrite("the source has hooks on saved tensors itself", own)
    project = places.project
    for source in {site.source for site in todo}:
        changes: dict[cst.CSTNode, Replacement] = {}
        for site in [site for site in todo if site.source is source]:
            torch, line = with_torch(site.scope), own_line(source, site.call)
            if torch is None:
                return CannotWrite(NO_TORCH, (site.place,))
            if line is None:
                return CannotWrite("the model is called in a statement that has no line of its own", (site.place,))
            changes[line] = inside_with(source, f"{torch}.autograd.graph.save_on_cpu(pin_memory=True)")
        project = project.with_sources(replace(source, changes))
    return Edit(project, lines_of(todo), touched_by(todo), partly=PARTLY)


RULE = Rule("activation-offload", edit, order=15)
