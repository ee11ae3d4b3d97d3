"""The last look at a patched file: it is Python, and nothing but the functions that a rule named was changed."""

import ast
from collections.abc import Iterable

from hotlap.records.errors import HotlapError
from hotlap.source.project import Project
from hotlap.source.tree import Source

from .edits import Touched

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Overreach(HotlapError):
    """A rule changed more than it said: a mistake of hotlap's, so nothing is written."""


def check(before: Project, after: Project, touched: Iterable[Touched]) -> None:
    """Raises Overreach where a function that no rule named is not what it was, or a file compiles no more."""
    named = set(touched)
    for path, source in after.sources.items():
        old = before.sources[path]
        if source.data != old.data:
            _check(old, source, {item.function for item in named if item.path == path})


def _check(old: Source, new: Source, named: set[str]) -> None:
    try:
        compile(new.data, new.shown, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise Overreach(f"{new.shown} would not compile any more: {error}; nothing is written") from error
    was, now = definitions(ast.parse(old.data)), definitions(ast.parse(new.data))
    if was.keys() != now.keys():
        raise Overreach(f"{new.shown}: a function would come or go; nothing is written")
    for name, text in was.items():
        if name not in named and now[name] != text:
            raise Overreach(
                f"{new.shown}: {name or 'the top of the file'} would be changed unasked; nothing is written"
            )


def definitions(tree: ast.Module) -> dict[str, list[str]]:
    """What each function and class holds, without those inside it, by qualified name ("" for the module)."""
    found: dict[str, list[str]] = {}
    waiting: list[tuple[str, ast.Module | Definition]] = [("", tree)]
    for name, node in waiting:
        strip = _Strip()
        found.setdefault(name, []).append(ast.dump(strip.generic_visit(node)))
        waiting += [(f"{name}.{inner.name}".lstrip("."), inner) for inner in strip.inner]
    return found


class _Strip(ast.NodeTransformer):
    """Takes definitions out of a body, leaving their names."""

    def __init__(self) -> None:
        self.inner: list[Definition] = []

    def visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, Definition):
            return self.generic_visit(node)
        self.inner.append(node)
        return ast.Expr(ast.Constant(f"<{node.name}>"))
