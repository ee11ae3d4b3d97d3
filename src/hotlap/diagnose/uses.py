"""Where a value is used that each step computes: whether only in a branch that few steps take, as `if step % 50 == 0:`,
or once the loop is over.

Read from the source of the files that were seen to run. What is not understood is taken for a use in each step.
"""

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Final, NamedTuple

from hotlap.records.diagnosis import Place

from .source import called_in, calls_in, function_at, name_at, parsed, statement_at, statements_inside

LEAST_BETWEEN: Final = 3
"""Steps from one use to the next, at least, where that is a number."""
WRITES: Final = frozenset(
    {
        "add", "all_gather", "all_reduce", "append", "backward", "broadcast", "extend", "gather", "gather_for_metrics",
        "next", "pop", "push", "put", "reduce", "send", "step", "update", "write",
    }
)  # fmt: skip
"""Calls that change something, or that all ranks have to make."""
SHOWS: Final = frozenset({"add_scalar", "debug", "info", "log", "print", "set_description", "set_postfix", "write"})
"""Calls that show numbers to people."""
KEEPS: Final = frozenset({"append", "extend"})
"""Calls by which a list keeps more."""
PLAIN: Final = frozenset({"all", "any", "is_available", "isinstance", "len", "numel"})
"""Calls in conditions that ask what there is."""


class Use(NamedTuple):
    """A line. test: of the branch around it; "" after the loop. adds: of what is added up there over the steps."""

    file: str
    line: int
    test: str
    adds: bool = False

    @property
    def place(self) -> Place:
        """Where it is."""
        return Place(file=self.file, line=self.line)


Found = frozenset[Use] | None
"""None of what may be used in each step."""


class Uses:
    """files: that were seen to run. loop: a turn of it is a step; None where that is not known."""

    def __init__(self, files: Sequence[str], loop: Place | None) -> None:
        self._modules = {file: tree for file in files if (tree := parsed(file)) is not None}
        self._reads = {file: _reads(tree) for file, tree in self._modules.items()}
        nodes = [one for tree in self._modules.values() for one in ast.walk(tree)]
        self._shared = {name for one in nodes if isinstance(one, (ast.Global, ast.Nonlocal)) for name in one.names}
        self._loop = loop
        self._open: set[tuple[str, int, str, tuple[int, ...]]] = set()

    def of(self, path: Sequence[Place]) -> Found:
        """Of what the last statement of a path of calls makes."""
        self._open.clear()
        return None if self._goes_on(path[-1]) else self._made(path[-1], path[:-1])

    def _made(self, at: Place, outer: Sequence[Place], name: str = "", parts: tuple[int, ...] = ()) -> Found:
        """name: of the variable that is asked about, where it only passes it on; parts: of several that it assigns,
        those that are."""
        own = statement_at(at)
        if own is None or (at.file, own.lineno, name, parts) in self._open:
            return None if own is None else frozenset()
        self._open.add((at.file, own.lineno, name, parts))
        if isinstance(own, ast.Return):
            calls = [one for one in outer if statement_at(one) is not own]  # it may be in a comprehension of its own
            return self._made(calls[-1], calls[:-1], "", _parts(own, name)) if calls else self._by_name(at, own, at)
        scope, kept = function_at(at) or self._modules.get(at.file), kept_in(own)
        if scope is None or not (self._is_of_step(kept, at) if kept else isinstance(own, (ast.Assign, ast.AugAssign))):
            return None
        found: list[Found] = []
        for target in _targets(own, parts):
            if isinstance(target, ast.Attribute):
                found += [self._read(one, (), own, at) for one in self._everywhere(f".{target.attr}")]
            elif (name := kept or name_at(target)) and name not in self._shared:
                reads = (one for one in self._everywhere(name) if one.file == at.file and _holds(scope, one.line or 0))
                found += [self._read(one, outer, own, at, name) for one in reads]
            else:
                return None
        return _all(found)

    def adds_up(self, at: Place) -> bool:
        """Whether a statement adds to what the steps before have left."""
        own = statement_at(at)
        added = isinstance(own, ast.AugAssign) and not self._is_of_step(_root(own.target), at)
        return added or self._goes_on(at)

    def _goes_on(self, at: Place) -> bool:
        """Whether a statement makes a variable of what the step before has left in it, as a running average."""
        own, loop = statement_at(at), self.around(at)
        name = name_at(own.targets[0]) if isinstance(own, ast.Assign) and len(own.targets) == 1 else ""
        if not isinstance(own, ast.Assign) or loop is None or not _mentions(own.value, name):
            return False
        return all(one is own or not _holds(loop, one.lineno) for one in _assigned(function_at(at) or loop, name))

    def _is_of_step(self, name: str, at: Place) -> bool:
        """Whether a variable is made anew in each step."""
        scope, loop = function_at(at) or self._modules.get(at.file), self.around(at)
        made = [one.lineno for one in _assigned(scope, name)]
        if loop is not None:
            return any(_holds(loop, line) for line in made)
        return self._loop is not None and bool(made)

    def _read(self, at: Place, outer: Sequence[Place], of: ast.stmt, made: Place, name: str = "") -> Found:
        """Of a line that reads what a statement makes. name: of a variable of its function."""
        own, adds = statement_at(at), self.adds_up(made)
        if (branch := branch_at(at)) is not None:
            shows = called_in(*branch.body) & SHOWS
            use = Use(at.file, branch.lineno, ast.unparse(branch.test), adds)
            return None if adds and not shows else frozenset({use})
        if self.is_behind(at):
            return None if adds else frozenset({Use(at.file, at.line or 0, "")})
        if name and own is not None and kept_in(own) == name:
            return frozenset()  # that keeps more in it
        if own is None or own is of:
            return frozenset() if own is of and self._goes_on(at) else None
        if self.adds_up(at):
            return None if adds else self._made(at, outer) or None
        if name or self.around(at) is not None:
            return None if adds or calls_writer(own) else self._made(at, outer, name)
        return self._by_name(at, of, made)

    def _by_name(self, at: Place, of: ast.stmt, made: Place) -> Found:
        """Of what a function returns, or does, by all mentions of its name."""
        function = function_at(at)
        if function is None or function.name.startswith("__"):
            return None
        if (at.file, function.lineno, function.name, ()) in self._open:
            return frozenset()
        self._open.add((at.file, function.lineno, function.name, ()))
        mentions = (*self._everywhere(function.name), *self._everywhere(f".{function.name}"))
        return _all([self._read(one, (), of, made) for one in mentions])

    def _everywhere(self, name: str) -> Iterator[Place]:
        lines = ((file, line) for file, reads in self._reads.items() for line in dict.fromkeys(reads.get(name, ())))
        return (Place(file=file, line=line) for file, line in lines)

    def is_behind(self, at: Place) -> bool:
        """Whether a line is in the function of the loop, and outside of it."""
        loop = self.around(at)
        return loop is not None and not _holds(loop, at.line or 0)

    def is_conditional(self, at: Place) -> bool:
        """Whether a line of a step is under a condition that may choose between steps, as `loss < best`: not of one of
        what is there."""
        inside = takewhile(lambda one: one is not self.around(at), statements_inside(at))
        tests = (one.test for one in inside if isinstance(one, (ast.If, ast.While)) and one.test.lineno != at.line)
        return not all(map(_is_plain, tests))

    def around(self, at: Place) -> ast.stmt | None:
        """The loop, of a line in its function."""
        if self._loop is None or at.file != self._loop.file or function_at(at) is not function_at(self._loop):
            return None
        return statement_at(self._loop)


