"""The scopes of a file: what is bound in each, every call, and the node around every node. One walk finds them all."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, TypeGuard, TypeVar

import libcst as cst

if TYPE_CHECKING:
    from .tree import Source

    class MethodCall(cst.Call):
        """A call of which the type checker knows that an attribute is called."""

        func: cst.Attribute


N = TypeVar("N", bound=cst.CSTNode)
Scoped = cst.Module | cst.FunctionDef | cst.ClassDef | cst.Lambda
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
