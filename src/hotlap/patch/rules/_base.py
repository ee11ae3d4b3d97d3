"""What a rule is, and what rules share."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import libcst as cst

from hotlap.records.patch import Line
from hotlap.source.names import Names
from hotlap.source.places import CannotWrite, Places, Site
from hotlap.source.project import Project
from hotlap.source.scopes import Scope, dotted
from hotlap.source.tree import Source

from ..edits import Replacement, after, before, replace, spelled

Settings = Mapping[str, Any]


class Touched(NamedTuple):
    """A function that a rule changed ("" for the top of the file)."""

    path: Path
    function: str


@dataclass(frozen=True)
class Edit:
    """The project with a lever written into it. where: the lines that were changed, as they were. already: nothing was
    to do. partly, notes: as in `records.patch.Written`."""

    project: Project
    where: tuple[Line, ...] = ()
    touched: frozenset[Touched] = frozenset()
    already: bool = False
    partly: str = ""
    notes: tuple[str, ...] = ()


Outcome = Edit | CannotWrite


@dataclass(frozen=True)
class Rule:
    """lever: its name. order: lower ones are applied first, and so lie further in. edit: of the places, the lever's
    settings, and the whole recipe by lever name."""

    lever: str
    edit: Callable[[Places, Settings, Mapping[str, Settings]], Outcome]
    order: int = 50


FLAG = re.compile(r"\s*\w+\.(set_\w+\(.*\)|backends\.[\w.]+ = \w+)\s*$")
NO_LOOP = "no `.backward()` was found in your files: a framework runs the loop, so nothing of it can be written here"
NO_TORCH = "`torch` itself is not imported in this file, or the name means something else here"


def touched(source: Source, *scopes: Scope) -> frozenset[Touched]:
    """Functions as touched ones."""
    return frozenset(Touched(source.path, scope.qualname) for scope in scopes)


def touched_by(sites: Iterable[Site]) -> frozenset[Touched]:
    """The functions that hold some calls."""
    return frozenset(Touched(site.source.path, site.scope.qualname) for site in sites)


def already(places: Places, lines: Iterable[Line]) -> Edit:
    """Nothing to do."""
    return Edit(places.project, tuple(lines), already=True)


def lines_of(sites: Iterable[Site]) -> tuple[Line, ...]:
    """The lines of some calls."""
    return tuple(dict.fromkeys(site.place for site in sites))


def with_torch(scope: Scope) -> str | None:
    """How a function can write `torch`; None where it can't."""
    return spelled(scope, "torch")


def calls_named(places: Places, *last: str) -> list[tuple[Source, cst.Call]]:
    """Every call whose function's name ends in one of these."""
    found = []
    for scope, call in places.names.calls:
        name = call.func.attr.value if isinstance(call.func, cst.Attribute) else dotted(call.func)
        if name in last:
            found.append((scope.source, call))
    return found


def managers(site: Site, name: str) -> list[cst.Call]:
    """Calls of this name in the `with` statements that a call stands in, inner ones first."""
    found = []
    above = site.source.around(site.call, cst.With)
    while above is not None:
        calls = [item.item for item in above.items if isinstance(item.item, cst.Call)]
        found += [call for call in calls if (dotted(call.func) or "").endswith(name)]
        above = site.source.around(above, cst.With)
    return found


def assigned(places: Places, *last: str) -> list[tuple[Source, cst.Assign]]:
    """Every assignment to an attribute whose dotted name ends so."""
    return [
        (source, node)
        for source in places.project.sources.values()
        for node in source.walk.assigns
        if any((dotted(target.target) or "").endswith(last) for target in node.targets)
    ]


def at_the_top(places: Places, text: str, source: Source | None = None, *imports: str) -> Outcome:
    """Statements, one a line, after the imports of a file (that which the command runs); `torch` in them is written as
    the file has it. imports: modules below torch that they need."""
    source = source or places.project.main
    scope = places.names.of(source).scopes[source.tree]
    last = last_import(source)
    if last is None:
        return CannotWrite(f"torch is not imported at the top of {source.shown}")
    torch = with_torch(scope)
    bound = scope.names.get("torch", [])
    if torch is None and any((binding.imported or "").partition(".")[0] != "torch" for binding in bound):
        return CannotWrite(f"`torch` is not the module torch in {source.shown}", (source.place(last),))
    texts = [line.replace("torch.", f"{torch or 'torch'}.", 1) for line in text.splitlines()]
    if torch not in {None, "torch"} and imports:
        return CannotWrite(f"`torch` is imported under another name in {source.shown}", (source.place(last),))
    texts[:0] = [f"import {name}" for name in imports]
    if torch is None and not bound and not imports:
        texts.insert(0, "import torch")
    anchor = _after_flags(source, last)
    changes: dict[cst.CSTNode, Replacement] = {anchor: after(source, *texts, apart=anchor is last)}
    return Edit(places.project.with_sources(replace(source, changes)), (source.place(last),), touched(source, scope))