def kept_in(own: ast.stmt) -> str:
    """The variable in which a statement keeps more: `row` of `row.append(x)` and of `row["x"] = x`."""
    if isinstance(own, ast.Expr) and isinstance(own.value, ast.Call):
        called = own.value.func
        return name_at(called.value) if isinstance(called, ast.Attribute) and called.attr in KEEPS else ""
    target = own.targets[0] if isinstance(own, ast.Assign) else None
    return _root(target) if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) else ""


def _targets(own: ast.stmt, parts: Sequence[int]) -> list[ast.expr]:
    one = own.target if isinstance(own, ast.AugAssign) else ast.Name(kept_in(own))
    given = own.targets if isinstance(own, ast.Assign) else [one]
    if len(given) == 1 and isinstance(given[0], ast.Tuple) and parts and max(parts) < len(given[0].elts):
        return [given[0].elts[at] for at in parts]
    return [one for each in given for one in (each.elts if isinstance(each, ast.Tuple) else [each])]


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(node))


def _names(own: ast.Assign) -> list[str]:
    return [one.id for one in _targets(own, ()) if isinstance(one, ast.Name)]


def _parts(own: ast.Return, name: str) -> tuple[int, ...]:
    """Which elements of a tuple that is returned hold a variable."""
    elements = own.value.elts if isinstance(own.value, ast.Tuple) else []
    return tuple(at for at, one in enumerate(elements) if any(name_at(each) == name for each in ast.walk(one)))


@lru_cache(maxsize=4096)
def branch_at(at: Place) -> ast.If | None:
    """The branch around a line that is taken in every n-th step."""
    line = at.line or 0
    branches = (one for one in statements_inside(at) if isinstance(one, ast.If) and _is_every_nth(one.test, at))
    return next((one for one in branches if one.body[0].lineno <= line <= (one.body[-1].end_lineno or 0)), None)


