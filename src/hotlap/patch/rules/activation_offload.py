"""`save_on_cpu` around the statement in which the loop calls its model: the lever, in part."""

from collections.abc import Mapping

import libcst as cst

from ..edits import Replacement, inside_with, own_line, replace
from ..places import Places, Site
from ..scopes import dotted
from ._base import NO_TORCH, CannotWrite, Edit, Outcome, Rule, Settings, already, calls_named, touched, with_torch
from ._model import lines_of, trained_calls

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
    todo = [site for site in sites if not _inside(site)]
    if not todo:
        return already(places, lines_of(sites))
    own = [
        source.place(call)
        for name in ("save_on_cpu", "saved_tensors_hooks")
        for source, call in calls_named(places, name)
    ]
    if own:
        return CannotWrite("the source has hooks on saved tensors itself", tuple(own))
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
    changed = frozenset().union(*(touched(site.source, site.scope) for site in todo))
    return Edit(project, lines_of(todo), changed, partly=PARTLY)


def _inside(site: Site) -> bool:
    """Whether the call stands in such a block already."""
    above = site.source.around(site.call, cst.With)
    while above is not None:
        for item in above.items:
            if isinstance(item.item, cst.Call) and (dotted(item.item.func) or "").endswith("save_on_cpu"):
                return True
        above = site.source.around(above, cst.With)
    return False


RULE = Rule("activation-offload", edit, order=15)
