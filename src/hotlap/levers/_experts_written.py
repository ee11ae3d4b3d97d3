"""Not a lever: the forward of a class with its loop over experts left to a function, made from its source.

The source is taken where it is what runs, which is seen by compiling its file again. New code keeps the file's name and
lines, so that traces and findings show the user's own, and reads the same globals and cells.
"""

import __future__

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any, Final

from ._experts_read import Reader
from ._experts_values import PLAN, Loop, Unread, called, name_of

PLANNED: Final = "__hotlap_planned"
CALL: Final = "__hotlap_call"
LOOP: Final = "__hotlap_loop"
GROUPED: Final = "__hotlap_grouped"
NESTED: Final = 0x10
"""A flag of code that is none of the compiler's, though `__future__` has it."""
FUTURE: Final = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names}) & ~NESTED


@dataclass(frozen=True)
class Written:
    """What stands in place of a forward. loop, grouped: the loop as it was, and for all experts at once."""

    what: Loop
    forward: Callable[..., Any]
    loop: Callable[..., Any]
    grouped: Callable[..., Any]


def written(function: FunctionType, call: Callable[..., Any]) -> Written | None:
    """A forward whose loop over experts is left to `call(module, *inputs)`; None where it has no such loop. Raises
    Unread."""
    tree = _source(function)
    if tree is None:
        return None
    found = [(block, at) for block, at in _blocks(tree) if _is_loop(block[at])]
    if not found:
        return None
    if tree.decorator_list or not _runs(function):
        raise Unread(tree, "the source is not what runs: it is decorated, or has changed")
    if len(found) > 1:
        raise Unread(found[1][0][found[1][1]], "a second loop over modules")
    (block, at) = found[0]
    reader = Reader(function, tree)
    end, loop = reader.read(block, at)
    region = block[at:end]
    own = tree.args.args[0].arg
    block[at:end] = [_statement(loop, own, block[at])]
    returned = ast.Return(_tuple(loop.outputs, ast.Load()))
    args = [own, *loop.inputs]
    plan: ast.stmt = ast.Assign([ast.Name(PLAN, ast.Store())], ast.Call(name_of(PLANNED), [name_of(loop.chosen)], []))
    for node in ast.walk(plan):
        ast.copy_location(node, region[0])
    parts = [
        tree,
        _function(LOOP, args, [*region, returned]),
        _function(GROUPED, [PLANNED, *args], [plan, *loop.body, returned]),
    ]
    made = _made(function, parts, {CALL: call})
    return Written(loop, made[tree.name], made[LOOP], made[GROUPED])


def _source(function: FunctionType) -> ast.FunctionDef | None:
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse("if 1:\n" + "".join(lines) if lines[0][:1].isspace() else "".join(lines))
    except (OSError, TypeError, SyntaxError):
        return None
    node = tree.body[0]
    shift = first - 1
    if isinstance(node, ast.If):
        node, shift = node.body[0], first - 2
    if not isinstance(node, ast.FunctionDef) or not node.args.args:
        return None
    ast.increment_lineno(node, shift)
    return node


def _runs(function: FunctionType) -> bool:
    """Whether its source is what runs: the file, compiled again, has the same code at its line."""
    own = function.__code__
    try:
        lines, _ = inspect.findsource(function)
        flags = own.co_flags & FUTURE
        waiting = [compile("".join(lines), own.co_filename, "exec", flags=flags, dont_inherit=True)]
    except (OSError, SyntaxError, ValueError):
        return False
    alike = ("co_name", "co_firstlineno", "co_code", "co_names", "co_varnames", "co_freevars")
    while waiting:
        code = waiting.pop()
        if all(getattr(code, name) == getattr(own, name) for name in alike):
            return _constants(code) == _constants(own)
        waiting += [const for const in code.co_consts if isinstance(const, CodeType)]
    return False


def _constants(code: CodeType) -> list[str]:
    return [repr(const) for const in code.co_consts if not isinstance(const, CodeType)]


def _codes(function: FunctionType, parts: Sequence[ast.stmt], more: Sequence[str]) -> dict[str, CodeType]:
    """Functions as code, made inside of one that has what they read from outside."""
    free = [*function.__code__.co_freevars, *more]
    maker = _function("__hotlap_make", free, [*parts, ast.Pass()])
    module = ast.fix_missing_locations(ast.Module([maker], []))
    flags = function.__code__.co_flags & FUTURE
    whole = compile(module, function.__code__.co_filename, "exec", flags=flags, dont_inherit=True)
    (made,) = (const for const in whole.co_consts if isinstance(const, CodeType))
    return {const.co_name: const for const in made.co_consts if isinstance(const, CodeType)}


def _made(function: FunctionType, parts: Sequence[ast.stmt], more: dict[str, Any]) -> dict[str, FunctionType]:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells |= {name: CellType(value) for name, value in more.items()}
    made = {}
    for name, code in _codes(function, parts, tuple(more)).items():
        closure = tuple(cells[free] for free in code.co_freevars)
        made[name] = FunctionType(code, function.__globals__, name, None, closure)
    own = made[function.__code__.co_name]
    own.__defaults__, own.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return made


def _function(name: str, args: Sequence[str], body: list[ast.stmt]) -> ast.FunctionDef:
    arguments = ast.arguments([], [ast.arg(one) for one in args], None, [], [], None, [])
    made = ast.FunctionDef(name, arguments, body, [], None, None)
    if "type_params" in made._fields:
        made.type_params = []  # type: ignore[attr-defined,unused-ignore]
    return made


def _tuple(names: Sequence[str], how: ast.expr_context) -> ast.Tuple:
    return ast.Tuple([ast.Name(name, how) for name in names], how)


def _statement(loop: Loop, own: str, where: ast.stmt) -> ast.stmt:
    made: ast.expr = ast.Call(name_of(CALL), [name_of(own), *map(name_of, loop.inputs)], [])
    statement: ast.stmt = ast.Expr(made)
    if loop.outputs:
        statement = ast.Assign([_tuple(loop.outputs, ast.Store())], made)
    for node in ast.walk(statement):
        ast.copy_location(node, where)
    return statement


def _blocks(tree: ast.AST) -> Iterator[tuple[list[ast.stmt], int]]:
    """Statements of a function and of its branches, but not of loops and functions inside."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(tree, name, [])
        for at, statement in enumerate(block):
            yield block, at
            if isinstance(statement, (ast.If, ast.With, ast.Try)):
                yield from _blocks(statement)


def _is_loop(statement: ast.stmt) -> bool:
    """Whether a loop numbers modules, or is one over numbers, and looks somewhere for its number."""
    if not isinstance(statement, ast.For) or not isinstance(statement.iter, ast.Call):
        return False
    named = isinstance(statement.iter.func, ast.Name) and statement.iter.func.id in {"enumerate", "range"}
    calls = {called(node) for node in ast.walk(statement) if isinstance(node, ast.Call)}
    return named and bool(calls & {"where", "nonzero", "any", "argwhere"})
