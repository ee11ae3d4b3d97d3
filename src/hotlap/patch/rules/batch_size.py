"""Batches of several times as many samples: `batch_size=4 * args.batch_size`."""

from collections.abc import Mapping

import libcst as cst

from hotlap.source.places import Places, Site
from hotlap.source.scopes import dotted

from ..edits import Replacement, expression, keyword, replace
from ._base import CannotWrite, Edit, Outcome, Rule, Settings, already, constant, touched

BATCH_SIZE = 1
"""Its position among DataLoader's arguments."""
OWN = ("batch_sampler", "sampler_factory")
RATE = "the learning rate is still the one chosen for smaller batches, and an epoch has fewer updates"
FACTOR = "the source multiplies by the same number already; where that is no earlier patch, multiply once more by hand"


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses loaders whose batches the script makes itself."""
    site = places.training_loader()
    if isinstance(site, CannotWrite):
        return site
    if not site.kind:
        return CannotWrite("the loader is of a class of your own, whose arguments are not known", (site.place,))
    stars = [arg for arg in site.call.args if arg.star]
    if stars and _place(site.call) is None:
        return _behind_star(places, site, stars, int(settings["times"]))
    if any(_is(arg, *OWN) for arg in site.call.args):
        return CannotWrite("the script makes its batches itself", (site.place,))
    times, at = int(settings["times"]), _place(site.call)
    given = site.call.args[at].value if at is not None else None
    text = "1" if given is None else site.source.tree.code_for_node(given)
    if text == "None":
        return CannotWrite("the script makes its batches itself", (site.place,))
    if text.startswith(f"{times} * "):
        return Edit(places.project, (site.place,), already=True, notes=(FACTOR,))
    return _write(places, site, at, _multiplied(times, given, text))


def _write(places: Places, site: Site, at: int | None, text: str) -> Edit:
    def change(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        if at is None:
            return keyword(site.source, node, {"batch_size": text}, site.call)
        args = list(node.args)
        args[at] = args[at].with_changes(value=expression(site.source, text))
        return node.with_changes(args=args)

    changes: dict[cst.CSTNode, Replacement] = {site.call: change}
    project = places.project.with_sources(replace(site.source, changes))
    return Edit(project, (site.place,), touched(site.source, site.scope), notes=(RATE,))


def _behind_star(places: Places, site: Site, stars: list[cst.Arg], times: int) -> Outcome:
    """`**options` becomes `**{**options, "batch_size": 4 * options["batch_size"]}`, where they surely hold one."""
    node = stars[0].value
    inner = node.elements[0].value if isinstance(node, cst.Dict) and node.elements else node
    name = dotted(inner)
    own = _entry(node)
    if own is not None:
        mine = name is not None and site.source.tree.code_for_node(own) == f'{times} * {name}["batch_size"]'
        lines = (site.place,)
        return (
            already(places, lines) if mine else CannotWrite("its arguments come from a dictionary in the call", lines)
        )
    origins = places.names.origins(inner, site.scope) if name is not None else []
    if len(stars) != 1 or stars[0].star != "**" or not origins or not all(_entry(at.node) for at in origins):
        return CannotWrite("the batch size may come from a `*` list or a `**` dictionary", (site.place,))
    before = site.source.tree.code_for_node(node)
    before = before.rstrip("}").rstrip(", ") if isinstance(node, cst.Dict) else f"{{**{before}"
    text = f'{before}, "batch_size": {times} * {name}["batch_size"]}}'
    at = site.call.args.index(stars[0])
    return _write(places, site, at, text)


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


def _place(call: cst.Call) -> int | None:
    """Where the batch size stands among a call's arguments; None where it is not given."""
    for at, arg in enumerate(call.args):
        if _is(arg, "batch_size") or (arg.keyword is None and not arg.star and at == BATCH_SIZE):
            return at
    return None


def _is(arg: cst.Arg, *names: str) -> bool:
    return arg.keyword is not None and arg.keyword.value in names


RULE = Rule("batch-size", edit, order=35)
