"""`torch.inference_mode()` in place of `torch.no_grad()`, where no tensor made there is changed outside.

A tensor made in inference mode may not be changed in place outside of it, nor be saved for a backward. The lever copies
what a forward returns; the source does not, so whatever leaves such a block must be numbers, or be read without change.
"""

import builtins
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import libcst as cst

from hotlap.records.patch import Line
from hotlap.source.places import Places
from hotlap.source.scopes import Scope, dotted
from hotlap.source.tensors import reads
from hotlap.source.tree import Source

from ..edits import Changes, Replacement
from ._base import CannotWrite, Edit, Rule, Settings, already, written

NUMBERS = frozenset(["item", "tolist", "size", "dim", "numel", "shape", "dtype", "device", "ndim"])
"""Of a tensor: what is no tensor."""
READ = NUMBERS | {"mean", "sum", "std", "argmax", "argmin"}
"""Of a tensor: what is a number, or a tensor of its own."""
PUTS = frozenset(["append", "appendleft", "extend", "insert", "put", "setdefault", "setattr", "exec", "eval"])
"""Calls that keep what they are given."""
LEAVES = (
    "a tensor that is made without gradients leaves the block here; in inference mode it could not be changed later"
)


@dataclass(frozen=True, eq=False)
class Region:
    """Code that runs without gradients: a `with` or a decorated function. manager: what `no_grad` stands in."""

    source: Source
    scope: Scope
    node: cst.With | cst.FunctionDef
    manager: cst.BaseExpression

    @property
    def place(self) -> Line:
        """Its first line, as the user is told."""
        return self.source.place(self.manager)


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses commands that train, and where a tensor leaves such code other than to be read. All regions that run a
    model, or none: what it keeps is made in one and used in the next."""
    if not places.inference:
        raise CannotWrite("the command trains", places.backwards[:3])
    running = _running(places)
    regions = [region for region in _regions(places, "no_grad") if _runs_model(places, region, running)]
    own = [region for region in _regions(places, "inference_mode") if _runs_model(places, region, running)]
    flags = places.calls_named("set_grad_enabled")
    if flags:
        raise CannotWrite("gradients are switched off for the whole process here, not for a block", flags)
    outside = [site for site in places.root_calls if not _covered(places, site.scope, site.call, [*regions, *own])]
    if outside:
        raise CannotWrite("the model is called here outside of any block without gradients that was found", outside)
    if not regions:
        lines = tuple(region.place for region in own)
        if own:
            return already(places, lines)
        raise CannotWrite("no `torch.no_grad()` was found in your files")
    escapes = [line for region in regions for line in _escapes(places, region, regions)]
    if escapes:
        raise CannotWrite(LEAVES, tuple(escapes))
    return _write(places, regions)


def _regions(places: Places, name: str) -> Iterator[Region]:
    for source in places.project.sources.values():
        for node in source.walk.uses.get(name, ()):
            manager = node
            while isinstance(above := source.parent(manager), cst.Attribute | cst.Call):
                manager = above
            holder = source.parent(manager)
            around = source.parent(holder) if holder is not None else None
            func = manager.func if isinstance(manager, cst.Call) else manager
            full = places.names.resolve(func, source.scope(manager))
            if not full.startswith("torch.") or not isinstance(holder, cst.WithItem | cst.Decorator):
                continue
            if isinstance(around, cst.With):
                yield Region(source, source.scope(around), around, manager)
            elif isinstance(around, cst.FunctionDef):
                yield Region(source, source.walk.scopes[around], around, manager)


def _running(places: Places) -> set[Scope]:
    """The functions that call a model, and those that call these."""
    found = {site.scope for site in places.root_calls}
    waiting = list(found)
    while waiting:
        for caller, _, _ in places.names.callers(waiting.pop()):
            if caller not in found:
                found.add(caller)
                waiting.append(caller)
    return found


def _runs_model(places: Places, region: Region, running: set[Scope]) -> bool:
    """Whether a model is called in a region, or in a function that is called there."""
    if isinstance(region.node, cst.FunctionDef):
        return region.scope in running
    if any(_within(region, site.source, site.call) for site in places.root_calls):
        return True
    return any(
        _within(region, caller.source, call) for scope in running for caller, call, _ in places.names.callers(scope)
    )


def _covered(places: Places, scope: Scope, node: cst.CSTNode, regions: list[Region], depth: int = 4) -> bool:
    """Whether a node is in a region, or in a function that is called from regions only."""
    if any(_within(region, scope.source, node) for region in regions):
        return True
    callers = places.names.callers(scope)
    return bool(callers and depth) and all(
        _covered(places, caller, call, regions, depth - 1) for caller, call, _ in callers
    )


def _within(region: Region, source: Source, node: cst.CSTNode) -> bool:
    return region.source is source and source.inside(region.node, node)


def _write(places: Places, regions: list[Region]) -> Edit:
    changes = Changes(places.project)
    for region in regions:
        torch = _spelled(region.manager)
        made = cst.parse_expression(f"{torch}inference_mode()")
        changes.put(region.scope, region.manager, lambda _, made=made: made)  # type: ignore[misc]
        for node, change in _imported(region.source).items() if not torch else ():
            changes.put(region.source.top, node, change)
    return written(changes, [region.place for region in regions])


def _spelled(manager: cst.BaseExpression) -> str:
    """What stands before `no_grad`: `torch.`."""
    func = manager.func if isinstance(manager, cst.Call) else manager
    return f"{dotted(func.value)}." if isinstance(func, cst.Attribute) else ""


def _imported(source: Source) -> dict[cst.CSTNode, Replacement]:
    """`from torch import no_grad` imports the other name too."""
    found: dict[cst.CSTNode, Replacement] = {}
    for node in source.walk.uses.get("no_grad", ()):
        alias = source.parent(node)
        if isinstance(alias, cst.ImportAlias):
            found[alias] = lambda old: old.with_changes(name=cst.Name("inference_mode"))
    return found


# what leaves a region


def _escapes(places: Places, region: Region, regions: list[Region]) -> Iterator[Line]:
    """Lines where a tensor that is made in a region may be had outside of all regions."""
    finder = _Statements(region.source)
    region.node.body.visit(finder)
    place = region.source.place
    yield from (place(node) for node in finder.yields)
    if not _only_inside(places, region, regions):
        yield from (place(node) for node in finder.returns if node.value is not None and not _is_number(node.value))
    yield from (place(node) for node, value in finder.kept if not _is_number(value))
    yield from (place(call) for call in finder.told if not _only_tells(places, region.source, call))
    yield from (place(call) for call in finder.calls if _keeps(places, region.source, call))
    yield from (place(node) for name, node in finder.names.items() if name not in region.scope.names)  # global
    if isinstance(region.node, cst.With):
        names = finder.names.keys() & region.scope.names.keys()
        for name in sorted(names):
            for node in reads(region.scope, name):
                inner = any(_within(other, region.source, node) for other in regions)
                if not inner and not _only_read(region.source, node, names):
                    yield place(node)


def _only_inside(places: Places, region: Region, regions: list[Region]) -> bool:
    """Whether the function that a region is, or is in, is called from regions only."""
    callers = places.names.callers(region.scope)
    return bool(callers) and all(
        any(_within(other, scope.source, call) for other in regions) for scope, call, _ in callers
    )


def _is_number(node: cst.BaseExpression) -> bool:
    """Whether an expression is surely no tensor: literals, `x.item()`, and what is made of such."""
    if isinstance(node, cst.Tuple | cst.List):
        return all(_is_number(element.value) for element in node.elements)
    if isinstance(node, cst.BinaryOperation):
        return _is_number(node.left) and _is_number(node.right)
    if isinstance(node, cst.Call):
        last = node.func.attr.value if isinstance(node.func, cst.Attribute) else dotted(node.func)
        return last in NUMBERS | {"len", "int", "float", "str", "bool", "perf_counter", "time"}
    return isinstance(node, cst.BaseNumber | cst.BaseString) or dotted(node) in {"None", "True", "False"}


def _only_tells(places: Places, source: Source, call: cst.Call) -> bool:
    """Whether a call that stands for itself keeps nothing: a builtin, one of the user's functions, numbers only."""
    name = dotted(call.func) or ""
    if (hasattr(builtins, name) and name not in PUTS) or all(_is_number(arg.value) for arg in call.args):
        return True
    called = places.names.definition(call.func, source.scope(call))
    if called is not None and isinstance(called.node, cst.FunctionDef):
        return True  # what it returns is dropped; what it keeps is looked at with all calls
    origins = places.names.origins(call.func, source.scope(call)) if name else []
    return bool(origins) and all(places.module_class(at) is not None for at in origins)