def _is_plain(test: ast.expr) -> bool:
    """`len(rows) > 1`, `targets.any()`, `rank == 0`, `True`."""
    if isinstance(test, ast.Compare):
        return all(isinstance(one, ast.Constant) for one in test.comparators)
    if isinstance(test, ast.BoolOp):
        return all(map(_is_plain, test.values))
    return isinstance(test, ast.Constant) or (isinstance(test, ast.Call) and name_at(test.func) in PLAIN)


def _is_every_nth(test: ast.expr, at: Place) -> bool:
    """`step % 50 == 0`, `not step % n`, one of them and something else, or `step == last`, or the name of one."""
    if isinstance(test, ast.BoolOp):
        known = [one for one in test.values if _is_every_nth(one, at)]
        others = [one for one in test.values if one not in known]
        return bool(known) and (isinstance(test.op, ast.And) or all(_is_one_turn(one, at) for one in others))
    if isinstance(test, ast.Name):
        given = _given(function_at(at) or parsed(at.file), test.id)
        return given is not None and not isinstance(given, ast.Name) and _is_every_nth(given, at)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = ast.Compare(test.operand, [ast.Eq()], [])
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq):
        return False
    if not isinstance(test.left, ast.BinOp) or not isinstance(test.left.op, ast.Mod):
        return False
    n = test.left.right
    if isinstance(n, ast.Name):
        n = _given(function_at(at), n.id) or _given(parsed(at.file), n.id) or n
    return not isinstance(n, ast.Constant) or (isinstance(n.value, int) and n.value >= LEAST_BETWEEN)


def _is_one_turn(test: ast.expr, at: Place) -> bool:
    """`step == last`, of what a loop counts."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return False
    loops = [one for one in statements_inside(at) if isinstance(one, (ast.For, ast.AsyncFor))]
    return any(_mentions(loop.target, name_at(one)) for one in (test.left, *test.comparators) for loop in loops)


def _given(scope: ast.AST | None, name: str) -> ast.expr | None:
    """What a name is, where it is given that once."""
    made = _assigned(scope, name)
    return made[0].value if len(made) == 1 else None


def _assigned(scope: ast.AST | None, name: str) -> list[ast.Assign]:
    """Where a name is given."""
    return [one for one in ast.walk(scope or ast.Pass()) if isinstance(one, ast.Assign) and name in _names(one)]


def calls_writer(node: ast.AST) -> bool:
    """Whether a call in it changes something, by its name."""
    keeps = node.value if isinstance(node, ast.Expr) and kept_in(node) else None
    return any(_is_writer(call) for call in calls_in(node) if call is not keeps)


def _is_writer(call: ast.Call) -> bool:
    name = name_at(call.func)
    return name in WRITES or (name.endswith("_") and not name.endswith("__"))


def writes(function: ast.FunctionDef) -> bool:
    """Whether a function may change more than its own variables."""
    nodes = list(ast.walk(function))
    given = [one for one in nodes if isinstance(one, ast.Assign)]
    own = {name for one in given if not isinstance(one.value, (ast.Name, ast.Attribute)) for name in _names(one)}
    return any(_changes(one) and _root(one) not in own for one in nodes)


def _changes(node: ast.AST) -> bool:
    """Whether a node assigns to more than a name, adds up, calls for no result, or yields."""
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.Call):
        return _is_writer(node)
    return isinstance(node, (ast.AugAssign, ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom))


def _root(node: ast.AST) -> str:
    """`x` of `x.rows[0].append()` and of `x += 1`; "" of what is no name."""
    while not isinstance(node, ast.Name):
        inner = [getattr(node, name, None) for name in ("func", "target", "value")]
        if (found := next((one for one in inner if isinstance(one, ast.AST)), None)) is None:
            return ""
        node = found
    return node.id


def _reads(module: ast.Module) -> dict[str, list[int]]:
    """Lines at which names, and attributes with a dot before them, are read."""
    texts = (one for one in ast.walk(module) if isinstance(one, ast.JoinedStr))
    lines = {id(one): text.lineno for text in texts for one in ast.walk(text)}  # where it begins: Python errs inside
    found: dict[str, list[int]] = {}
    for one in ast.walk(module):
        if isinstance(one, (ast.Name, ast.Attribute)) and isinstance(one.ctx, ast.Load):
            name = one.id if isinstance(one, ast.Name) else f".{one.attr}"
            found.setdefault(name, []).append(lines.get(id(one), one.lineno))
    return found


def _holds(scope: ast.AST, line: int) -> bool:
    return not isinstance(scope, ast.stmt) or scope.lineno <= line <= (scope.end_lineno or 0)


def _all(found: Sequence[Found]) -> Found:
    """Of several reads."""
    known = [one for one in found if one is not None]
    return frozenset().union(*known) if len(known) == len(found) else None
