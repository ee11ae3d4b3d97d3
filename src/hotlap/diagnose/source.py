"""The user's source, read for the line that a finding is about. What can't be read or parsed says nothing."""

import ast
import contextlib
import io
import os
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Final

from hotlap.records.diagnosis import Place
from hotlap.records.errors import RecordError
from hotlap.records.files import read_bytes
from hotlap.records.run import Facts

MOST_BYTES: Final = 1 << 20
SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Loop = ast.For | ast.While


_REFUSED: Final[ContextVar[set[str] | None]] = ContextVar("refused", default=None)
_INSTALLED: Final = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}


@contextlib.contextmanager
def reading_here() -> Iterator[set[str]]:
    """In here no source outside of the current folder is quoted: which files are named is up to whoever wrote the
    record. Installed ones may be searched, but no line of them is looked at. Yields those that were refused so far."""
    before = _REFUSED.set(refused := set[str]())
    try:
        yield refused
    finally:
        _REFUSED.reset(before)


def _may_read(file: str, search: bool = False) -> bool:
    """search: the file as a whole. What is quoted is of a line of it, for which is asked again."""
    refused = _REFUSED.get()
    if refused is None:
        return True
    path, folders = Path(os.path.abspath(file)), {Path.cwd(), *(_INSTALLED if search else ())}  # noqa: PTH100 - a NUL
    if any(map(path.is_relative_to, folders)):
        return True
    refused.add(file)
    return False


def parsed(file: str) -> ast.Module | None:
    """A file's syntax tree."""
    return _parsed(file) if _may_read(file, search=True) else None


@lru_cache(maxsize=64)
def _parsed(file: str) -> ast.Module | None:
    path = Path(file)
    try:
        if path.suffix != ".py" or path.stat().st_size > MOST_BYTES:
            return None
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def lines_of(path: Path) -> list[str]:
    """The lines of a file of Python source; none where it is not there, large, or may not be read."""
    try:
        if path.suffix != ".py" or not _may_read(str(path)) or not path.is_file():
            return []
        text = read_bytes(path, MOST_BYTES).decode("utf-8", "replace")
        return [line.removesuffix("\n") for line in io.StringIO(text, None)]  # where Python has line ends, and no more
    except (RecordError, OSError, ValueError):  # a name that no file can have
        return []


def name_of(call: ast.Call) -> str:
    """`gc.collect` of `gc.collect()`; of a method of something that has no name, the method's own."""
    parts: list[str] = []
    at: ast.expr = call.func
    while isinstance(at, ast.Attribute):
        parts.append(at.attr)
        at = at.value
    return ".".join(reversed([*parts, at.id] if isinstance(at, ast.Name) else parts))


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    """All calls in a statement."""
    return (one for one in ast.walk(node) if isinstance(one, ast.Call))


def called_in(*nodes: ast.AST) -> set[str]:
    """The last names of all calls in them: `collect` of `gc.collect()`."""
    return {name_at(call.func) for node in nodes for call in calls_in(node)}


def files_of(facts: Facts | None) -> list[str]:
    """The script, and files of what was seen of it: of the loop first."""
    if facts is None:
        return []
    loops = [one.loop[0] for one in facts.loaders if one.loop]
    seen = (
        loops,
        [at[0] for one in facts.optimizers for at in (one.stepped, one.made) if at],
        [one.called[0] for one in facts.roots if one.called],
        [one.file for one in facts.roots],
        [one.file for one in facts.loaders],
    )
    return [*dict.fromkeys([*facts.argv[:1], *(file for files in seen for file in files if file)])]


def call_of(facts: Facts | None, names: Iterable[str]) -> Place | None:
    """The first call in the user's files whose name ends in one of these: `set_detect_anomaly`."""
    wanted = frozenset(names)
    return first_of(facts, lambda node: isinstance(node, ast.Call) and name_at(node.func) in wanted)


def mention_of(facts: Facts | None, names: Iterable[str]) -> Place | None:
    """The first name in the user's files that ends so: `torch.float64`."""
    wanted = frozenset(names)
    return first_of(facts, lambda node: isinstance(node, ast.Attribute) and node.attr in wanted)


