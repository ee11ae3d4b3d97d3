"""Which functions of the user's make the loss: told by the source around the line that calls the backward.

Nothing is run for it, and no frame is asked for its variables: that would keep them alive.
"""

import ast
import dis
import linecache
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

from .warned import filtered

NAME: Final = "<a script that hotlap reads>"
LOOKS: Final = 16
"""Backwards of which the line is looked at; a GAN has several."""
MOST_LINES: Final = 10_000
MOST_STATEMENTS: Final = 500
MOST_MAKERS: Final = 4
DEEPEST: Final = 4
"""Variables between a backward and the call that made its loss, as in `loss = loss / n`."""
WORKS: Final = ("CALL", "BINARY_OP", "COMPARE_OP", "UNARY_NEGATIVE", "BINARY_POWER")
"""Instructions that may be an op of torch's, by how they begin."""
COMBINING: Final = frozenset(("scale", "mean", "sum", "stack", "cat", "add", "mul", "div"))
"""Calls whose result is of the losses that they are given."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Frame = ast.Module | Function


class Lines:
    """Lines that call a backward, each looked at once, LOOKS of them at most. users: whether a file is the user's."""

    def __init__(self, users: Callable[[str], bool]) -> None:
        self._users, self._seen, self.left = users, set[tuple[CodeType, int]](), LOOKS
        self._parsed: dict[str, ast.Module | None] = {}

    def makers(self, frame: FrameType | None) -> list[FunctionType]:
        """The user's functions whose results a backward takes that is called inside of a frame: at once or through
        variables of the function that it is in. None where its line was seen before."""
        self.left -= 1
        while frame is not None and not self._users(frame.f_code.co_filename):
            frame = frame.f_back
        found: list[FunctionType] = []
        if frame is not None and (frame.f_code, frame.f_lineno) not in self._seen:
            self._seen.add((frame.f_code, frame.f_lineno))
            found = self._made_for(frame)
        if self.left == 0:
            self._parsed = {}
        return found

    def _made_for(self, frame: FrameType) -> list[FunctionType]:
        name = frame.f_code.co_filename
        if name not in self._parsed:
            self._parsed[name] = _parsed(linecache.getlines(name, frame.f_globals))
        scope = _scope(self._parsed[name], frame)
        own = [] if scope is None else _own(scope)
        statement = _statement(own, frame.f_lineno)
        calls = [] if statement is None else _calls(own, statement)
        functions = (_resolved(call.func, frame, self._users) for call in calls)
        return list(dict.fromkeys(one for one in functions if one is not None))[:MOST_MAKERS]


def _parsed(lines: list[str]) -> ast.Module | None:
    if not lines or len(lines) > MOST_LINES:
        return None
    try:
        with filtered("ignore", module=NAME):  # the script has had those of its source
            return ast.parse("".join(lines), NAME)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _scope(module: ast.Module | None, frame: FrameType) -> Frame | None:
    """The source of what a frame runs: a module or a function."""
    if module is None:
        return None
    inside = [one for one in ast.walk(module) if isinstance(one, Function) and _holds(one, frame.f_lineno)]
    innermost = max(inside, key=lambda one: one.lineno, default=None)
    if innermost is None:
        return module if frame.f_code.co_name == "<module>" else None
    return innermost if innermost.name == frame.f_code.co_name else None


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


class Block(NamedTuple):
    """Statements that run one after another. of: what they are a part of."""

    of: ast.AST
    first: ast.stmt


class Own(NamedTuple):
    """A statement of a scope. blocks: those that it lies in, the outermost first; sets: variables."""

    node: ast.stmt
    blocks: tuple[Block, ...]
    sets: frozenset[str]

    @property
    def begins(self) -> tuple[int, int]:
        return self.node.lineno, self.node.col_offset

    def never_after(self, other: "Own") -> bool:
        """Whether the two lie in different branches of an `if` or a `match`."""
        apart = next(((one, two) for one, two in zip(self.blocks, other.blocks, strict=False) if one != two), None)
        return apart is not None and apart[0].of is apart[1].of and isinstance(apart[0].of, (ast.If, ast.Match))


def _own(scope: Frame) -> list[Own]:
    """Statements of a scope, and those in their blocks, but not of functions and classes in it; in their order."""
    found: list[Own] = []
    waiting: list[tuple[ast.AST, list[ast.stmt], tuple[Block, ...]]] = [(scope, scope.body, ())]
    while waiting:
        of, block, around = waiting.pop()
        blocks = (*around, Block(of, block[0]))
        for node in block:
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.append(Own(node, blocks, frozenset(_targets(node))))
                waiting += [(node, inner, blocks) for inner in _blocks(node)]
    return sorted(found, key=lambda one: one.begins)


