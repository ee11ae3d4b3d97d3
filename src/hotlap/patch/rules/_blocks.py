"""What the rules about repeated blocks share: the lists of a model that hold them, as its classes make them."""

import builtins
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from hotlap.records.patch import Line
from hotlap.source.names import At, argument
from hotlap.source.places import MODULES, Places
from hotlap.source.scopes import Scope, dotted, last_name, nodes

from ._base import CannotWrite
from ._model import trained_calls

LISTS = re.compile(r"torch\.nn\.(?:modules\.container\.)?(ModuleList|Sequential)$")
DICT = re.compile(r"torch\.nn\.(?:modules\.container\.)?ModuleDict$")
LAYER = re.compile(r"torch\.nn\.")
DEEPEST = 4
STATEFUL = re.compile(r"BatchNorm|SyncBN|InstanceNorm|spectral_norm|SpectralNorm|np\.random|numpy\.random|\brandom\.")
"""In a block that must not be computed twice: running statistics, random numbers that torch does not restore."""
NO_BLOCKS = "no list of repeated blocks was found in the model's classes"


@dataclass(frozen=True, eq=False)
class Blocks:
    """A list of blocks. owner: the class that has it; name: its attribute (`self.transformer.h`); statement: the last
    one that fills it; kind: the class of the blocks; sequence: a Sequential."""

    owner: Scope
    name: str
    statement: cst.BaseStatement
    kind: Scope
    sequence: bool

    @property
    def place(self) -> Line:
        """As the user is told."""
        return self.owner.source.place(self.statement)


def block_lists(places: Places) -> list[Blocks]:
    """The lists of repeated blocks in the trained models, of classes of the user's. Raises CannotWrite."""
    sites = trained_calls(places)
    found: dict[cst.CSTNode, Blocks] = {}
    for site in sites:
        kinds = [kind for at in places.origins(site) if (kind := places.names.instance_of(at)) is not None]
        if not kinds:
            raise CannotWrite("the model's class is not in your files", [site])
        for kind in kinds:
            for blocks in _lists_of(places, kind, DEEPEST):
                found.setdefault(blocks.statement, blocks)
    inner = {kind for blocks in found.values() for kind in _classes_in(places, blocks.kind, DEEPEST)}
    outer = [blocks for blocks in found.values() if blocks.owner not in inner and blocks.owner is not blocks.kind]
    if not outer:
        raise CannotWrite(NO_BLOCKS, sites)
    return outer


def _lists_of(places: Places, kind: Scope, depth: int) -> Iterator[Blocks]:
    """The lists of a class, and of the classes of its parts."""
    for name, value in _attributes(kind):
        yield from _list(places, kind, name, value)
        part = _class_of(places, value, kind)
        if part is not None and depth:
            yield from _lists_of(places, part, depth - 1)


def _list(places: Places, owner: Scope, name: str, value: cst.BaseExpression) -> Iterator[Blocks]:
    """The blocks of one attribute: a list, or lists in a ModuleDict."""
    full = places.names.made_by(At(owner.source, value))
    if not isinstance(value, cst.Call):
        return
    if DICT.match(full):
        for key, inner in _items(value):
            yield from _list(places, owner, f"{name}.{key}", inner)
        return
    match, line = LISTS.match(full), owner.source.own_line(value)
    if match is None or line is None:
        return
    made = list(_members(owner, name, value))
    kinds = {_class_of(places, node, owner) for node, _ in made}
    kind = next(iter(kinds), None)
    if len(kinds) == 1 and kind is not None and sum(count for _, count in made) > 1 and _has_parts(places, kind):
        yield Blocks(owner, name, _filled(owner, name, line), kind, match[1] == "Sequential")


def _members(owner: Scope, name: str, value: cst.Call) -> Iterator[tuple[cst.BaseExpression, int]]:
    """What a list is filled with, and how often: 2 stands for several."""
    for arg in value.args:
        node = arg.value
        if isinstance(node, cst.ListComp | cst.GeneratorExp):
            yield node.elt, 2
        elif isinstance(node, cst.List | cst.Tuple):
            yield from ((element.value, 1) for element in node.elements)
        elif arg.star != "**":
            yield node, 1
    for call in _appends(owner, name):
        yield call.args[0].value, 2 if owner.source.around(call, cst.For, cst.While) else 1


