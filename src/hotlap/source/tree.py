"""One Python file of the user's: its bytes, its concrete syntax tree, positions and parents in it."""

import ast
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, TypeVar

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from hotlap.records.errors import RecordError
from hotlap.records.files import read_bytes
from hotlap.records.patch import Line

from .scopes import Scope, Walk

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
    def positions(self) -> Mapping[cst.CSTNode, CodeRange]:
        """Where each node begins and ends: lines from 1, columns from 0."""
        return dict(MetadataWrapper(self.tree, unsafe_skip_copy=True).resolve(PositionProvider))

    @cached_property
    def walk(self) -> Walk:
        """Its scopes, calls and parents."""
        walk = Walk(self)
        self.tree.visit(walk)
        return walk

    @property
    def top(self) -> Scope:
        """The scope of the module."""
        return self.walk.scopes[self.tree]

    @property
    def package(self) -> str:
        """The dotted name that its relative imports start from."""
        return self.module if self.path.name == "__init__.py" else self.module.rpartition(".")[0]

    @cached_property
    def lines(self) -> list[str]:
        """The text by line."""
        return self.data.decode(self.tree.encoding, "replace").split("\n")

    def code(self, node: cst.CSTNode) -> str:
        """The text of a node."""
        return self.tree.code_for_node(node)

    def line(self, node: cst.CSTNode) -> int:
        """The line that a node begins in, from 1."""
        return self.positions[node].start.line

    def end(self, node: cst.CSTNode) -> int:
        """The line that a node ends in."""
        return self.positions[node].end.line

    def place(self, node: cst.CSTNode) -> Line:
        """Where a node stands, as the user is told."""
        return self.place_of(self.line(node))

    def place_of(self, number: int) -> Line:
        """A line (from 1) with its text, as the user is told."""
        text = self.lines[number - 1].strip() if 0 < number <= len(self.lines) else ""
        return Line(file=self.shown, line=number, text=text[:LONGEST_LINE])

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node around a node."""
        return self.walk.parents.get(node)

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes around a node, innermost first."""
        found = self.parent(node)
        while found is not None:
            yield found
            found = self.parent(found)

    def around(self, node: cst.CSTNode, *kinds: type[N]) -> N | None:
        """The innermost node of these kinds around a node."""
        return next((found for found in self.above(node) if isinstance(found, kinds)), None)

    def inside(self, outer: cst.CSTNode, inner: cst.CSTNode) -> bool:
        """Whether a node is another one, or stands in it."""
        return outer is inner or any(found is outer for found in self.above(inner))

    def scope(self, node: cst.CSTNode) -> Scope:
        """The function, class, lambda or module that a node stands in."""
        scopes = self.walk.scopes
        return next((scopes[found] for found in self.above(node) if found in scopes), self.top)

    def every(self, *kinds: type[N]) -> Iterator[N]:
        """Every node of these kinds, as they stand in the file."""
        return (node for node in self.walk.parents if isinstance(node, kinds))

    def own_line(self, node: cst.CSTNode) -> cst.SimpleStatementLine | None:
        """The statement of a node, where it has a line of its own in an indented block or at the top of the file."""
        line = self.around(node, cst.SimpleStatementLine)
        if line is None or len(line.body) != 1:
            return None
        return line if isinstance(self.parent(line), cst.IndentedBlock | cst.Module) else None

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