def _blocks(node: ast.stmt) -> list[list[ast.stmt]]:
    """Of an `if`, a loop, a `with`, a `try` or a `match`."""
    parts = [node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())]
    blocks = [getattr(part, name, None) for part in parts for name in ("body", "orelse", "finalbody")]
    return [block for block in blocks if isinstance(block, list) and block]


def _statement(own: list[Own], line: int) -> Own | None:
    """The innermost one at a line that calls a backward."""
    return next((one for one in own[::-1] if _holds(one.node, line) and _of_backward(one.node)), None)


def _of_backward(statement: ast.stmt) -> list[ast.expr]:
    """What calls of a backward in a statement take: `loss` of `scaler.scale(loss).backward()`."""
    calls = [one for one in ast.walk(statement) if isinstance(one, ast.Call)]
    found: list[ast.expr] = []
    for call in calls:
        if "backward" in _called(call) or _called(call) == "grad":
            found += [*([call.func.value] if isinstance(call.func, ast.Attribute) else ()), *call.args]
    return found


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _calls(own: list[Own], backward: Own) -> list[ast.Call]:
    """Calls in what a backward takes, and those that made the variables in it. What a call is given is not looked at,
    but for what only adds up. Each statement is looked at once, MOST_STATEMENTS of them at most."""
    found: list[ast.Call] = []
    waiting: list[tuple[Iterable[ast.AST], Own, int]] = [(_of_backward(backward.node), backward, DEEPEST)]
    seen: set[tuple[str, Own]] = set()
    for values, before, deep in waiting:  # it grows meanwhile: the nearest come first
        calls, names = _inside(values)
        found += calls
        for name in names if deep else ():
            made = [one for one in _made(name, own, before) if (name, one) not in seen]
            seen |= {(name, one) for one in made}
            waiting += [(_value(one.node), one, deep - 1) for one in made]
        if len(seen) > MOST_STATEMENTS:
            break
    return found


def _inside(values: Iterable[ast.AST]) -> tuple[list[ast.Call], list[str]]:
    """Calls and variables in expressions."""
    calls: list[ast.Call] = []
    names: dict[str, None] = {}
    waiting = list(values)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Call):
            calls.append(node)
            waiting += [node.func.value] if isinstance(node.func, ast.Attribute) else []
            waiting += node.args if _called(node) in COMBINING else []
        elif isinstance(node, ast.Name):
            names[node.id] = None
        else:
            waiting += ast.iter_child_nodes(node)
    return calls, list(names)


def _value(node: ast.stmt) -> list[ast.AST]:
    value = getattr(node, "value", None)
    return [] if value is None else [value]


def _made(name: str, own: list[Own], before: Own) -> Iterator[Own]:
    """The last statement before another that sets a variable, and those before it as long as these may be passed by,
    such as the branches of an `if`, or only add to it."""
    for one in reversed(own):
        if one.begins < before.begins and name in one.sets and not one.never_after(before):
            yield one
            if one.blocks[-1] in before.blocks and not isinstance(one.node, ast.AugAssign):
                return


def _targets(statement: ast.stmt) -> set[str]:
    """The variables that a statement sets."""
    if isinstance(statement, ast.Assign):
        targets: list[ast.expr] = statement.targets
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        targets = [statement.target]
    else:
        return set()
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


def _resolved(func: ast.expr, frame: FrameType, users: Callable[[str], bool]) -> FunctionType | None:
    """The user's function that an expression names, by a name of its module or `module.name`; None for all else."""
    code = frame.f_code
    local = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    function = frame.f_globals.get(func.id) if isinstance(func, ast.Name) and func.id not in local else None
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id not in local:
        module = frame.f_globals.get(func.value.id)
        function = vars(module).get(func.attr) if isinstance(module, ModuleType) else None
    return function if isinstance(function, FunctionType) and users(function.__code__.co_filename) else None


def forward_of(module: Any) -> Any:
    """The function of its class."""
    return type(module).forward


def operations(function: FunctionType) -> int:
    """Calls and operators in a function's code, of which most are ops of torch's; those of an inner loop count once."""
    return sum(one.opname.startswith(WORKS) for one in _instructions(function.__code__))


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _instructions(inner)