def _appends(owner: Scope, name: str) -> list[cst.Call]:
    return [
        call
        for scope, call in owner.source.walk.calls
        if scope.owner is owner and dotted(call.func) == f"{name}.append" and len(call.args) == 1
    ]


def _filled(owner: Scope, name: str, line: cst.BaseStatement) -> cst.BaseStatement:
    """The statement behind which a list is full: beside its own, the last that appends to it, or its loop."""
    block = owner.source.parent(line)
    found = line
    for call in _appends(owner, name):
        beside = (node for node in owner.source.above(call) if owner.source.parent(node) is block)
        found = next((node for node in beside if isinstance(node, cst.BaseStatement)), found)
    return found


def _items(call: cst.Call) -> Iterator[tuple[str, cst.BaseExpression]]:
    """The entries of `ModuleDict(dict(a=...))` and `ModuleDict({"a": ...})`."""
    given = argument(call, 0, "modules")
    if isinstance(given, cst.Call) and dotted(given.func) == "dict":
        yield from ((arg.keyword.value, arg.value) for arg in given.args if arg.keyword is not None)
    elif isinstance(given, cst.Dict):
        for element in given.elements:
            if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString):
                yield str(element.key.evaluated_value), element.value


def _attributes(kind: Scope) -> Iterator[tuple[str, cst.BaseExpression]]:
    for name, bindings in kind.names.items():
        if name.startswith("self."):
            yield from ((name, b.value) for b in bindings if b.value is not None and b.whole and b.index is None)


def _class_of(places: Places, node: cst.BaseExpression, owner: Scope) -> Scope | None:
    """The class of the user's that an expression in a class's methods makes a module of."""
    kind = places.names.instance_of(At(owner.source, node))
    return kind if kind is not None and places.names.derives(kind, MODULES) else None


def _has_parts(places: Places, kind: Scope) -> bool:
    """Whether a class has a forward of its own and is made of modules."""
    parts = [value for _, value in _attributes(kind)] if "forward" in kind.functions else []
    return any(
        _class_of(places, value, kind) or LAYER.match(places.names.made_by(At(kind.source, value))) for value in parts
    )


def _classes_in(places: Places, kind: Scope, depth: int) -> set[Scope]:
    """The classes that a class's modules are of, and theirs, with itself."""
    found = {kind}
    for call in _made(kind):
        part = _class_of(places, call, kind)
        if part is not None and part not in found and depth:
            found |= _classes_in(places, part, depth - 1)
    return found


# whether a block may be computed twice


def unsound(places: Places, kind: Scope) -> tuple[str, Line] | None:
    """Why a forward of this class may not be computed a second time in the backward, as far as the source tells."""
    for part in _classes_in(places, kind, DEEPEST):
        source = part.source
        here = source.place(part.node)
        text = STATEFUL.search(source.code(part.node))
        if text is not None:
            return f"`{text[0]}` in {part.name}: computing it twice would not be the same", here
        node = _changes_itself(part)
        if node is not None:
            return f"{part.name} changes its own state outside of its __init__", source.place(node)
        node = next((call for call in _made(part) if not _known(places, part, call)), None)
        if node is not None:
            return f"the parts of {part.name} are unknown", source.place(node)
    return None


def _made(kind: Scope) -> list[cst.Call]:
    return [call for _, value in _attributes(kind) for call in nodes(value, cst.Call)]


def _known(places: Places, kind: Scope, call: cst.Call) -> bool:
    """Whether a call in the making of a module makes one of torch's, one of the user's, or none at all."""
    if places.names.made_by(At(kind.source, call)).partition(".")[0] in {"torch", *sys.stdlib_module_names}:
        return True
    name = dotted(call.func) or ""
    if hasattr(builtins, name) and places.names.variable(name, kind.source.scope(call)) is None:
        return True
    return _class_of(places, call, kind) is not None


def _changes_itself(kind: Scope) -> cst.CSTNode | None:
    """A statement outside of `__init__` that changes an attribute."""
    init = kind.functions.get("__init__")
    for name, bindings in kind.names.items():
        for binding in bindings:
            inside = init is not None and kind.source.inside(init.node, binding.statement)
            if name.startswith("self.") and not inside:
                return binding.statement
    for scope, call in kind.source.walk.calls:
        last = last_name(call)
        mine = scope.owner is kind and scope.name != "__init__" and (dotted(call.func) or "").startswith("self.")
        if mine and ((last.endswith("_") and not last.endswith("__")) or last in {"append", "update", "extend", "pop"}):
            return call
    return None
