"""Reads one Python file of the user's."""

import ast
from pathlib import Path
from typing import Final

import libcst as cst

from hotlap.records.errors import RecordError
from hotlap.records.files import read_bytes

from .scopes import Source

LONGEST_FILE: Final = 2 << 20
"""Bytes. Written by hand, a file has a tenth of it at most."""


class Unreadable(RecordError):
    """A file of the user's that can't be read as Python."""


def parse(path: Path, shown: str, module: str, data: bytes) -> Source:
    """Bytes as a source file. Raises Unreadable where they are no Python, or don't come back byte for byte."""
    try:
        ast.parse(data)
        tree = cst.parse_module(data)
        source = Source(path, shown, module, data, tree)
        if tree.bytes != data or not source.walk.scopes:
            raise Unreadable(f"{shown}: reading and writing it would change its text; it is left alone")
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