def _keeps(places: Places, source: Source, call: cst.Call, depth: int = 4) -> bool:
    """Whether a call, of whatever depth in a statement, puts a tensor where it stays: into a list, or by one of the
    user's functions."""
    last = call.func.attr.value if isinstance(call.func, cst.Attribute) else dotted(call.func)
    if all(_is_number(arg.value) for arg in call.args):
        return False
    if last in PUTS:
        return True
    called = places.names.definition(call.func, source.scope(call))
    if called is None or not isinstance(called.node, cst.FunctionDef):
        return False
    finder = _Statements(called.source)
    called.node.body.visit(finder)
    own = called.names.keys()
    return (
        depth == 0
        or bool(finder.yields)
        or not finder.names.keys() <= own
        or any(not _is_number(value) for _, value in finder.kept)
        or any(not _only_tells(places, called.source, inner) for inner in finder.told)
        or any(_keeps(places, called.source, inner, depth - 1) for inner in finder.calls)
    )


def _only_read(source: Source, node: cst.CSTNode, names: AbstractSet[str]) -> bool:
    """Whether a read of a tensor neither changes it nor hands it on."""
    parent = source.parent(node)
    if isinstance(parent, cst.Attribute):
        return parent.attr.value in READ
    if isinstance(parent, cst.FormattedStringExpression):
        return True
    if isinstance(parent, cst.BinaryOperation):
        other = parent.right if parent.left is node else parent.left
        return _is_number(other) or dotted(other) in names
    call = source.parent(parent) if isinstance(parent, cst.Arg) and not parent.star else None
    return isinstance(call, cst.Call) and dotted(call.func) in {"print", "len", "int", "float", "str", "bool", "round"}


