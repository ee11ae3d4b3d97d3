"""A file of the user's as a syntax tree, and its scopes: what is bound in each, every call, and the node around every
node. One walk finds them all."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeGuard, TypeVar

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from hotlap.records.patch import Line

if TYPE_CHECKING:

    class MethodCall(cst.Call):
        """A call of which the type checker knows that an attribute is called."""

        func: cst.Attribute


N = TypeVar("N", bound=cst.CSTNode)
Scoped = cst.Module | cst.FunctionDef | cst.ClassDef | cst.Lambda
LONGEST_LINE: Final = 200
"""Of the text that is shown of a line."""
BLANK = (cst.BaseParenthesizableWhitespace, cst.TrailingWhitespace, cst.EmptyLine)


def absolute(name: str, level: int, package: str) -> str | None:
    """The dotted name behind a relative import; None where it leads out of the package."""
    if not level:
        return name
    parts = package.split(".") if package else []
    if level - 1 > len(parts):
        return None
    return ".".join([*parts[: len(parts) - level + 1], *([name] if name else [])])


@dataclass(frozen=True, eq=False)
class Binding:
    """A way in which a name gets a value. index: its place where a tuple is unpacked; None with `whole` False where
    the value is only an element of the expression (the target of a `for`)."""

    statement: cst.CSTNode
    value: cst.BaseExpression | None
    index: int | None = None
    whole: bool = True
    imported: str | None = None
    parameter: int | None = None

    @property
    def assigned(self) -> cst.BaseExpression | None:
        """What an assignment, or a default, gives, also of a tuple that is written out; None of anything else."""
        return element(self.value, self.index) if self.value is not None and self.whole else None


@dataclass(eq=False)
class Scope:
    """A function, class or module: what is bound in it."""

    source: "Source"
    node: Scoped
    parent: "Scope | None"
    names: dict[str, list[Binding]] = field(default_factory=dict)
    returns: list[cst.BaseExpression] = field(default_factory=list)
    elsewhere: set[str] = field(default_factory=set)
    functions: dict[str, "Scope"] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its own name; "" for a module or lambda."""
        return self.node.name.value if isinstance(self.node, cst.FunctionDef | cst.ClassDef) else ""

    @property
    def qualname(self) -> str:
        """As Python's `__qualname__`, without `<locals>`."""
        above = self.parent.qualname if self.parent is not None else ""
        return f"{above}.{self.name}".strip(".") if self.name else above

    @property
    def is_class(self) -> bool:
        """Whether it is a class."""
        return isinstance(self.node, cst.ClassDef)

    @property
    def is_method(self) -> bool:
        """Whether it stands directly in a class."""
        return self.parent is not None and self.parent.is_class

    @property
    def owner(self) -> "Scope | None":
        """The class whose method this is, or is nested in."""
        found = self.parent
        while found is not None and not found.is_class:
            found = found.parent
        return found

    def visible(self) -> Iterator["Scope"]:
        """The scopes whose names are seen from it, inner ones first."""
        found: Scope | None = self
        while found is not None:
            if found is self or not found.is_class:
                yield found
            found = found.parent

    def parameters(self) -> list[str]:
        """Names of positional parameters, in order."""
        if not isinstance(self.node, cst.FunctionDef | cst.Lambda):
            return []
        found = self.node.params
        return [p.name.value for p in (*found.posonly_params, *found.params)]


class Var(NamedTuple):
    """A variable: a dotted name in the scope that owns it."""

    scope: Scope
    name: str

    @property
    def bindings(self) -> list[Binding]:
        """How it gets its values."""
        return self.scope.names[self.name]


