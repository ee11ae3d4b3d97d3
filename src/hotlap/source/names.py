"""What a name in the user's source stands for: an import, or the expressions that it may have been assigned.

Flow-insensitive and without types: `origins` follows assignments, parameters to the arguments of every call that is
seen, attributes of `self` to any method of the class, and the results of the user's own functions. What is not
understood is its own origin, so a caller that wants to be sure asks that every origin is of the kind it knows.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import libcst as cst

from .project import Project
from .scopes import Binding, Scope, Var, Walk, dotted
from .tree import Source

DEEPEST: Final = 24
"""Assignments and calls that are followed one behind the other."""
MOST: Final = 4000
"""Steps to the origins of one value: names that are assigned from each other have more paths than there is time."""
SAME_OBJECT: Final = frozenset(
    [
        "to",
        "cuda",
        "cpu",
        "train",
        "eval",
        "float",
        "double",
        "half",
        "bfloat16",
        "requires_grad_",
        "apply",
        "share_memory",
        "parallelize",
    ]
)
"""Methods of a module that return the module."""
WRAPPERS: Final = frozenset(
    [
        "DistributedDataParallel",
        "DataParallel",
        "FullyShardedDataParallel",
        "compile",
        "iter",
        "enumerate",
        "tqdm",
        "trange",
        "cycle",
        "islice",
        "setup",
        "setup_module",
        "setup_dataloaders",
        "prepare",
        "prepare_model",
        "prepare_data_loader",
    ]
)
"""Callables that return what they are given first, or something that behaves so; by the last part of their names."""


class At(NamedTuple):
    """A node in a file."""

    source: Source
    node: cst.BaseExpression


def _as_command(scope: Scope, call: cst.Call) -> bool:
    """Whether a call of a module's own code stands under `if __name__ == "__main__"`."""
    below: cst.CSTNode = call
    above = scope.source.parent(call) if isinstance(scope.node, cst.Module) else None
    while above is not None:
        if isinstance(above, cst.If) and below is above.body and _is_command(above.test):
            return True
        below, above = above, scope.source.parent(above)
    return False


def _is_command(test: cst.BaseExpression) -> bool:
    """Whether an expression is `__name__ == "__main__"`."""
    match test:
        case cst.Comparison(left=cst.Name("__name__"), comparisons=[cst.ComparisonTarget(cst.Equal(), right)]):
            return isinstance(right, cst.SimpleString) and right.evaluated_value == "__main__"
    return False


