"""Which functions of the user's make the loss: told by the source around the line that calls the backward.

Nothing is run for it, and no frame is asked for its variables: that would keep them alive.
"""

import ast
import dis
import linecache
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

LOOKS: Final = 16
"""Backwards of which the line is looked at; a GAN has several."""
MOST_LINES: Final = 20_000
MOST_MAKERS: Final = 4
DEEPEST: Final = 4
"""Variables between a backward and the call that made its loss, as in `loss = loss / n`."""
WORKS: Final = ("CALL", "BINARY_OP", "COMPARE_OP", "UNARY_NEGATIVE", "BINARY_POWER")
"""Instructions that may be an op of torch's, by how they begin."""
COMBINING: Final = frozenset(("scale", "mean", "sum", "stack", "cat", "add", "mul", "div"))
"""Calls whose result is of the losses that they are given."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Frame = ast.Module | Function


class Maker(NamedTuple):
    """A function that makes a loss, and the dictionary and name by which the caller finds it."""

    function: Any
    holder: dict[str, Any]
    name: str


class Lines:
    """Lines that call a backward, each looked at once, LOOKS of them at most. users: whether a file is the user's."""

    def __init__(self, users: Callable[[str], bool]) -> None:
        self._users, self._seen, self.left = users, set[tuple[CodeType, int]](), LOOKS

    def makers(self, frame: FrameType | None) -> list[Maker]:
        """Of the loss whose backward is called inside of a frame; none where its line was seen before."""
        self.left -= 1
        while frame is not None and not self._users(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None or (frame.f_code, frame.f_lineno) in self._seen:
            return []
        self._seen.add((frame.f_code, frame.f_lineno))
        return makers(frame, self._users)


def makers(frame: FrameType, users: Callable[[str], bool]) -> list[Maker]:
    """The user's functions whose results the line of a frame, which calls a backward, takes: at once or through
    variables of the function that it is in."""
    scope = _scope(frame)
    statement = None if scope is None else _statement(scope, frame.f_lineno)
    if scope is None or statement is None:
        return []
    found = _calls(_of_backward(statement.node), scope, statement, DEEPEST)
    resolved = (_resolved(call.func, frame, users) for call in found)
    return list({(id(maker.holder), maker.name): maker for maker in resolved if maker is not None}.values())[
        :MOST_MAKERS
    ]


def _scope(frame: FrameType) -> Frame | None:
    """The source of what a frame runs: a module or a function."""
    lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    if not lines or len(lines) > MOST_LINES:
        return None
    try:
        module = ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
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
    """A statement of a scope. blocks: those that it lies in, the outermost first."""

    node: ast.stmt
    blocks: tuple[Block, ...]

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
                found.append(Own(node, blocks))
                waiting += [(node, inner, blocks) for inner in _blocks(node)]
    return sorted(found, key=lambda one: one.begins)


def _blocks(node: ast.stmt) -> list[list[ast.stmt]]:
    """Of an `if`, a loop, a `with`, a `try` or a `match`."""
    parts = [node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())]
    blocks = [getattr(part, name, None) for part in parts for name in ("body", "orelse", "finalbody")]
    return [block for block in blocks if isinstance(block, list) and block]


def _statement(scope: Frame, line: int) -> Own | None:
    """The innermost one at a line that calls a backward."""
    return next((one for one in _own(scope)[::-1] if _holds(one.node, line) and _of_backward(one.node)), None)


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


def _calls(values: Iterable[ast.AST], scope: Frame, before: Own, deep: int) -> list[ast.Call]:
    """Calls in expressions, and those that made the variables in them before a statement. What a call is given is not
    looked at, but for what only adds up."""
    found: list[ast.Call] = []
    names: set[str] = set()
    waiting = list(values)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call):
            found.append(node)
            waiting += [node.func.value] if isinstance(node.func, ast.Attribute) else []
            waiting += node.args if _called(node) in COMBINING else []
        elif isinstance(node, ast.Name):
            names.add(node.id)
        else:
            waiting += ast.iter_child_nodes(node)
    for name in names if deep else ():
        for made in _made(name, scope, before):
            found += _calls(made.values, scope, made.own, deep - 1)
    return found


class Made(NamedTuple):
    """A statement that sets a variable, and what it sets it to."""

    own: Own
    values: list[ast.AST]


def _made(name: str, scope: Frame, before: Own) -> Iterator[Made]:
    """The last statement before another that sets a variable, and those before it as long as these may be passed by,
    such as the branches of an `if`."""
    for one in reversed(_own(scope)):
        if one.begins < before.begins and name in _targets(one.node) and not one.never_after(before):
            assert isinstance(one.node, (ast.Assign, ast.AnnAssign, ast.AugAssign))
            adds = isinstance(one.node, ast.AugAssign)
            if one.node.value is not None:
                yield Made(one, [one.node.value])
            if one.blocks[-1] in before.blocks and not adds:
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


def _resolved(func: ast.expr, frame: FrameType, users: Callable[[str], bool]) -> Maker | None:
    """The user's function that an expression names, by a name of its module or `module.name`; None for all else."""
    code = frame.f_code
    local = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
    holder, name = frame.f_globals, func.id if isinstance(func, ast.Name) else ""
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id not in local:
        module = frame.f_globals.get(func.value.id)
        if not isinstance(module, ModuleType):
            return None
        holder, name = vars(module), func.attr
    elif not name or name in local:
        return None
    function = holder.get(name)
    if not isinstance(function, FunctionType) or not users(function.__code__.co_filename):
        return None
    return Maker(function, holder, name)


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
