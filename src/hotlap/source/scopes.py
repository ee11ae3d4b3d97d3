"""The scopes of a file: what is bound in each, every call, and the node around every node. One walk finds them all."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

if TYPE_CHECKING:
    from .tree import Source

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
    def owner(self) -> "Scope | None":
        """The class whose method this is, or is nested in."""
        found = self.parent
        while found is not None and not isinstance(found.node, cst.ClassDef):
            found = found.parent
        return found

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


def dotted(node: cst.CSTNode | None) -> str | None:
    """`a.b.c` as text; None for any other expression."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr.value}" if base else None
    return None


class Walk(cst.CSTVisitor):
    """One walk over a file: its scopes, what is bound in each, and every call."""

    def __init__(self, source: "Source") -> None:
        self.source = source
        self.scopes: dict[cst.CSTNode, Scope] = {}
        self.calls: list[tuple[Scope, cst.Call]] = []
        self.nodes: dict[cst.CSTNode, Scope] = {}
        self.stack: list[Scope] = []
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self.above: list[cst.CSTNode] = []
        self.uses: dict[str, list[cst.BaseExpression]] = {}
        self.assigns: list[cst.Assign] = []
        self.package = source.package

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, BLANK):
            return False
        if self.above:
            self.parents[node] = self.above[-1]
        self.above.append(node)
        return super().on_visit(node)

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if not isinstance(original_node, BLANK):
            self.above.pop()
            super().on_leave(original_node)

    def visit_Name(self, node: cst.Name) -> None:
        self.uses.setdefault(node.value, []).append(node)

    def visit_Attribute(self, node: cst.Attribute) -> None:
        name = dotted(node)
        if name is not None and name.startswith("self.") and name.count(".") == 1:
            self.uses.setdefault(name, []).append(node)

    def _push(self, node: Scoped) -> None:
        scope = Scope(self.source, node, self.stack[-1] if self.stack else None)
        self.scopes[node] = scope
        self.stack.append(scope)

    def bind(self, target: cst.CSTNode, binding: Binding) -> None:
        """Bind a target, whatever its form."""
        if isinstance(target, cst.Tuple | cst.List):
            for index, element in enumerate(target.elements):
                starred = isinstance(element, cst.StarredElement) or not binding.whole
                self.bind(
                    element.value,
                    Binding(binding.statement, binding.value, None if starred else index, whole=not starred),
                )
            return
        name = dotted(target)
        if name is None:
            return
        scope = self.stack[-1]
        if name.startswith("self.") and name.count(".") == 1 and scope.owner is not None:
            scope = scope.owner
        elif "." in name:
            return  # `args.x = ...` says nothing about a name
        scope.names.setdefault(name, []).append(binding)

    def visit_Module(self, node: cst.Module) -> None:
        self._push(node)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.bind(node.name, Binding(node, None))
        parent = self.stack[-1]
        self._push(node)
        parent.functions[node.name.value] = self.stack[-1]
        self._parameters(node.params, node)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self.stack.pop()

    def visit_Lambda(self, node: cst.Lambda) -> None:
        self._push(node)
        self._parameters(node.params, node)

    def leave_Lambda(self, original_node: cst.Lambda) -> None:
        self.stack.pop()

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self.bind(node.name, Binding(node, None))
        parent = self.stack[-1]
        self._push(node)
        parent.functions[node.name.value] = self.stack[-1]

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self.stack.pop()

    def _parameters(self, parameters: cst.Parameters, node: cst.CSTNode) -> None:
        positional = (*parameters.posonly_params, *parameters.params)
        for at, parameter in enumerate(positional):
            self.bind(parameter.name, Binding(node, parameter.default, parameter=at))
        for parameter in parameters.kwonly_params:
            self.bind(parameter.name, Binding(node, parameter.default, parameter=-1))
        for star in (parameters.star_arg, parameters.star_kwarg):
            if isinstance(star, cst.Param):
                self.bind(star.name, Binding(node, None, whole=False))

    def visit_Import(self, node: cst.Import) -> None:
        for alias in node.names:
            name = dotted(alias.name) or ""
            if alias.asname is not None:
                self.bind(alias.asname.name, Binding(node, None, imported=name))
            else:
                first = name.partition(".")[0]
                self.bind(cst.Name(first), Binding(node, None, imported=first))

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        base = absolute(dotted(node.module) or "", len(node.relative), self.package)
        if base is None or isinstance(node.names, cst.ImportStar):
            return
        for alias in node.names:
            target = alias.asname.name if alias.asname is not None else alias.name
            self.bind(target, Binding(node, None, imported=f"{base}.{dotted(alias.name)}".lstrip(".")))

    def visit_Assign(self, node: cst.Assign) -> None:
        self.assigns.append(node)
        for target in node.targets:
            self.bind(target.target, Binding(node, node.value))

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            self.bind(node.target, Binding(node, node.value))

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self.bind(node.target, Binding(node, None, whole=False))

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self.bind(node.target, Binding(node, node.value))

    def visit_For(self, node: cst.For) -> None:
        self.bind(node.target, Binding(node, node.iter, whole=False))

    def visit_CompFor(self, node: cst.CompFor) -> None:
        self.bind(node.target, Binding(node, node.iter, whole=False))

    def visit_WithItem(self, node: cst.WithItem) -> None:
        if node.asname is not None:
            self.bind(node.asname.name, Binding(node, node.item, whole=False))

    def visit_ExceptHandler(self, node: cst.ExceptHandler) -> None:
        if node.name is not None:
            self.bind(node.name.name, Binding(node, None, whole=False))

    def visit_Global(self, node: cst.Global) -> None:
        self.stack[-1].elsewhere |= {item.name.value for item in node.names}

    def visit_Nonlocal(self, node: cst.Nonlocal) -> None:
        self.stack[-1].elsewhere |= {item.name.value for item in node.names}

    def visit_Return(self, node: cst.Return) -> None:
        if node.value is not None:
            self.stack[-1].returns.append(node.value)

    def visit_Call(self, node: cst.Call) -> None:
        self.calls.append((self.stack[-1], node))


def hand_over(scope: Scope) -> None:
    """Names that a function declares `global` or `nonlocal` are bound in the scope above that has them."""
    for name in scope.elsewhere & scope.names.keys():
        above = scope.parent
        while above is not None and above.parent is not None and name not in above.names:
            above = above.parent
        if above is not None:
            above.names.setdefault(name, []).extend(scope.names.pop(name))
