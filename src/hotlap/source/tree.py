"""One Python file of the user's: its bytes, its concrete syntax tree, positions and parents in it."""

import ast
import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final, TypeVar

import libcst as cst
from libcst.metadata import CodePosition, CodeRange, MetadataWrapper, PositionProvider

from hotlap.records.errors import RecordError
from hotlap.records.files import read_bytes
from hotlap.records.patch import Line

from .scopes import Scoped, Walk, hand_over

LONGEST_FILE: Final = 2 << 20
"""Bytes. Written by hand, a file has a tenth of it at most."""
LONGEST_LINE: Final = 200

N = TypeVar("N", bound=cst.CSTNode)


class Unreadable(RecordError):
    """A file of the user's that can't be read as Python."""


@dataclass(frozen=True, eq=False)
class Source:
    """A file and its syntax tree. path: absolute; shown: as the user would write it, relative to the command's folder;
    module: its dotted name for imports ("" where it has none)."""

    path: Path
    shown: str
    module: str
    data: bytes
    tree: cst.Module

    @cached_property
    def _positions(self) -> dict[cst.CSTNode, CodeRange]:
        return dict(MetadataWrapper(self.tree, unsafe_skip_copy=True).resolve(PositionProvider))

    @cached_property
    def walk(self) -> Walk:
        """Its scopes, calls and parents."""
        walk = Walk(self)
        self.tree.visit(walk)
        for scope in walk.scopes.values():
            hand_over(scope)
        return walk

    @property
    def package(self) -> str:
        """The dotted name that its relative imports start from."""
        return self.module if self.path.name == "__init__.py" else self.module.rpartition(".")[0]

    @cached_property
    def lines(self) -> list[str]:
        """The text by line."""
        return self.data.decode(self.tree.encoding, "replace").split("\n")

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node around a node."""
        return self.walk.parents.get(node)

    def line(self, node: cst.CSTNode) -> int:
        """The line that a node begins in, from 1."""
        return self._positions[node].start.line

    def column(self, node: cst.CSTNode) -> int:
        """The column that a node begins in, from 0."""
        return self._positions[node].start.column

    def end(self, node: cst.CSTNode) -> CodePosition:
        """Where a node ends."""
        return self._positions[node].end

    def place(self, node: cst.CSTNode) -> Line:
        """Where a node stands, as the user is told."""
        number = self.line(node)
        text = self.lines[number - 1].strip() if number <= len(self.lines) else ""
        return Line(file=self.shown, line=number, text=text[:LONGEST_LINE])

    def around(self, node: cst.CSTNode, *kinds: type[N]) -> N | None:
        """The innermost node of these kinds around a node."""
        found = self.parent(node)
        while found is not None and not isinstance(found, kinds):
            found = self.parent(found)
        return found

    def scope(self, node: cst.CSTNode) -> Scoped:
        """The function, class, lambda or module that a node stands in."""
        return self.around(node, cst.FunctionDef, cst.ClassDef, cst.Lambda, cst.Module) or self.tree

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes."""
        return hashlib.sha256(self.data).hexdigest()


def parse(path: Path, shown: str, module: str, data: bytes) -> Source:
    """Bytes as a source file. Raises Unreadable where they are no Python, or don't come back byte for byte."""
    try:
        ast.parse(data)
        tree = cst.parse_module(data)
        source = Source(path, shown, module, data, tree)
        if tree.bytes != data or not source.walk.scopes:
            raise Unreadable(f"{shown}: its text does not survive being read and written; it is left alone")
    except SyntaxError as error:
        raise Unreadable(f"{shown}:{error.lineno or 1}: {error.msg}; it is left alone") from error
    except (cst.ParserSyntaxError, UnicodeError, ValueError, LookupError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise Unreadable(f"{shown}: {first}; it is left alone") from error
    except (RecursionError, MemoryError) as error:
        raise Unreadable(f"{shown} is nested too deeply; it is left alone") from error
    return source


def read(path: Path, shown: str, module: str) -> Source:
    """A file of the user's. Raises Unreadable."""
    try:
        data = read_bytes(path, LONGEST_FILE)
    except RecordError as error:
        raise Unreadable(f"{error}; it is left alone") from error
    return parse(path, shown, module, data)


def rewritten(source: Source, tree: cst.Module) -> Source:
    """The file with another tree, read anew. Raises Unreadable where the result is no Python."""
    data = tree.bytes
    try:
        return replace(source, data=data, tree=cst.parse_module(data))
    except cst.ParserSyntaxError as error:
        raise Unreadable(f"{source.shown}: {error.message}") from error