def dotted(node: cst.CSTNode | None) -> str | None:
    """`a.b.c` as text; None for any other expression."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr.value}" if base else None
    return None


def last_name(node: cst.CSTNode) -> str:
    """The last part of a name, also of an attribute of any other expression; of a call, that of what is called."""
    func = node.func if isinstance(node, cst.Call) else node
    return func.attr.value if isinstance(func, cst.Attribute) else dotted(func) or ""


def is_method_call(node: cst.CSTNode | None, *names: str) -> TypeGuard["MethodCall"]:
    """Whether a node is a call of an attribute: of one of these names, where some are given."""
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and (not names or node.func.attr.value in names)
    )


def element(value: cst.BaseExpression, index: int | None) -> cst.BaseExpression | None:
    """The element of a tuple that is written out; the value itself without an index."""
    if index is None:
        return value
    found = value.elements[index:] if isinstance(value, cst.Tuple | cst.List) else ()
    return found[0].value if found and isinstance(found[0], cst.Element) else None


def nodes(node: cst.CSTNode, *kinds: type[N]) -> Iterator[N]:
    """A node and every node in it, as far as they are of these kinds."""
    if isinstance(node, kinds):
        yield node
    for child in node.children:
        if not isinstance(child, BLANK):
            yield from nodes(child, *kinds)


class Walk(cst.CSTVisitor):
    """One walk over a file: its scopes, what is bound in each, every call, and the node around every node.

    uses: every name, and attribute of `self`, by its text.
    """

    def __init__(self, source: "Source") -> None:
        self.source = source
        self.scopes: dict[cst.CSTNode, Scope] = {}
        self.calls: list[tuple[Scope, cst.Call]] = []
        self.uses: dict[str, list[cst.BaseExpression]] = {}
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self._above: list[cst.CSTNode] = []
        self._stack: list[Scope] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Note a node. Returns whether to look into it."""
        if isinstance(node, BLANK):
            return False
        if self._above:
            self.parents[node] = self._above[-1]
        self._above.append(node)
        if isinstance(node, Scoped):
            parent = self._stack[-1] if self._stack else None
            self.scopes[node] = scope = Scope(self.source, node, parent)
            if parent is not None and isinstance(node, cst.FunctionDef | cst.ClassDef):
                self._bind(node.name, Binding(node, None))
                parent.functions[node.name.value] = scope
            self._stack.append(scope)
        self._look(node)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        """A node has been looked into."""
        if isinstance(original_node, BLANK):
            return
        self._above.pop()
        if isinstance(original_node, Scoped):
            self._stack.pop()
        if isinstance(original_node, cst.Module):
            for scope in self.scopes.values():
                _hand_over(scope)

    def _look(self, node: cst.CSTNode) -> None:  # noqa: PLR0912 - a case for each form of statement
        """Keep what a node binds or uses."""
        scope = self._stack[-1]
        match node:
            case cst.Name():
                self.uses.setdefault(node.value, []).append(node)
            case cst.Attribute(value=cst.Name("self")):
                self.uses.setdefault(f"self.{node.attr.value}", []).append(node)
            case cst.Call():
                self.calls.append((scope, node))
            case cst.Return(value=cst.BaseExpression() as value):
                scope.returns.append(value)
            case cst.Global() | cst.Nonlocal():
                scope.elsewhere |= {item.name.value for item in node.names}
            case cst.Parameters():
                self._parameters(node, scope.node)
            case cst.Import():
                for alias in node.names:
                    name = alias.evaluated_name if alias.asname else alias.evaluated_name.partition(".")[0]
                    self._bind(
                        alias.asname.name if alias.asname else cst.Name(name), Binding(node, None, imported=name)
                    )
            case cst.ImportFrom(names=[*aliases]):
                base = absolute(dotted(node.module) or "", len(node.relative), self.source.package)
                for alias in aliases if base is not None else ():
                    full = f"{base}.{dotted(alias.name)}".lstrip(".")
                    self._bind(alias.asname.name if alias.asname else alias.name, Binding(node, None, imported=full))
            case cst.Assign():
                for one in node.targets:
                    self._bind(one.target, Binding(node, node.value))
            case cst.AnnAssign(value=cst.BaseExpression()) | cst.NamedExpr():
                self._bind(node.target, Binding(node, node.value))
            case cst.AugAssign():
                self._bind(node.target, Binding(node, None, whole=False))
            case cst.For() | cst.CompFor():
                self._bind(node.target, Binding(node, node.iter, whole=False))
            case cst.WithItem(asname=cst.AsName(name)):
                self._bind(name, Binding(node, node.item, whole=False))
            case cst.ExceptHandler(name=cst.AsName(name)):
                self._bind(name, Binding(node, None, whole=False))

    def _parameters(self, parameters: cst.Parameters, node: cst.CSTNode) -> None:
        for at, parameter in enumerate((*parameters.posonly_params, *parameters.params)):
            self._bind(parameter.name, Binding(node, parameter.default, parameter=at))
        for parameter in parameters.kwonly_params:
            self._bind(parameter.name, Binding(node, parameter.default, parameter=-1))
        for star in (parameters.star_arg, parameters.star_kwarg):
            if isinstance(star, cst.Param):
                self._bind(star.name, Binding(node, None, whole=False))

    def _bind(self, target: cst.CSTNode, binding: Binding) -> None:
        """Bind a target, whatever its form."""
        if isinstance(target, cst.Tuple | cst.List):
            for index, element in enumerate(target.elements):
                whole = binding.whole and not isinstance(element, cst.StarredElement)
                self._bind(element.value, replace(binding, index=index if whole else None, whole=whole))
            return
        name, scope = dotted(target), self._stack[-1]
        if name is None:
            return
        if name.startswith("self.") and name.count(".") == 1 and scope.owner is not None:
            scope = scope.owner
        elif "." in name:
            return  # `args.x = ...` says nothing about a name
        scope.names.setdefault(name, []).append(binding)