@dataclass(eq=False)
class Names:
    """Every name of a project."""

    project: Project
    _left: int = 0
    _callers: dict[Scope, list[tuple[Scope, cst.Call, int]]] | None = None

    @staticmethod
    def of(source: Source) -> Walk:
        """The scopes of a file."""
        return source.walk

    @cached_property
    def calls(self) -> list[tuple[Scope, cst.Call]]:
        """Every call of the project with its scope, but for those that a module makes only where it is the command."""
        return [
            (scope, call)
            for source in self.project.sources.values()
            for scope, call in self.of(source).calls
            if source is self.project.main or not _as_command(scope, call)
        ]

    def scope(self, source: Source, node: cst.CSTNode) -> Scope:
        """The scope that a node stands in."""
        return self.of(source).scopes[source.scope(node)]

    def variable(self, name: str, scope: Scope) -> Var | None:
        """Which variable a dotted name is, seen from a scope; None where it is bound nowhere (a builtin)."""
        if name.startswith("self.") and scope.owner is not None:
            return Var(scope.owner, name) if name in scope.owner.names else None
        found: Scope | None = scope
        while found is not None:
            if name in found.names and (found is scope or not isinstance(found.node, cst.ClassDef)):
                return Var(found, name)
            found = found.parent
        return None

    def resolve(self, node: cst.CSTNode, scope: Scope) -> str | None:
        """The full name of an imported thing, or of a definition of the user's (`module.name`); None if unsure."""
        name = dotted(node)
        if name is None:
            return None
        first, _, rest = name.partition(".")
        variable = self.variable(first, scope)
        if variable is None:
            return None
        full = {self._full(binding, variable) for binding in variable.scope.names[first]}
        if len(full) != 1 or None in full:
            return None
        return f"{full.pop()}.{rest}".rstrip(".")

    @staticmethod
    def _full(binding: Binding, variable: Var) -> str | None:
        if binding.imported is not None:
            return binding.imported
        if binding.statement in {s.node for s in variable.scope.functions.values()}:
            return f"{variable.scope.source.module}.{variable.scope.qualname}.{variable.name}".replace("..", ".")
        return None

    def definition(self, node: cst.CSTNode, scope: Scope) -> Scope | None:
        """The function or class of the user's behind a name, or behind `self.method`."""
        name = dotted(node)
        if name is None:
            return None
        first, _, rest = name.partition(".")
        if first == "self" and rest and scope.owner is not None:
            return scope.owner.functions.get(rest)
        variable = self.variable(name, scope)
        if variable is not None and len(variable.scope.names[name]) == 1 and name in variable.scope.functions:
            return variable.scope.functions[name]
        full = self.resolve(node, scope)
        return self._defined(full) if full else None

    def _defined(self, full: str) -> Scope | None:
        parts = full.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            source = self.project.module(".".join(parts[:cut]))
            if source is None:
                continue
            scope: Scope | None = self.of(source).scopes[source.tree]
            for part in parts[cut:]:
                scope = scope.functions.get(part) if scope is not None else None
            return scope
        return None

    def instance_of(self, at: At) -> Scope | None:
        """The class of the user's that an expression makes an instance of."""
        if not isinstance(at.node, cst.Call):
            return None
        kind = self.definition(at.node.func, self.scope(at.source, at.node)) if dotted(at.node.func) else None
        return kind if kind is not None and isinstance(kind.node, cst.ClassDef) else None

    def callers(self, function: Scope) -> list[tuple[Scope, cst.Call, int]]:
        """Calls of a function: where, the call, and how many leading parameters it does not give (`self`)."""
        if self._callers is None:
            self._callers = {}
            for scope, call in self.calls:
                self._add_caller(scope, call)
        return self._callers.get(function, [])

    def _add_caller(self, scope: Scope, call: cst.Call) -> None:
        assert self._callers is not None
        func = call.func
        called = self.definition(func, scope) if isinstance(func, cst.Name) or _own_method(func) else None
        if called is None and isinstance(func, cst.Attribute):
            called = self._by_name(func.attr.value) or self._imported_function(func, scope)
        if called is None:
            return
        if isinstance(called.node, cst.ClassDef):
            called = called.functions.get("__init__")
        if called is not None:
            skipped = 1 if called.parent is not None and isinstance(called.parent.node, cst.ClassDef) else 0
            self._callers.setdefault(called, []).append((scope, call, skipped))

    def _imported_function(self, node: cst.Attribute, scope: Scope) -> Scope | None:
        full = self.resolve(node, scope)
        return self._defined(full) if full else None

    @cached_property
    def _methods(self) -> dict[str, list[Scope]]:
        found: dict[str, list[Scope]] = {}
        for source in self.project.sources.values():
            for scope in self.of(source).scopes.values():
                if isinstance(scope.node, cst.FunctionDef) and isinstance(
                    getattr(scope.parent, "node", 0), cst.ClassDef
                ):
                    found.setdefault(scope.name, []).append(scope)
        return found

    def _by_name(self, name: str) -> Scope | None:
        """The only method of this name in the project."""
        found = self._methods.get(name, [])
        return found[0] if len(found) == 1 and not name.startswith("__") and name not in SAME_OBJECT else None

    # where a value comes from

    def origins(self, node: cst.BaseExpression, scope: Scope) -> list[At]:
        """The expressions that made the value of an expression, each once."""
        found: dict[cst.BaseExpression, At] = {}
        self._left = MOST
        for at in self._origins(node, scope, DEEPEST, set()):
            found.setdefault(at.node, at)
        return list(found.values())

    def _origins(self, node: cst.BaseExpression, scope: Scope, depth: int, seen: set[Var]) -> Iterator[At]:
        here = At(scope.source, node)
        self._left -= 1
        if depth <= 0 or self._left <= 0:
            yield here
        elif (name := dotted(node)) is not None:
            yield from self._named(name, node, scope, depth, seen)
        elif isinstance(node, cst.IfExp):
            for branch in (node.body, node.orelse):
                yield from self._origins(branch, scope, depth - 1, seen)
        elif isinstance(node, cst.Call):
            yield from self._called(node, scope, depth, seen, None)
        else:
            yield here

    def _named(self, name: str, node: cst.BaseExpression, scope: Scope, depth: int, seen: set[Var]) -> Iterator[At]:
        variable = self.variable(name, scope)
        if variable is None and isinstance(node, cst.Attribute) and node.attr.value == "module":
            yield from self._origins(node.value, scope, depth - 1, seen)
            return
        if variable is None:
            yield At(scope.source, node)
            return
        if variable in seen:
            return
        for binding in variable.scope.names[name]:
            yield from self._bound(binding, variable, node, depth - 1, seen | {variable})

    def _bound(
        self, binding: Binding, variable: Var, node: cst.BaseExpression, depth: int, seen: set[Var]
    ) -> Iterator[At]:
        home = self._home(binding, variable)
        if binding.parameter is not None:
            yield from self._arguments(binding, variable, depth, seen)
        elif binding.value is None or not binding.whole:
            yield At(variable.scope.source, binding.value if binding.value is not None else node)
        elif binding.index is None:
            yield from self._origins(binding.value, home, depth, seen)
        elif isinstance(binding.value, cst.Tuple) and binding.index < len(binding.value.elements):
            yield from self._origins(binding.value.elements[binding.index].value, home, depth, seen)
        elif isinstance(binding.value, cst.Call):
            yield from self._called(binding.value, home, depth, seen, binding.index)
        else:
            yield At(home.source, binding.value)

    def _home(self, binding: Binding, variable: Var) -> Scope:
        """The scope in which the value of a binding is evaluated (a method, for attributes of `self`)."""
        if isinstance(variable.scope.node, cst.ClassDef) or binding.value is not None:
            return self.scope(variable.scope.source, binding.statement)
        return variable.scope

    def _arguments(self, binding: Binding, variable: Var, depth: int, seen: set[Var]) -> Iterator[At]:
        """What callers give for a parameter."""
        function = variable.scope
        for scope, call, skipped in self.callers(function):
            value = argument(call, (binding.parameter or 0) - skipped, variable.name)
            if value is not None:
                yield from self._origins(value, scope, depth, seen)
            elif binding.value is not None:
                yield from self._origins(binding.value, function, depth, seen)

    def _called(self, call: cst.Call, scope: Scope, depth: int, seen: set[Var], index: int | None) -> Iterator[At]:
        func = call.func
        last = func.attr.value if isinstance(func, cst.Attribute) else dotted(func) or ""
        definition = self.definition(func, scope) if isinstance(func, cst.Name) or _own_method(func) else None
        if definition is None and isinstance(func, cst.Attribute):
            definition = self._imported_function(func, scope)
        if definition is not None and isinstance(definition.node, cst.FunctionDef) and definition.returns:
            for value in definition.returns:
                picked = _pick(value, index)
                found = None if picked is None else self._origins(picked, definition, depth - 1, seen)
                yield from [At(scope.source, call)] if found is None else found
        elif last in WRAPPERS and definition is None and (given := argument(call, index or 0, "")) is not None:
            yield from self._origins(given, scope, depth - 1, seen)
        elif isinstance(func, cst.Attribute) and last in SAME_OBJECT:
            yield from self._origins(func.value, scope, depth - 1, seen)
        else:
            yield At(scope.source, call)