def importing(source: Source, scope: Scope, name: str, names: Names) -> dict[cst.CSTNode, Replacement] | None:
    """The change that makes a function able to write the dotted name of a module: nothing where it is imported, an
    import at the top of the file where it is not; None where its first word means something else."""
    root = name.partition(".")[0]
    known = names.resolve(cst.Name(root), scope) == root
    if not known and root in source.walk.uses:
        return None
    tops = [node for node in source.tree.body if isinstance(node, cst.BaseStatement)]
    if known and any(name in _plain_imports(node) for node in tops):
        return {}
    beside = [node for node in tops if any(text.partition(".")[0] == root for text in _plain_imports(node))]
    if known and beside:
        return {beside[-1]: after(source, f"import {name}")}
    return {_first(source): before(source, f"import {name}")}


def _plain_imports(node: cst.BaseStatement) -> list[str]:
    """The modules that `import a, b.c` names, without those that it gives other names."""
    if not isinstance(node, cst.SimpleStatementLine):
        return []
    statements = [small for small in node.body if isinstance(small, cst.Import)]
    return [dotted(alias.name) or "" for small in statements for alias in small.names if alias.asname is None]


def _first(source: Source) -> cst.BaseStatement:
    """The first statement that an import may stand before: behind the docstring and imports from `__future__`."""
    for node in source.tree.body:
        assert isinstance(node, cst.BaseStatement)
        if not _is_docstring(node) and "__future__" not in _imports(node):
            return node
    raise AssertionError("a file that does something has such a statement")


def _is_docstring(node: cst.BaseStatement) -> bool:
    small = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
    return isinstance(small, cst.Expr) and isinstance(small.value, cst.BaseString)


def last_import(source: Source) -> cst.BaseStatement | None:
    """The last of the unbroken imports at the top of a file that begin with, or follow, the first one of torch."""
    found: cst.BaseStatement | None = None
    for node in source.tree.body:
        if not isinstance(node, cst.BaseStatement):
            continue
        names = _imports(node)
        if found is None and any(name.partition(".")[0] == "torch" for name in names):
            found = node
        elif found is not None:
            if not names:
                return found
            found = node
    return found


def _after_flags(source: Source, last: cst.BaseStatement) -> cst.BaseStatement:
    """The last of the statements behind the imports that do nothing but set torch up."""
    body = list(source.tree.body)
    at = body.index(last)  # type: ignore[arg-type]
    while at + 1 < len(body) and FLAG.match(source.tree.code_for_node(body[at + 1])):
        at += 1
    found = body[at]
    assert isinstance(found, cst.BaseStatement)
    return found


def _imports(node: cst.BaseStatement) -> list[str]:
    """What a statement that does nothing but import imports."""
    if not isinstance(node, cst.SimpleStatementLine):
        return []
    found: list[str] = []
    for small in node.body:
        if isinstance(small, cst.Import):
            found += [dotted(alias.name) or "" for alias in small.names]
        elif isinstance(small, cst.ImportFrom):
            found.append(dotted(small.module) or ".")
        else:
            return []
    return found


def constant(node: cst.BaseExpression) -> bool | int | str | None:
    """The value of a literal; None for everything else (and for None)."""
    if isinstance(node, cst.Name):
        return {"True": True, "False": False}.get(node.value)
    if isinstance(node, cst.Integer):
        return int(node.evaluated_value)
    if isinstance(node, cst.SimpleString):
        return str(node.evaluated_value)
    return None


__all__ = (
    "NO_LOOP", "NO_TORCH", "CannotWrite", "Edit", "Outcome", "Rule", "Settings", "Touched", "already", "assigned",
    "at_the_top", "calls_named", "constant", "importing", "last_import", "lines_of", "managers", "touched",
    "touched_by", "with_torch",
)  # fmt: skip
