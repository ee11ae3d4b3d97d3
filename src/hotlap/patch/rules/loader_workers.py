"""Worker processes in the arguments of the DataLoader that feeds the training loop."""

import re
from collections.abc import Iterator, Mapping

import libcst as cst

from hotlap.records.patch import Line
from hotlap.source.names import argument
from hotlap.source.places import Places, Site
from hotlap.source.scopes import Scope, dotted

from ..edits import Changes, expression, with_keywords
from ._base import CannotWrite, Edit, Rule, Settings, already, constant, written

POSITIONS = {5: "num_workers", 7: "pin_memory"}
"""Where DataLoader takes these without a keyword; the others it takes by keyword only."""
ITERABLE = re.compile(r"IterableDataset$")
LATER_EPOCHS = (
    "persistent workers draw no new seed each epoch: from the second epoch on, random numbers differ, and "
    "workers keep old values of global variables (the recipe corrects both)"
)


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses iterable datasets that had no workers, as the lever does."""
    site = places.training_loader()
    _refuse(places, site)
    changing = _changing(places, site) if settings["persistent"] else None
    if changing is not None:
        settings = {**settings, "persistent": False}
    changed = _changed(site, settings, places.cuda)
    if changed.deep_equals(site.call):
        return already(places, [site])
    changes = Changes(places.project)
    changes.put(site.source, {site.call: changed})
    notes = [LATER_EPOCHS] if settings["persistent"] else []
    if changing is not None:
        notes = [
            f"without persistent_workers: {changing.file}:{changing.line} may change the dataset, which they would "
            "not see"
        ]
    return written(changes, [site], notes=notes)


def _changing(places: Places, site: Site) -> Line | None:
    """A line that may change the dataset after the loader is made: a call for its effect alone that has to do with it
    or with a part of it, or an assignment or `del` within it. Workers that persist would go on with it as it was."""
    given = argument(site.call, 0, "dataset")
    made = {at.node for at in places.names.origins(given, site.scope)} if given is not None else set()

    def within(node: cst.BaseExpression, scope: Scope) -> bool:
        while True:
            if isinstance(node, cst.Attribute) and node.attr.value == "dataset":
                return True
            if any(at.node in made for at in places.names.origins(node, scope)):
                return True
            if not isinstance(node, cst.Attribute | cst.Subscript):
                return False
            node = node.value

    for source in places.project.sources.values():
        for statement in source.every(cst.Expr, cst.Assign, cst.AugAssign, cst.Del):
            if any(within(node, source.scope(statement)) for node in _written_to(statement)):
                return source.place(statement)
    return None


def _written_to(statement: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """What a statement may change."""
    match statement:
        case cst.Expr(value=cst.Call(func=func, args=args)) if dotted(func) != "print":
            yield from (arg.value for arg in args)
            if isinstance(func, cst.Attribute):
                yield func.value
        case cst.Assign(targets=targets):
            yield from (one.target.value for one in targets if isinstance(one.target, cst.Attribute | cst.Subscript))
        case cst.AugAssign(target=cst.Attribute() | cst.Subscript() as target):
            yield target.value
        case cst.Del(target=cst.Attribute() | cst.Subscript() as target):
            yield target.value


def _refuse(places: Places, site: Site) -> None:
    """Raises CannotWrite where workers would change what is read, or the arguments are not known."""
    loaders = [loader for loader in places.facts.loaders if loader.training] if places.facts is not None else []
    given = argument(site.call, 0, "dataset")
    made = places.names.origins(given, site.scope) if given is not None and not loaders else []
    kinds = [kind for at in made if (kind := places.names.instance_of(at)) is not None]
    if any(loader.iterable and not loader.workers for loader in loaders) or any(
        places.names.derives(kind, ITERABLE) for kind in kinds
    ):
        raise CannotWrite(
            "the dataset is iterable: each worker would deliver all its data unless it shards itself", [site]
        )
    if not site.kind:
        raise CannotWrite("the loader's class is your own, with unknown arguments", [site])


def _name(arg: cst.Arg, at: int) -> str:
    """The parameter that an argument is for, as far as it is one of POSITIONS."""
    return arg.keyword.value if arg.keyword is not None else POSITIONS.get(at, "")


def _changed(site: Site, settings: Settings, cuda: bool) -> cst.Call:
    """The call with the lever's arguments; those behind a `**` are overridden in place. cuda: beside a GPU, so that not
    to pin is a choice too."""
    wanted = {"num_workers": str(settings["workers"]), "prefetch_factor": str(settings["prefetch"])}
    args = list(site.call.args)
    stars = [at for at, arg in enumerate(args) if arg.star]
    may_pin = bool(stars) or any(_name(arg, at) == "pin_memory" for at, arg in enumerate(args))
    if settings["pin_memory"] or (cuda and may_pin):
        wanted["pin_memory"] = str(settings["pin_memory"])
    if settings["persistent"]:
        wanted["persistent_workers"] = "True"
    if len(stars) > 1 or any(args[at].star == "*" for at in stars):
        raise CannotWrite("its arguments come from a `*` list or several `**` dictionaries", [site])
    for at, arg in enumerate(args):
        name = _name(arg, at)
        if not arg.star and name in wanted:
            args[at] = arg.with_changes(value=_merged(site, name, arg.value, wanted.pop(name)))
    if wanted and stars:
        args[stars[0]] = args[stars[0]].with_changes(value=_overridden(site, args[stars[0]].value, wanted))
        wanted = {}
    return with_keywords(site.source, site.call.with_changes(args=args), wanted, site.call)


def _merged(site: Site, name: str, old: cst.BaseExpression, new: str) -> cst.BaseExpression:
    """A new value for an argument that is given: never fewer workers than the source asks for."""
    text, value = site.source.code(old), constant(old)
    if text == new:
        return old
    if name == "num_workers":
        number = isinstance(value, int) and not isinstance(value, bool)
        if text.replace(" ", "").startswith(f"max({new},") or (number and int(value or 0) >= int(new)):
            return old
        new = new if number else f"max({new}, {text})"
    return expression(site.source, new)


def _overridden(site: Site, given: cst.BaseExpression, wanted: Mapping[str, str]) -> cst.BaseExpression:
    """`**options` becomes `**{**options, "num_workers": 4}`: whatever it holds, the lever's arguments win."""
    code = site.source.code
    if not isinstance(given, cst.Dict):
        own = ", ".join(f'"{name}": {value}' for name, value in wanted.items())
        return expression(site.source, f"{{**{code(given)}, {own}}}")
    known = {constant(e.key): code(e.value) for e in given.elements if isinstance(e, cst.DictElement)}
    if not wanted.items() <= known.items():
        raise CannotWrite("its arguments come from a dictionary written in the call", [site])
    return given


RULE = Rule(edit, order=30)
