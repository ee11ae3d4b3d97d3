"""Whether what a statement makes is handed to the model: by names, in the function that holds both lines.

Read from the source, in the order of its lines, once around the loop. What is not understood is not handed.
"""

import ast
import builtins
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Final

from hotlap.records.diagnosis import Place

from .source import SCOPES, called_in, calls_in, function_at, is_block, loops_at, name_at, parsed, simple_at
from .uses import kept_in

ELSE: Final = frozenset({"print", "reset", "step"})
"""Calls in a statement that do more than make a batch: an environment's are its own cause."""
Names = frozenset[str]


def is_handed(maker: Place, models: Collection[Place], runs: Names = frozenset()) -> bool:
    """Whether what the statement at a line assigns reaches a line of its function that calls the model, and is not made
    of what the model gave. models: these lines; runs: functions in which a model runs."""
    own, scope = simple_at(maker), function_at(maker) or parsed(maker.file)
    takers = [one for one in map(simple_at, models) if one is not None and one is not own]
    if own is None or scope is None or not (made := _made(own)) or not takers or called_in(own) & ELSE:
        return False
    around = (one for one in loops_at(maker) if any(_holds(one, taker) for taker in takers))
    loop = next(around, None)
    ordered = list(_statements(scope.body if loop is None else [loop]))
    if _read(own) & _of_model(ordered, takers, runs, _no_models(maker.file)):
        return False
    behind = [one for one in ordered if one.lineno > own.lineno]
    return _reaches(made, [*behind, *(ordered if loop is not None else ())], takers)


def is_argument(function: str, at: Place) -> bool:
    """Whether the statement at a line calls a function of the user's for what it gives another one, and gives it
    nothing that it computes there: `train(model, sample(64))`."""
    own = simple_at(at)
    for outer in calls_in(own) if own is not None else ():
        inner = (call for given in (*outer.args, *(one.value for one in outer.keywords)) for call in calls_in(given))
        if any(name_at(one.func) == function and len(list(calls_in(one))) == 1 for one in inner):
            return True
    return False


def _reaches(made: Names, ordered: Sequence[ast.stmt], takers: Sequence[ast.stmt]) -> bool:
    for one in ordered:
        read = _read(one)
        if one in takers and (read - _called(one)) & made:
            return True
        if read & made:
            made |= _made(one)
        else:
            made -= _stored(one)
    return False


def _of_model(ordered: Sequence[ast.stmt], takers: Sequence[ast.stmt], runs: Names, no_models: Names) -> Names:
    """Names of the model, as it is called, of what has it, as an agent, and of all that is made of what it gives; of
    what outlives a turn of the loop, as a memory of past steps, only what is assigned."""
    anew = frozenset(name for one in ordered for name in _stored(one))
    called = frozenset(name for one in takers for name in _called(one))
    roots = frozenset(name.split(".")[0] for name in called) - anew - no_models - {"self"}
    found = roots | frozenset(name for name in called if name.split(".")[0] not in no_models)
    found |= frozenset(name for one in ordered if one in takers or called_in(*_head(one)) & runs for name in _made(one))
    while True:
        more = (_made(one) for one in ordered if _read(one) & found)
        added = frozenset(name for names in more for name in names if name in anew)
        if added <= found:
            return found
        found |= added


@lru_cache(maxsize=64)
def _no_models(file: str) -> Names:
    """Names that a file imports or defines, and Python's own."""
    nodes = list(ast.walk(parsed(file) or ast.Pass()))
    imported = (one for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)) for one in node.names)
    defined = (node.name for node in nodes if isinstance(node, SCOPES))
    return frozenset({*((one.asname or one.name).split(".")[0] for one in imported), *defined, *dir(builtins)})


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """In the order of their lines, with the heads of those that hold others, without functions inside."""
    for one in body:
        if isinstance(one, SCOPES):
            continue
        yield one
        for name in ("body", "orelse", "handlers", "finalbody"):
            for each in getattr(one, name, ()):
                yield from _statements(each.body if isinstance(each, ast.ExceptHandler) else [each])


def _head(own: ast.stmt) -> list[ast.AST]:
    """What a statement itself holds, without the statements in it."""
    if not is_block(own):
        return [own]
    return [one for one in ast.iter_child_nodes(own) if not isinstance(one, (ast.stmt, ast.ExceptHandler))]


def _made(own: ast.stmt) -> Names:
    """What a statement assigns, or keeps more in."""
    return frozenset({*_stored(own), kept_in(own)} - {""})


def _stored(own: ast.stmt) -> Names:
    """`x` and `self.x`."""
    return frozenset(ast.unparse(one) for one in _names(own) if isinstance(one.ctx, ast.Store))


def _read(own: ast.stmt) -> Names:
    return frozenset(ast.unparse(one) for one in _names(own) if isinstance(one.ctx, ast.Load))


def _names(own: ast.stmt) -> Iterator[ast.Name | ast.Attribute]:
    return (one for part in _head(own) for one in ast.walk(part) if isinstance(one, (ast.Name, ast.Attribute)))


def _called(own: ast.stmt) -> Names:
    """What a statement calls: `model`, `self.model`."""
    funcs = (call.func for call in calls_in(own))
    return frozenset(ast.unparse(one) for one in funcs if isinstance(one, (ast.Name, ast.Attribute)))


def _holds(loop: ast.stmt, one: ast.stmt) -> bool:
    return loop.lineno <= one.lineno <= (loop.end_lineno or 0)
