"""Lists that the user's code searches by `in`, read from the frame of a thread that runs it, as far as that runs no
code of the user's: names, attributes as they lie in the object, items of dicts and lists.

A look at a thread does not find it in a search, which never lets the interpreter's lock go, but at what comes next. So
all searches of the function that it is in are read, and timed here once: in a list of numbers or texts, for one that is
not there.
"""

import ast
import collections
import contextlib
import inspect
import os
import sys
import time
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, Final

MOST_READS: Final = 8
"""Of a function: other lists are longer or shorter, and not each look finds all of its variables."""
LONGEST_FILE, LONGEST_LIST = 1 << 20, 1 << 20
DICTS: Final = frozenset({dict, collections.defaultdict, collections.OrderedDict})
LISTS: Final = frozenset({list, tuple, collections.deque})
PLAIN: Final = frozenset({int, str, float, bytes, bool})
ASKS: Final = frozenset({"locals", "vars", "dir", "eval", "exec"})
"""Names in a function that may hold the dict of its variables, which Python up to 3.12 makes once for all who ask."""
Search = tuple[int, str, ast.expr]
"""Line, the list's expression as a text, and itself."""


class Unread(Exception):
    """What can't be told without running code of the user's."""


class Searched:
    """By file and line of a search the list's expression, its entries and the time of a search, us, of the longest."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, int], tuple[str, int, float]] = {}
        self._reads: collections.Counter[CodeType] = collections.Counter()
        self._files: dict[str, ast.Module | None] = {}
        self._searches: dict[CodeType, list[Search]] = {}

    def look(self, thread: int, code: CodeType) -> bool:
        """Read what the function that a thread is in searches. Returns whether that took time."""
        if self._reads[code] >= MOST_READS:
            return False
        first = code not in self._searches
        if first:
            self._searches[code] = list(self._of(code))
        self._reads[code] += 1 if self._searches[code] else MOST_READS
        frame = sys._current_frames().get(thread)
        if not self._searches[code] or frame is None or frame.f_code is not code or frame.f_trace is not None:
            return first
        for line, text, values in _values(frame, self._searches[code]):
            with contextlib.suppress(RuntimeError):  # a deque that changes meanwhile
                at, took = (os.path.abspath(code.co_filename), line), _took_us(values)
                if took is not None and (at not in self.found or self.found[at][1] < len(values)):
                    self.found[at] = text, len(values), took
        return True

    def _of(self, code: CodeType) -> Iterator[Search]:
        if ASKS & {*code.co_names} or not (code.co_flags & inspect.CO_OPTIMIZED or code.co_name == "<module>"):
            return
        module = self._parsed(code.co_filename)
        lines = [line for *_, line in code.co_lines() if line]
        for node in ast.walk(module) if module is not None and lines else ():
            if isinstance(node, ast.Compare) and min(lines) <= node.lineno <= max(lines):
                for op, of in zip(node.ops, node.comparators, strict=True):
                    if isinstance(op, (ast.In, ast.NotIn)):
                        yield node.lineno, ast.unparse(of), of

    def _parsed(self, file: str) -> ast.Module | None:
        if file not in self._files:
            self._files[file] = None
            try:
                with open(file, "rb") as source:
                    self._files[file] = ast.parse(source.read(LONGEST_FILE))
            except (OSError, SyntaxError, ValueError, RecursionError):
                pass
        return self._files[file]


def _values(frame: FrameType, searches: list[Search]) -> Iterator[tuple[int, str, Any]]:
    """What lists the searches go through. The dict of the frame's variables would keep them alive: it is emptied where
    it was made here."""
    variables = frame.f_locals
    try:
        for line, text, of in searches:
            try:
                value = _read(of, variables, frame.f_globals)
            except (Unread, RuntimeError):
                continue
            if type(value) in LISTS:
                yield line, text, value
    finally:
        if variables is not frame.f_globals and type(variables) is dict and sys.getrefcount(variables) <= 3:
            variables.clear()


def _read(node: ast.expr, variables: Any, of_file: dict[str, Any]) -> Any:
    """The value of an expression, or Unread."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        for names in (variables, of_file):
            if node.id in names:
                return names[node.id]
    elif isinstance(node, ast.Attribute):
        return inspect.getattr_static(_read(node.value, variables, of_file), node.attr, None)
    elif isinstance(node, ast.Subscript):
        of = _read(node.value, variables, of_file)
        try:
            key = _read(node.slice, variables, of_file)
        except Unread:  # as of a call: then one of them stands for all
            key = next(iter(of), None) if type(of) in DICTS else 0
        return _item(of, key)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        of = _read(node.func.value, variables, of_file)
        if type(of) in DICTS:
            return _item(of, _read(node.args[0], variables, of_file))
    raise Unread


def _item(of: Any, key: Any) -> Any:
    if not _is_plain(type(key)):
        raise Unread
    if type(of) in DICTS:
        return dict.get(of, key)
    if type(of) in LISTS and not isinstance(key, (str, float, bytes)) and -len(of) <= int(key) < len(of):
        return of[int(key)]
    raise Unread


def _is_plain(kind: type) -> bool:
    return kind in PLAIN or (kind.__module__ == "numpy" and kind.__name__.startswith(("int", "uint", "float", "str")))


def _took_us(values: Any) -> float | None:
    """Of a search for what is not there; None of a list whose entries have an `__eq__` of the user's, or none."""
    if not 0 < len(values) <= LONGEST_LIST:
        return None
    kinds = set(map(type, values))
    if not all(map(_is_plain, kinds)):
        return None
    absent: Any = "\0 not there" if kinds <= {str} else -(1 << 61)
    begun = time.perf_counter_ns()
    _ = absent in values
    return (time.perf_counter_ns() - begun) / 1000
