"""The last look at a patched file: it is Python, and nothing but the functions that a rule named was changed."""

import ast
from collections.abc import Collection

from hotlap.records.errors import HotlapError
from hotlap.source.project import Project

from .edits import Touched

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Overreach(HotlapError):
    """A rule changed more than it said: a mistake of hotlap's, so nothing is written."""


def check(before: Project, after: Project, touched: Collection[Touched]) -> None:
    """Raises Overreach where a function that no rule named is not what it was, or a file compiles no more."""
    for path, new in after.sources.items():
        old, named = before.sources[path], {item.function for item in touched if item.path == path}
        if new.data == old.data:
            continue
        try:
            compile(new.data, new.shown, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise Overreach(f"{new.shown} would not compile any more: {error}; nothing is written") from error
        was, now = definitions(ast.parse(old.data)), definitions(ast.parse(new.data))
        if was.keys() != now.keys():
            raise Overreach(f"{new.shown}: a function would come or go; nothing is written")
        for name, text in was.items():
            if name not in named and now[name] != text:
                what = name or "the top of the file"
                raise Overreach(f"{new.shown}: {what} would be changed unasked; nothing is written")


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
