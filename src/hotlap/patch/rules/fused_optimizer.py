"""`fused=True` where the optimizer is made."""

import libcst as cst

from hotlap.levers._fused import FUSED
from hotlap.source.names import keyword_of
from hotlap.source.places import Places, Site
from hotlap.source.scopes import dotted, is_method_call

from ..edits import Changes, with_keywords
from ._base import CannotWrite, Edit, Rule, Settings, already, constant, written

AGAINST = ("foreach", "differentiable")
"""Arguments that don't go with it."""
LATE = (
    "torch's fused SGD with momentum raises a TypeError if a parameter gets its first gradient later than "
    "others; the lever avoids that, the patch does not"
)


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses arguments behind `**`, and several optimizers of which the run used some only."""
    sites = _used(places)
    for site in sites:
        _refuse(site)
    todo = [site for site in sites if keyword_of(site.call, "fused") is None]
    if not todo:
        return already(places, sites)
    changes = Changes(places.project)
    for site in todo:
        changes.put(site.source, {site.call: with_keywords(site.source, site.call, {"fused": "True"})})
    return written(changes, todo, notes=[LATE] if any(map(_momentum, todo)) else ())


def _momentum(site: Site) -> bool:
    given = keyword_of(site.call, "momentum")
    return site.kind == "SGD" and given is not None and constant(given) != 0


def _used(places: Places) -> list[Site]:
    """The optimizers that train, all of which have a fused form."""
    sites = places.optimizers
    if not sites:
        why = "no call of a torch.optim optimizer was found in your files"
        raise CannotWrite(why, places.calls_named("step")[:3])
    seen = [o.name for o in places.facts.optimizers if not o.sparse] if places.facts is not None else []
    if len(sites) > 1 and seen:
        sites = [site for site in sites if site.kind in seen] or sites
    able = [site for site in sites if site.kind in FUSED]
    if not able:
        raise CannotWrite(f"torch has no fused {sites[0].kind}", sites)
    alternatives = len({_assigned_to(site) for site in able}) < len(able)
    if len(able) > 1 and (len(seen) != len(able) or alternatives) and not _all_step(places, able):
        raise CannotWrite(f"{len(sites)} optimizers are made, and which one the run uses is unknown", sites)
    return able


def _assigned_to(site: Site) -> str:
    assign = site.source.around(site.call, cst.Assign)
    return dotted(assign.targets[0].target) or "?" if assign is not None else "?"


def _all_step(places: Places, sites: list[Site]) -> bool:
    """Whether each of several optimizers has a variable of its own that steps."""
    steps = [site.call for site in places.calls_named("step")]
    stepping = {dotted(call.func.value) for call in steps if is_method_call(call)}
    names = {_assigned_to(site) for site in sites}
    return len(names) == len(sites) and names <= stepping


def _refuse(site: Site) -> None:
    """Raises CannotWrite where the arguments do not go with `fused`."""
    if any(arg.star == "**" for arg in site.call.args):
        raise CannotWrite("its arguments come from a `**` dictionary, which may hold `fused` already", [site])
    for name in AGAINST:
        given = keyword_of(site.call, name)
        if given is not None and constant(given) is not False:
            raise CannotWrite(f"`{name}` does not work with `fused`", [site])
    fused = keyword_of(site.call, "fused")
    if fused is not None and constant(fused) is not True:
        raise CannotWrite("the source already sets `fused`", [site])


RULE = Rule(edit)
