"""Worker processes in the arguments of the DataLoader that feeds the training loop."""

import re
from collections.abc import Mapping

import libcst as cst

from hotlap.records.patch import Line
from hotlap.source.names import subclasses
from hotlap.source.places import Places, Site
from hotlap.source.scopes import Scope, dotted

from ..edits import Replacement, expression, keyword, replace
from ._base import CannotWrite, Edit, Outcome, Rule, Settings, already, constant, touched

POSITIONS = {"num_workers": 5, "pin_memory": 7}
"""Where DataLoader takes these without a keyword; the others it takes by keyword only."""
ITERABLE = re.compile(r"IterableDataset$")
LATER_EPOCHS = (
    "persistent workers draw no new seed at an epoch, so from the second epoch on shuffling and dropout draw other "
    "random numbers than before, and global variables that the dataset reads stay as they were (the recipe makes up "
    "for both)"
)


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses iterable datasets that had no workers, as the lever does."""
    site = places.training_loader()
    if isinstance(site, CannotWrite):
        return site
    why = _why_not(places, site)
    if why:
        return CannotWrite(why, (site.place,))
    changing = _changing(places, site) if settings["persistent"] else None
    if changing is not None:
        settings = {**settings, "persistent": False}
    changed = _changed(site, settings, places.cuda)
    if isinstance(changed, CannotWrite):
        return changed
    if changed.deep_equals(site.call):
        return already(places, [site.place])
    changes: dict[cst.CSTNode, Replacement] = {site.call: lambda node: changed}
    project = places.project.with_sources(replace(site.source, changes))
    notes = (LATER_EPOCHS,) if settings["persistent"] else ()
    if changing is not None:
        notes = (f"not persistent_workers: {changing.file}:{changing.line} may change the dataset, unseen by them",)
    return Edit(project, (site.place,), touched(site.source, site.scope), notes=notes)


def _changing(places: Places, site: Site) -> Line | None:
    """A line that may change the dataset after the loader is made: a call for its effect alone that has to do with it
    or with a part of it, or an assignment or `del` within it. Workers that persist would go on with it as it was."""
    given = _dataset(site)
    made = {at.node for at in places.names.origins(given, site.scope)} if given is not None else set()

    def within(node: cst.BaseExpression, scope: Scope) -> bool:
        while True:
            if isinstance(node, cst.Attribute) and node.attr.value == "dataset":
                return True
            if any(at.node in made for at in places.names.origins(node, scope)):
                return True
            if not isinstance(node, (cst.Attribute, cst.Subscript)):
                return False
            node = node.value

    for source in places.project.sources.values():
        finder = _Effects()
        source.tree.visit(finder)
        for statement, touched_by in finder.found:
            scope = places.names.scope(source, statement)
            if any(within(node, scope) for node in touched_by):
                return source.place(statement)
    return None


class _Effects(cst.CSTVisitor):
    """Statements that change something, and what."""

    def __init__(self) -> None:
        self.found: list[tuple[cst.CSTNode, list[cst.BaseExpression]]] = []

    def visit_Expr(self, node: cst.Expr) -> None:
        if isinstance(node.value, cst.Call) and dotted(node.value.func) != "print":
            of = [node.value.func.value] if isinstance(node.value.func, cst.Attribute) else []
            self.found.append((node, [*of, *(arg.value for arg in node.value.args)]))

    def visit_Assign(self, node: cst.Assign) -> None:
        self._written(node, [target.target for target in node.targets])

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self._written(node, [node.target])

    def visit_Del(self, node: cst.Del) -> None:
        self._written(node, [node.target])

    def _written(self, node: cst.CSTNode, targets: list[cst.BaseExpression]) -> None:
        inner = [one.value for one in targets if isinstance(one, (cst.Attribute, cst.Subscript))]
        if inner:
            self.found.append((node, inner))


def _dataset(site: Site) -> cst.BaseExpression | None:
    """The argument of the loader."""
    return next((arg.value for arg in site.call.args if not arg.star and _name(arg, 0) in {"dataset", "#0"}), None)


def _why_not(places: Places, site: Site) -> str:
    loaders = [loader for loader in places.facts.loaders if loader.training] if places.facts is not None else []
    if any(loader.iterable and not loader.workers for loader in loaders):
        return "the dataset is iterable: several workers would repeat its data unless it shards itself"
    given = _dataset(site)
    for at in places.names.origins(given, site.scope) if given is not None else []:
        kind = places.names.instance_of(at)
        if kind is not None and subclasses(places.names, kind, ITERABLE) and not loaders:
            return "the dataset is iterable: several workers would repeat its data unless it shards itself"
    if not site.kind:
        return "the loader is of a class of your own, whose arguments are not known"
    return ""


def _name(arg: cst.Arg, position: int) -> str:
    return arg.keyword.value if arg.keyword is not None else f"#{position}"


def _may_pin(call: cst.Call) -> bool:
    """Whether a call gives `pin_memory`, or something that may hold it."""
    names = ("pin_memory", f"#{POSITIONS['pin_memory']}")
    return any(arg.star or _name(arg, at) in names for at, arg in enumerate(call.args))


def _changed(site: Site, settings: Settings, cuda: bool) -> cst.Call | CannotWrite:
    """The call with the lever's arguments; those behind a `**` are overridden in place. cuda: beside a GPU, so that not
    to pin is a choice too."""
    wanted = {"num_workers": str(settings["workers"]), "prefetch_factor": str(settings["prefetch"])}
    if settings["pin_memory"] or (cuda and _may_pin(site.call)):
        wanted["pin_memory"] = str(settings["pin_memory"])
    if settings["persistent"]:
        wanted["persistent_workers"] = "True"
    stars = [arg for arg in site.call.args if arg.star]
    if any(arg.star == "*" for arg in stars) or len(stars) > 1:
        return CannotWrite("its arguments come from a `*` list or several `**` dictionaries", (site.place,))
    args = list(site.call.args)
    for at, arg in enumerate(args):
        name = next((n for n, p in POSITIONS.items() if p == at), "") if arg.keyword is None else arg.keyword.value
        if arg.star or name not in wanted:
            continue
        value = _merged(site, name, arg.value, wanted.pop(name))
        args[at] = arg.with_changes(value=value)
    call = site.call.with_changes(args=args)
    if not wanted:
        return call
    return _behind_star(site, call, wanted) if stars else keyword(site.source, call, wanted, site.call)


def _merged(site: Site, name: str, old: cst.BaseExpression, new: str) -> cst.BaseExpression:
    """A new value for an argument that is given: never fewer workers than the source asks for."""
    text = site.source.tree.code_for_node(old)
    value = constant(old)
    if name != "num_workers":
        return old if text == new else expression(site.source, new)
    if isinstance(value, int) and not isinstance(value, bool):
        return old if value >= int(new) else expression(site.source, new)
    if text.replace(" ", "").startswith(f"max({new},"):
        return old
    return expression(site.source, f"max({new}, {text})")


def _behind_star(site: Site, call: cst.Call, wanted: Mapping[str, str]) -> cst.Call | CannotWrite:
    """`**options` becomes `**{**options, "num_workers": 4}`: whatever it holds, the lever's arguments win."""
    args = list(call.args)
    at = next(index for index, arg in enumerate(args) if arg.star)
    text = site.source.tree.code_for_node(args[at].value)
    inner = args[at].value
    own = ", ".join(f'"{name}": {value}' for name, value in wanted.items())
    if isinstance(inner, cst.Dict):
        given = {
            constant(e.key): site.source.tree.code_for_node(e.value)
            for e in inner.elements
            if isinstance(e, cst.DictElement)
        }
        if all(given.get(name) == value for name, value in wanted.items()):
            return call
        return CannotWrite("its arguments come from a dictionary that is written out in the call", (site.place,))
    args[at] = args[at].with_changes(value=expression(site.source, f"{{**{text}, {own}}}"))
    return call.with_changes(args=args)


RULE = Rule("loader-workers", edit, order=30)