def argument(call: cst.Call, position: int, name: str) -> cst.BaseExpression | None:
    """The value that a call gives for a parameter; None where it gives none, or hides it in a star."""
    at = 0
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == name:
            return arg.value
        if arg.keyword is None and not arg.star:
            if at == position:
                return arg.value
            at += 1
        elif arg.star:
            at = 1 << 20
    return None


def _pick(value: cst.BaseExpression, index: int | None) -> cst.BaseExpression | None:
    """The element of a returned tuple."""
    if index is None:
        return value
    if isinstance(value, cst.Tuple):
        return value.elements[index].value if index < len(value.elements) else None
    return None


def _own_method(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Attribute) and dotted(node.value) == "self"


def subclasses(names: Names, kind: Scope, wanted: re.Pattern[str], depth: int = 8) -> bool:
    """Whether a class of the user's derives from one whose full name has `wanted` in it."""
    if depth == 0 or not isinstance(kind.node, cst.ClassDef):
        return False
    outside = kind.parent or kind
    for base in kind.node.bases:
        full = names.resolve(base.value, outside) or dotted(base.value) or ""
        if wanted.search(full):
            return True
        above = names.definition(base.value, outside)
        if above is not None and above is not kind and subclasses(names, above, wanted, depth - 1):
            return True
    return False
