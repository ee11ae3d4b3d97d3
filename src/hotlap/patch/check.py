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
    _collect(tree, "", found)
    return found


def _collect(node: ast.Module | Definition, name: str, found: dict[str, list[str]]) -> None:
    inner: list[Definition] = []
    stripped = _Strip(inner)
    body = [stripped.visit(statement) for statement in node.body]
    head = [] if isinstance(node, ast.Module) else [ast.dump(other) for other in _head(node)]
    found.setdefault(name, []).extend([*head, *(ast.dump(statement) for statement in body)])
    for definition in inner:
        _collect(definition, f"{name}.{definition.name}".lstrip("."), found)


def _head(node: Definition) -> list[ast.AST]:
    """Decorators, bases, parameters, annotations."""
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.bases, *node.keywords]
    return [*node.decorator_list, node.args, *([node.returns] if node.returns else [])]


class _Strip(ast.NodeTransformer):
    """Takes definitions out of a body, leaving their names."""

    def __init__(self, inner: list[Definition]) -> None:
        self.inner = inner

    def _out(self, node: Definition) -> ast.AST:
        self.inner.append(node)
        return ast.Expr(ast.Constant(f"<{node.name}>"))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._out(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._out(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._out(node)