def _hand_over(scope: Scope) -> None:
    """Names that a function declares `global` or `nonlocal` are bound in the scope above that has them."""
    for name in scope.elsewhere & scope.names.keys():
        above = scope.parent
        while above is not None and above.parent is not None and name not in above.names:
            above = above.parent
        if above is not None:
            above.names.setdefault(name, []).extend(scope.names.pop(name))


@dataclass(frozen=True, eq=False)
class Source:
    """A file and its syntax tree. path: absolute; shown: as the user would write it, relative to the command's folder;
    module: its dotted name for imports ("" where it has none)."""

    path: Path
    shown: str
    module: str
    data: bytes
    tree: cst.Module

    @cached_property
    def positions(self) -> Mapping[cst.CSTNode, CodeRange]:
        """Where each node begins and ends: lines from 1, columns from 0."""
        return dict(MetadataWrapper(self.tree, unsafe_skip_copy=True).resolve(PositionProvider))

    @cached_property
    def walk(self) -> Walk:
        """Its scopes, calls and parents."""
        walk = Walk(self)
        self.tree.visit(walk)
        return walk

    @property
    def top(self) -> Scope:
        """The scope of the module."""
        return self.walk.scopes[self.tree]

    @property
    def package(self) -> str:
        """The dotted name that its relative imports start from."""
        return self.module if self.path.name == "__init__.py" else self.module.rpartition(".")[0]

    @cached_property
    def lines(self) -> list[str]:
        """The text by line."""
        return self.data.decode(self.tree.encoding, "replace").split("\n")

    def code(self, node: cst.CSTNode) -> str:
        """The text of a node."""
        return self.tree.code_for_node(node)

    def line(self, node: cst.CSTNode) -> int:
        """The line that a node begins in, from 1."""
        return self.positions[node].start.line

    def end(self, node: cst.CSTNode) -> int:
        """The line that a node ends in."""
        return self.positions[node].end.line

    def place(self, node: cst.CSTNode) -> Line:
        """Where a node stands, as the user is told."""
        return self.place_of(self.line(node))

    def place_of(self, number: int) -> Line:
        """A line (from 1) with its text, as the user is told."""
        text = self.lines[number - 1].strip() if 0 < number <= len(self.lines) else ""
        return Line(file=self.shown, line=number, text=text[:LONGEST_LINE])

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node around a node."""
        return self.walk.parents.get(node)

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes around a node, innermost first."""
        found = self.parent(node)
        while found is not None:
            yield found
            found = self.parent(found)

    def around(self, node: cst.CSTNode, *kinds: type[N]) -> N | None:
        """The innermost node of these kinds around a node."""
        return next((found for found in self.above(node) if isinstance(found, kinds)), None)

    def inside(self, outer: cst.CSTNode, inner: cst.CSTNode) -> bool:
        """Whether a node is another one, or stands in it."""
        return outer is inner or any(found is outer for found in self.above(inner))

    def scope(self, node: cst.CSTNode) -> Scope:
        """The function, class, lambda or module that a node stands in."""
        scopes = self.walk.scopes
        return next((scopes[found] for found in self.above(node) if found in scopes), self.top)

    def every(self, *kinds: type[N]) -> Iterator[N]:
        """Every node of these kinds, as they stand in the file."""
        return (node for node in self.walk.parents if isinstance(node, kinds))

    def own_line(self, node: cst.CSTNode) -> cst.SimpleStatementLine | None:
        """The statement of a node, where it has a line of its own in an indented block or at the top of the file."""
        line = self.around(node, cst.SimpleStatementLine)
        if line is None or len(line.body) != 1:
            return None
        return line if isinstance(self.parent(line), cst.IndentedBlock | cst.Module) else None

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes."""
        return hashlib.sha256(self.data).hexdigest()
