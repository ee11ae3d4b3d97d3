"""`fused=True` where the optimizer is made."""

from collections.abc import Mapping

import libcst as cst

from hotlap.source.places import Places, Site
from hotlap.source.scopes import dotted

from ..edits import Replacement, keyword, replace
from ._base import CannotWrite, Edit, Outcome, Rule, Settings, already, calls_named, constant, lines_of, touched_by

FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
AGAINST = ("foreach", "differentiable")
"""Arguments that don't go with it."""
LATE = (
    "torch's fused SGD with momentum raises a TypeError where a parameter gets its first gradient later than the "
    "others; the lever avoids that, the patched source does not"
)


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses arguments behind `**`, and several optimizers of which the run used some only."""
    sites = _used(places)
    if isinstance(sites, CannotWrite):
        return sites
    for site in sites:
        why = _why_not(site)
        if why:
            return CannotWrite(why, (site.place,))
    todo = [site for site in sites if not _has_it(site)]
    if not todo:
        return already(places, [site.place for site in sites])
    project = places.project
    for source in {site.source for site in todo}:
        changes: dict[cst.CSTNode, Replacement] = {site.call: _fused(site) for site in todo if site.source is source}
        project = project.with_sources(replace(source, changes))
    return Edit(project, lines_of(todo), touched_by(todo), notes=(LATE,) if any(map(_momentum, todo)) else ())


def _momentum(site: Site) -> bool:
    return site.kind == "SGD" and any(
        arg.keyword is not None and arg.keyword.value == "momentum" and constant(arg.value) != 0
        for arg in site.call.args
    )


def _fused(site: Site) -> Replacement:
    def change(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        return keyword(site.source, node, {"fused": "True"}, site.call)

    return change


def _used(places: Places) -> list[Site] | CannotWrite:
    """The optimizers that train, all of which have a fused form."""
    sites = places.optimizers
    if not sites:
        steps = tuple(source.place(call) for source, call in calls_named(places, "step")[:3])
        return CannotWrite("no call that makes an optimizer of torch.optim was found in your files", steps)
    seen = [o.name for o in places.facts.optimizers if not o.sparse] if places.facts is not None else []
    if len(sites) > 1 and seen:
        sites = [site for site in sites if site.kind in seen] or sites
    able = [site for site in sites if site.kind in FUSED]
    lines = lines_of(sites)
    if not able:
        return CannotWrite(f"torch has no fused {sites[0].kind}", lines)
    alternatives = len(able) > 1 and len({_assigned_to(site) for site in able}) < len(able)
    if len(able) > 1 and (len(seen) != len(able) or alternatives) and not _all_step(places, able):
        return CannotWrite(f"{len(sites)} optimizers are made, and which of them the run uses is not known", lines)
    return able


def _assigned_to(site: Site) -> str:
    assign = site.source.around(site.call, cst.Assign)
    return dotted(assign.targets[0].target) or "?" if assign is not None else "?"


def _all_step(places: Places, sites: list[Site]) -> bool:
    """Whether each of several optimizers has a variable of its own that steps."""
    stepping = {
        dotted(call.func.value) for _, call in calls_named(places, "step") if isinstance(call.func, cst.Attribute)
    }
    names = [_assigned_to(site) for site in sites]
    return len(set(names)) == len(names) and set(names) <= stepping


def _why_not(site: Site) -> str:
    if any(arg.star == "**" for arg in site.call.args):
        return "its arguments come from a `**` dictionary, which may hold `fused` already"
    for arg in site.call.args:
        name = arg.keyword.value if arg.keyword is not None else ""
        if name in AGAINST and constant(arg.value) is not False:
            return f"`{name}` is given, which does not go with `fused`"
        if name == "fused" and constant(arg.value) is not True:
            return "`fused` is given by the source itself"
    return ""


def _has_it(site: Site) -> bool:
    return any(arg.keyword is not None and arg.keyword.value == "fused" for arg in site.call.args)


RULE = Rule("fused-optimizer", edit)