def name_at(node: ast.AST) -> str:
    """`PAD` of `PAD` and of `config.PAD`; "" of what is no name."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def first_of(facts: Facts | None, is_it: Callable[[ast.AST], bool], more: Sequence[str] = ()) -> Place | None:
    """The first line in the user's files that holds what is asked for. more: files beside those that were seen."""
    for file in dict.fromkeys((*files_of(facts), *more)):
        tree = parsed(file)
        lines = [getattr(node, "lineno", 0) for node in ast.walk(tree) if is_it(node)] if tree is not None else []
        if lines:
            return place_at(file, min(lines))
    return None


def place_at(file: str, line: int) -> Place:
    """A line with the function that it is in."""
    function = function_at(Place(file=file, line=line))
    return Place(file=file, line=line, function=function.name if function is not None else None)


def function_at(place: Place) -> ast.FunctionDef | None:
    """The innermost function that holds a line."""
    return next((one for one in statements_at(place) if isinstance(one, ast.FunctionDef)), None)


def statements_at(place: Place) -> tuple[ast.stmt, ...]:
    """All statements that hold a line, the innermost first."""
    return _statements(place.file, place.line) if place.line is not None and _may_read(place.file) else ()


def statement_at(place: Place) -> ast.stmt | None:
    """The innermost statement that holds a line."""
    return next(iter(statements_at(place)), None)


def simple_at(place: Place) -> ast.stmt | None:
    """The statement at a line, unless that holds others."""
    own = statement_at(place)
    return None if own is None or is_block(own) else own


def is_block(own: ast.AST) -> bool:
    """Whether a statement holds others."""
    return hasattr(own, "body")


def statements_inside(place: Place) -> Iterator[ast.stmt]:
    """The same of the function or class that holds it."""
    return takewhile(lambda one: not isinstance(one, SCOPES), statements_at(place))


def loops_at(place: Place) -> Iterator[Loop]:
    """Loops around a line in its function, the innermost first."""
    return (one for one in statements_inside(place) if isinstance(one, Loop))


@lru_cache(maxsize=4096)
def _statements(file: str, line: int) -> tuple[ast.stmt, ...]:
    around = (one for one in _all_statements(file) if one.lineno <= line <= (one.end_lineno or 0))
    return tuple(sorted(around, key=lambda one: -one.lineno))


@lru_cache(maxsize=64)
def _all_statements(file: str) -> tuple[ast.stmt, ...]:
    tree = parsed(file)
    return tuple(one for one in ast.walk(tree) if isinstance(one, ast.stmt)) if tree is not None else ()


JOINS: Final = frozenset({"cat", "concat", "concatenate", "vstack", "hstack", "append"})


def growing(file: str, within: int | None = None) -> Iterator[Place]:
    """Where something is joined with more of its kind: `x = torch.cat([x, y])`. within: a line of the function in whose
    loops is looked. Without it, what outlives a step: attributes, and names in a loop that holds a backward."""
    if within is not None:
        in_loops, everywhere = list(_loops(function_at(Place(file=file, line=within)))), []
    else:
        in_loops, everywhere = [loop for loop in _loops(parsed(file)) if "backward" in called_in(loop)], [parsed(file)]
    for parts, kinds in ((in_loops, ast.expr), (everywhere, ast.Attribute)):
        for assignment in (node for part in parts if part for node in ast.walk(part) if isinstance(node, ast.Assign)):
            for call in joins_itself(assignment, kinds):
                yield place_at(file, call.lineno)


def joins_itself(assignment: ast.Assign, kinds: type[ast.expr] = ast.expr) -> Iterator[ast.Call]:
    """Calls that join what is assigned to, of these kinds, with more of its kind; so of rows in a comprehension."""
    targets = {ast.unparse(one) for one in assignment.targets if isinstance(one, kinds)}
    over = {ast.unparse(one) for one in ast.walk(assignment.value) if isinstance(one, ast.expr)}
    for call in calls_in(assignment.value):
        inner = {ast.unparse(one) for argument in call.args for one in ast.walk(argument) if isinstance(one, ast.expr)}
        parts = bool(call.args) and isinstance(call.args[0], (ast.List, ast.Tuple))
        rows = parts and isinstance(assignment.value, ast.ListComp) and targets & over
        if name_at(call.func) in JOINS and (targets & inner or rows):
            yield call


def _loops(node: ast.AST | None) -> Iterator[ast.AST]:
    return (one for one in ast.walk(node) if isinstance(one, Loop)) if node is not None else iter(())
