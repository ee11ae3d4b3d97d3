"""What a rule is, and what rules share."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import libcst as cst

from hotlap.levers._base import Lever
from hotlap.records.patch import Line
from hotlap.source.places import CannotTell, Places, Site, lines_of
from hotlap.source.project import Project
from hotlap.source.scopes import Scope, Source, dotted

from ..edits import Changes, after, torch_in

Settings = Mapping[str, Any]


class CannotWrite(CannotTell):
    """What can't be written safely, and the lines to look at. by_hand: it may be written by hand."""

    def __init__(self, why: str, lines: Iterable[Line | Site] = (), by_hand: bool = True) -> None:
        super().__init__(why, lines)
        self.by_hand = by_hand


@dataclass(frozen=True)
class Edit:
    """The project with a lever written into it. where: the lines that were changed, as they were. already: nothing was
    to do. partly, notes: as in `records.patch.Written`."""

    project: Project
    where: tuple[Line, ...] = ()
    already: bool = False
    partly: str = ""
    notes: tuple[str, ...] = ()

    def then(self, other: "Edit") -> "Edit":
        """With what was written after it, of which the user is shown no lines."""
        return replace(self, project=other.project, notes=(*self.notes, *other.notes))


@dataclass(frozen=True)
class Rule:
    """order: lower ones are applied first, and so lie further in. edit: of the places and the lever's
    settings; raises CannotTell, CannotWrite where the source leaves a doubt."""

    edit: Callable[[Places, Settings], Edit]
    order: int = 50


FLAG = re.compile(r"\s*\w+\.(set_\w+\(.*\)|backends\.[\w.]+ = \w+)\s*$")
"""A statement that does nothing but set torch up: what is written behind the imports goes behind these."""
NO_LOOP = "no `.backward()` was found in your files: a framework runs the loop, so there is no line to change"
AT_LAUNCH = "set in the environment, in the start command below; the source stays as it is"
NO_TORCH = "`torch` is not imported in this file, or the name means something else here"


def written(changes: Changes, where: Iterable[Line | Site], partly: str = "", notes: Iterable[str] = ()) -> Edit:
    """What was changed, as an edit."""
    return Edit(changes.made(), lines_of(where), partly=partly, notes=tuple(notes))


def already(places: Places, lines: Iterable[Line | Site]) -> Edit:
    """Nothing to do."""
    return Edit(places.project, lines_of(lines), already=True)


def at_launch(lever: Lever) -> Rule:
    """The rule of a lever that only sets variables: these go with the command, nothing of them into the source. It
    refuses where the source sets one itself, which would win or lose by the order of lines, and where this machine has
    nothing to set them for."""

    def edit(places: Places, settings: Settings) -> Edit:
        variables = lever.environment(dict(settings))
        if not variables:
            raise CannotWrite(f"this machine has no {', '.join(settings.values())}")
        texts = [(s, text) for s in places.project.sources.values() for text in s.every(cst.SimpleString)]
        named = [s.place(text) for s, text in texts if re.split(r"[=:]", str(text.evaluated_value))[0] in variables]
        if named:
            raise CannotWrite("the source already sets this in its environment", named)
        return Edit(places.project, notes=(AT_LAUNCH,))

    return Rule(edit)


def with_torch(scope: Scope, at: Line) -> str:
    """How a function can write `torch`. Raises CannotWrite where it can't."""
    torch = torch_in(scope)
    if torch is None:
        raise CannotWrite(NO_TORCH, [at])
    return torch


def at_the_top(places: Places, text: str, source: Source | None = None, *imports: str) -> Edit:
    """A statement after the imports of a file (that which the command runs); `torch` in it is written as the file has
    it. imports: modules below torch that it needs."""
    source = source or places.project.main
    last = last_import(source)
    if last is None:
        raise CannotWrite(f"torch is not imported at the top of {source.shown}")
    torch = torch_in(source.top)
    bound = source.top.names.get("torch", [])
    where = [source.place(last)]
    if torch is None and any((binding.imported or "").partition(".")[0] != "torch" for binding in bound):
        raise CannotWrite(f"`torch` is not the module torch in {source.shown}", where)
    if torch not in {None, "torch"} and imports:
        raise CannotWrite(f"`torch` is imported under another name in {source.shown}", where)
    texts = [*(f"import {name}" for name in imports), text.replace("torch.", f"{torch or 'torch'}.", 1)]
    if torch is None and not bound and not imports:
        texts.insert(0, "import torch")
    behind = source.tree.body[source.tree.body.index(last) + 1 :]
    flags = takewhile(lambda node: FLAG.match(source.code(node)), behind)
    anchor = [last, *flags][-1]
    changes = Changes(places.project)
    changes.put(source, {anchor: after(source, *texts, blank_line=anchor is last)})
    return written(changes, where)


def last_import(source: Source) -> cst.BaseStatement | None:
    """The last of the unbroken imports at the top of a file that begin with, or follow, the first one of torch."""
    found: cst.BaseStatement | None = None
    for node in source.tree.body:
        names = _imports(node)
        if found is not None and not names:
            break
        if found or any(name.partition(".")[0] == "torch" for name in names):
            found = node
    return found


def _imports(node: cst.CSTNode) -> list[str]:
    """What a statement that does nothing but import imports."""
    found: list[str] = []
    for small in node.body if isinstance(node, cst.SimpleStatementLine) else ():
        if isinstance(small, cst.Import):
            found += [alias.evaluated_name for alias in small.names]
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