class _Statements(cst.CSTVisitor):
    """What stands in a region, without functions that are defined there. names: what is bound, and where; kept: what is
    put into attributes and elements; told: calls that stand for themselves; calls: all."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.names: dict[str, cst.CSTNode] = {}
        self.returns: list[cst.Return] = []
        self.yields: list[cst.CSTNode] = []
        self.kept: list[tuple[cst.CSTNode, cst.BaseExpression]] = []
        self.told: list[cst.Call] = []
        self.calls: list[cst.Call] = []

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        return False

    def visit_Return(self, node: cst.Return) -> None:
        self.returns.append(node)

    def visit_Yield(self, node: cst.Yield) -> None:
        self.yields.append(node)

    def visit_Call(self, node: cst.Call) -> None:
        self.calls.append(node)

    def visit_Expr(self, node: cst.Expr) -> None:
        if isinstance(node.value, cst.Call):
            self.told.append(node.value)

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            self._bind(target.target, node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            self._bind(node.target, node.value)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self._bind(node.target, node.value)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self._bind(node.target, node.value)

    def visit_For(self, node: cst.For) -> None:
        self._bind(node.target, node.iter)

    def _bind(self, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        if isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                self._bind(element.value, value)
        elif isinstance(target, cst.Name):
            if not _is_number(value):
                self.names[target.value] = target
        else:
            self.kept.append((target, value))


RULE = Rule("inference-mode", edit, order=45)
