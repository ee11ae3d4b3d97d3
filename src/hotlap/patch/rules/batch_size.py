"""Batches of several times as many samples: `batch_size=4 * args.batch_size`."""

from dataclasses import replace

import libcst as cst

from hotlap.source.places import Places, Site
from hotlap.source.scopes import dotted

from ..edits import Changes, expression, with_keywords
from ._base import CannotWrite, Edit, Rule, Settings, already, constant, written

BATCH_SIZE = 1
"""Its position among DataLoader's arguments."""
OWN = ("batch_sampler", "sampler_factory")
RATE = "the learning rate stays that of smaller batches, and an epoch has fewer updates"
FACTOR = "the source already multiplies by this number; if an earlier patch did not write that, multiply again by hand"


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses loaders whose batches the script makes itself."""
    site, times = places.training_loader(), int(settings["times"])
    if not site.kind:
        raise CannotWrite("the loader's class is your own, with unknown arguments", [site])
    stars, at = [arg for arg in site.call.args if arg.star], None
    for number, arg in enumerate(site.call.args):
        if _is(arg, "batch_size") or (arg.keyword is None and not arg.star and number == BATCH_SIZE):
            at = number
            break
    if stars and at is None:
        return _behind_star(places, site, stars, times)
    given = site.call.args[at].value if at is not None else None
    text = "1" if given is None else site.source.code(given)
    if text == "None" or any(_is(arg, *OWN) for arg in site.call.args):
        raise CannotWrite("the script makes its batches itself", [site])
    if text.startswith(f"{times} * "):
        return replace(already(places, [site]), notes=(FACTOR,))
    return _write(places, site, at, _multiplied(times, given, text))


def _write(places: Places, site: Site, at: int | None, text: str) -> Edit:
    changes = Changes(places.project)
    if at is None:
        changes.put(site.source, {site.call: with_keywords(site.source, site.call, {"batch_size": text})})
    else:
        changes.put(site.source, {site.call.args[at].value: expression(site.source, text)})
    return written(changes, [site], notes=[RATE])


def _behind_star(places: Places, site: Site, stars: list[cst.Arg], times: int) -> Edit:
    """`**options` becomes `**{**options, "batch_size": 4 * options["batch_size"]}`, where they surely hold one."""
    node = stars[0].value
    inner = node.elements[0].value if isinstance(node, cst.Dict) and node.elements else node
    name, own = dotted(inner), _entry(node)
    if own is not None:
        if name is not None and site.source.code(own) == f'{times} * {name}["batch_size"]':
            return already(places, [site])
        raise CannotWrite("its arguments come from a dictionary in the call", [site])
    origins = places.names.origins(inner, site.scope) if name is not None else []
    if len(stars) != 1 or stars[0].star != "**" or not origins or not all(_entry(at.node) for at in origins):
        raise CannotWrite("the batch size may come from a `*` list or a `**` dictionary", [site])
    before = site.source.code(node)
    before = before.rstrip("}").rstrip(", ") if isinstance(node, cst.Dict) else f"{{**{before}"
    text = f'{before}, "batch_size": {times} * {name}["batch_size"]}}'
    return _write(places, site, site.call.args.index(stars[0]), text)


def _entry(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The batch size in a dictionary that is written out."""
    if not isinstance(node, cst.Dict):
        return None
    found = [e.value for e in node.elements if isinstance(e, cst.DictElement) and constant(e.key) == "batch_size"]
    return found[-1] if found else None


def _multiplied(times: int, given: cst.BaseExpression | None, text: str) -> str:
    if given is None:
        return str(times)
    bare = isinstance(given, cst.Name | cst.Attribute | cst.Call | cst.Integer | cst.Subscript) or given.lpar
    return f"{times} * {text}" if bare else f"{times} * ({text})"


def _is(arg: cst.Arg, *names: str) -> bool:
    return arg.keyword is not None and arg.keyword.value in names


RULE = Rule(edit, order=35)
