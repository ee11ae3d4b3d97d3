"""What a name in the user's source stands for: an import, or the expressions that it may have been assigned.

Flow-insensitive and without types: `origins` follows assignments, parameters to the arguments of every call that is
seen, attributes of `self` to any method of the class, and the results of the user's own functions. What is not
understood is its own origin, so a caller that wants to be sure asks that every origin is of the kind it knows.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

import libcst as cst
import libcst.matchers as m

from .project import Project
from .scopes import Binding, Scope, Source, Var, dotted, element, last_name

DEEPEST: Final = 24
"""Assignments and calls that are followed one behind the other."""
MOST: Final = 4000
"""Steps to the origins of one value: names that are assigned from each other have more paths than there is time."""
SAME_OBJECT: Final = frozenset(
    [
        "to", "cuda", "cpu", "train", "eval", "float", "double", "half", "bfloat16", "requires_grad_", "apply",
        "share_memory", "parallelize",
    ]
)  # fmt: skip
"""Methods of a module that return the module."""
WRAPPERS: Final = frozenset(
    [
        "DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "compile", "iter", "enumerate", "tqdm",
        "trange", "cycle", "islice", "setup", "setup_module", "setup_dataloaders", "prepare", "prepare_model",
        "prepare_data_loader",
    ]
)  # fmt: skip
"""Callables that return what they are given first, or something that behaves so; by the last part of their names."""

IS_COMMAND: Final = m.Comparison(
    m.Name("__name__"), [m.ComparisonTarget(m.Equal(), m.SimpleString('"__main__"') | m.SimpleString("'__main__'"))]
)


class At(NamedTuple):
    """A node in a file."""

    source: Source
    node: cst.BaseExpression


@dataclass(eq=False)
class Names:
    """Every name of a project."""

    project: Project
    _left: int = 0

    @cached_property
    def calls(self) -> list[tuple[Scope, cst.Call]]:
        """Every call of the project with its scope, but for those that a module makes only where it is the command."""
        return [
            (scope, call)
            for source in self.project.sources.values()
            for scope, call in source.walk.calls
            if source is self.project.main or not _as_command(scope, call)
        ]

    def variable(self, name: str, scope: Scope) -> Var | None:
        """Which variable a dotted name is, seen from a scope; None where it is bound nowhere (a builtin)."""
        if name.startswith("self.") and scope.owner is not None:
            return Var(scope.owner, name) if name in scope.owner.names else None
        return next((Var(found, name) for found in scope.visible() if name in found.names), None)

    def resolve(self, node: cst.CSTNode, scope: Scope) -> str:
        """The full name of an imported thing, or of a definition of the user's (`module.name`); "" if unsure."""
        first, _, rest = (dotted(node) or "").partition(".")
        variable = self.variable(first, scope)
        full = {_full(binding, variable) for binding in variable.bindings} if variable is not None else {""}
        return f"{full.pop()}.{rest}".rstrip(".") if len(full) == 1 and "" not in full else ""

    def definition(self, node: cst.CSTNode, scope: Scope) -> Scope | None:
        """The function or class of the user's behind a name, or behind `self.method`."""
        name = dotted(node) or ""
        first, _, rest = name.partition(".")
        if first == "self" and rest and scope.owner is not None:
            return scope.owner.functions.get(rest)
        variable = self.variable(name, scope)
        if variable is not None and len(variable.bindings) == 1 and name in variable.scope.functions:
            return variable.scope.functions[name]
        parts = self.resolve(node, scope).split(".")
        for cut in range(len(parts) - 1, 0, -1):
            source = self.project.module(".".join(parts[:cut]))
            if source is not None:
                found: Scope | None = source.top
                for part in parts[cut:]:
                    found = found.functions.get(part) if found is not None else None
                return found
        return None

    def instance_of(self, at: At) -> Scope | None:
        """The class of the user's that an expression makes an instance of."""
        if not isinstance(at.node, cst.Call):
            return None
        kind = self.definition(at.node.func, at.source.scope(at.node))
        return kind if kind is not None and kind.is_class else None

    def made_by(self, at: At) -> str:
        """The full name of what is called to make a value; "" where it is not known, or no call."""
        return self.resolve(at.node.func, at.source.scope(at.node)) if isinstance(at.node, cst.Call) else ""

    def derives(self, kind: Scope, wanted: re.Pattern[str], depth: int = 8) -> bool:
        """Whether a class of the user's derives from one whose full name has `wanted` in it."""
        outside = kind.parent or kind
        for base in kind.node.bases if isinstance(kind.node, cst.ClassDef) and depth else ():
            if wanted.search(self.resolve(base.value, outside) or dotted(base.value) or ""):
                return True
            above = self.definition(base.value, outside)
            if above is not None and above is not kind and self.derives(above, wanted, depth - 1):
                return True
        return False

    @cached_property
    def callers(self) -> Mapping[Scope, list[tuple[Scope, cst.Call, int]]]:
        """The calls of each function: where, the call, and how many leading parameters it does not give (`self`)."""
        found = defaultdict[Scope, list[tuple[Scope, cst.Call, int]]](list)
        for scope, call in self.calls:
            called = self.definition(call.func, scope)
            if called is None and isinstance(call.func, cst.Attribute):
                called = self._only_methods.get(call.func.attr.value)
            if called is not None and called.is_class:
                called = called.functions.get("__init__")
            if called is not None:
                found[called].append((scope, call, 1 if called.is_method else 0))
        return found

    @cached_property
    def _only_methods(self) -> dict[str, Scope | None]:
        """Methods by name; None where the project has several of it, or it says nothing about what has the method."""
        found: dict[str, Scope | None] = {}
        for source in self.project.sources.values():
            for scope in source.walk.scopes.values():
                if isinstance(scope.node, cst.FunctionDef) and scope.is_method:
                    known = scope.name in found or scope.name in SAME_OBJECT or scope.name.startswith("__")
                    found[scope.name] = None if known else scope
        return found

    # where a value comes from

    def origins(self, node: cst.BaseExpression, scope: Scope) -> list[At]:
        """The expressions that made the value of an expression, each once."""
        self._left = MOST
        return list({at.node: at for at in self._origins(node, scope, DEEPEST, frozenset())}.values())

    def _origins(self, node: cst.BaseExpression, scope: Scope, depth: int, seen: frozenset[Var]) -> Iterator[At]:
        self._left -= 1
        if depth <= 0 or self._left <= 0:
            yield At(scope.source, node)
        elif (name := dotted(node)) is not None:
            variable = self.variable(name, scope)
            if variable is None and isinstance(node, cst.Attribute) and node.attr.value == "module":
                yield from self._origins(node.value, scope, depth - 1, seen)
            elif variable is None:
                yield At(scope.source, node)
            elif variable not in seen:
                for binding in variable.bindings:
                    yield from self._bound(binding, variable, node, depth - 1, seen | {variable})
        elif isinstance(node, cst.IfExp):
            for branch in (node.body, node.orelse):
                yield from self._origins(branch, scope, depth - 1, seen)
        elif isinstance(node, cst.Call):
            yield from self._called(node, scope, depth, seen, None)
        else:
            yield At(scope.source, node)

    def _bound(
        self, binding: Binding, variable: Var, node: cst.BaseExpression, depth: int, seen: frozenset[Var]
    ) -> Iterator[At]:
        source, value = variable.scope.source, binding.value
        if binding.parameter is not None:
            for scope, call, skipped in self.callers[variable.scope]:
                given = argument(call, binding.parameter - skipped, variable.name)
                if given is not None:
                    yield from self._origins(given, scope, depth, seen)
                elif value is not None:
                    yield from self._origins(value, variable.scope, depth, seen)
        elif value is None or not binding.whole:
            yield At(source, node if value is None else value)
        elif (part := binding.assigned) is not None:
            yield from self._origins(part, source.scope(binding.statement), depth, seen)
        elif isinstance(value, cst.Call):
            yield from self._called(value, source.scope(binding.statement), depth, seen, binding.index)
        else:
            yield At(source, value)

    def _called(
        self, call: cst.Call, scope: Scope, depth: int, seen: frozenset[Var], index: int | None
    ) -> Iterator[At]:
        func = call.func
        definition = self.definition(func, scope)
        if definition is not None and not definition.is_class and definition.returns:
            for value in definition.returns:
                picked = element(value, index)
                yield from (
                    [At(scope.source, call)] if picked is None else self._origins(picked, definition, depth - 1, seen)
                )
        elif last_name(func) in WRAPPERS and definition is None and (given := argument(call, index or 0)) is not None:
            yield from self._origins(given, scope, depth - 1, seen)
        elif isinstance(func, cst.Attribute) and func.attr.value in SAME_OBJECT:
            yield from self._origins(func.value, scope, depth - 1, seen)
        else:
            yield At(scope.source, call)


def argument(call: cst.Call, position: int, name: str = "") -> cst.BaseExpression | None:
    """The value that a call gives for a parameter; None where it gives none, or hides it in a star."""
    for at, arg in enumerate(call.args):
        if arg.star == "*":
            return keyword_of(call, name)
        if arg.keyword is None and not arg.star and at == position:
            return arg.value
    return keyword_of(call, name)


def keyword_of(call: cst.Call, name: str) -> cst.BaseExpression | None:
    """The value that a call gives by this keyword."""
    return next((arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value == name), None)


def _full(binding: Binding, variable: Var) -> str:
    if binding.imported is not None:
        return binding.imported
    if binding.statement in {s.node for s in variable.scope.functions.values()}:
        return f"{variable.scope.source.module}.{variable.scope.qualname}.{variable.name}".replace("..", ".")
    return ""


def _as_command(scope: Scope, call: cst.Call) -> bool:
    """Whether a call of a module's own code stands under `if __name__ == "__main__"`."""
    if not isinstance(scope.node, cst.Module):
        return False
    found = [call, *scope.source.above(call)]
    return any(
        isinstance(above, cst.If) and below is above.body and m.matches(above.test, IS_COMMAND)
        for below, above in pairwise(found)
    )
