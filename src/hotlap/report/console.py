"""How hotlap writes to a terminal: numbers, bars, and text from outside made harmless.

Names, commands and reasons come from outside. They are shown through `plain`, never as rich markup.
"""

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text

from ..records.diagnosis import Place
from ..records.durations import ms, three

LONGEST_TEXT: Final = 1000
"""Characters of one piece of outside text that a screen shows."""
LEAST_WIDE: Final = 16
"""Columns for a cell that may wrap, below which it is no longer read with ease."""
WIDEST_BAR: Final = 24
EIGHTHS: Final = " ▏▎▍▌▋▊▉"
ASCII: Final = str.maketrans("█▉▊▋▌▍▎▏×·–—→…µ≤", "#####   x|-->.u<")
REPLACED: Final = "\ufffd"


def stderr_console() -> Console:
    """The console for everything hotlap says beside the command's own output."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def stdout_console(soft_wrap: bool = False) -> Console:
    """The console for what a command prints. soft_wrap: the terminal breaks the lines."""
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=soft_wrap)


def clean(text: object) -> str:
    """Outside text on one line, without control or direction characters and of bounded length."""
    shown = "".join(map(_harmless, str(text)[: LONGEST_TEXT + 1]))
    return shown if len(shown) <= LONGEST_TEXT else shown[: LONGEST_TEXT - 1] + "…"


def _harmless(char: str) -> str:
    """A character as it may be shown: blanks for line ends, nothing for what only steers a terminal."""
    if char.isprintable():
        return char
    if char.isspace():
        return " "
    return REPLACED if "\ud800" <= char <= "\udfff" else ""


def plain(text: object, style: str = "") -> Text:
    """Outside text, shown as it is: `[red]` stays `[red]`."""
    return Text(clean(text), style)


def between(low: float, high: float, join: str) -> str:
    """Two times in ms with the unit said once where it is the same: `210 – p90 231 ms`."""
    first, last = ms(low), ms(high)
    if first.split(" ")[-1] == last.split(" ")[-1]:
        first = first.split(" ")[0]
    return f"{first}{join}{last}"


def percent(share: float | None) -> str:
    """A share (0 to 1) in percent."""
    if share is None or not math.isfinite(share):
        return "unknown"
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def ratio(value: float | None) -> str:
    """A ratio of step times: 2.31×."""
    return "unknown" if value is None or not math.isfinite(value) else f"{value:.2f}×"


def count(value: float) -> str:
    """A rate or a number of things: 297, 12,345, 5.31."""
    return three(value) if math.isfinite(value) else "unknown"


def number(amount: int, thing: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{amount} {thing}" if amount == 1 else f"{amount} {thing}s"


def minutes(seconds: float) -> str:
    """Seconds as mm:ss, with hours where there are any."""
    whole = max(0, round(seconds)) if math.isfinite(seconds) else 0
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60:02d}:{rest % 60:02d}"


def bar(share: float, width: int) -> str:
    """A bar for a share (0 to 1) of `width` characters; what is not zero shows at least a sliver."""
    if not share > 0:
        return ""
    eighths = max(1, round(min(share, 1.0) * width * 8))
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


class ShareBar:
    """A bar that takes the width that is left, up to WIDEST_BAR characters."""

    def __init__(self, share: float, style: str) -> None:
        self.share, self.style = share, style

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, WIDEST_BAR)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(bar(self.share, min(WIDEST_BAR, options.max_width)), self.style)


class Parts:
    """Short texts joined by ` · `; lines break only between two of them, where the width allows."""

    def __init__(self, parts: Iterable[str], style: str = "") -> None:
        self.parts, self.style = [clean(part) for part in parts if part], style

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, max(1, cell_len(" · ".join(self.parts)))).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = ""
        for part in self.parts:
            longer = f"{line} · {part}" if line else part
            if line and cell_len(longer) > options.max_width:
                yield Text(line, self.style)
                longer = part
            line = longer
        yield Text(line, self.style)


class CommandLine:
    """A command to copy into a shell. Where it is wider than the terminal, lines end with a backslash."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in _shell_lines(self.words, max(20, options.max_width)):
            yield Text(line, "bold", no_wrap=True, overflow="ignore")


def _shell_lines(words: Sequence[str], width: int) -> Iterator[str]:
    """The command in lines of at most `width` characters, which a shell joins again."""
    line = ""
    for word in words:
        first, *rest = _pieces(word, width - 4)
        if line and cell_len(f"{line} {first}") + 2 > width:
            yield f"{line} \\"
            line = f"  {first}"
        else:
            line = f"{line} {first}" if line else first
        for piece in rest:
            yield f"{line}\\"
            line = piece
    yield line


def _pieces(word: str, width: int) -> list[str]:
    """The word for the shell, in pieces of at most `width` characters to be joined by a backslash at the line's end."""
    if cell_len(quote(word)) <= width:
        return [quote(word)]
    pieces, start = [], 0
    for end in range(1, len(word) + 1):
        if cell_len(quote(word[start : end + 1])) > width or end == len(word):
            pieces.append(quote(word[start:end]))
            start = end
    return pieces


def quote(word: str) -> str:
    """A word for the shell; control characters are written as escapes (`$'...'`), so that nothing is steered."""
    if all(char.isprintable() for char in word):
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def _escaped(char: str) -> str:
    """A character inside `$'...'`."""
    code = ord(char)
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    if code < 0x80:
        return {"\n": "\\n", "\t": "\\t"}.get(char, f"\\x{code:02x}")
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def labelled(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Rows of a short label and what it labels."""
    return _grid(Table.grid(Column(style="dim", no_wrap=True), Column(overflow="fold"), padding=(0, 2, 0, 0)), rows)


def beside(rows: Iterable[tuple[RenderableType, RenderableType]]) -> Table:
    """Rows of a share or a number, and the text that it belongs to."""
    return _grid(Table.grid(Column(justify="right", no_wrap=True), Column(overflow="fold"), padding=(0, 1, 0, 0)), rows)


def _grid(table: Table, rows: Iterable[tuple[RenderableType, RenderableType]]) -> Table:
    for row in rows:
        table.add_row(*row)
    return table


def columns(*names: str, right: Sequence[str] = (), wide: Sequence[str] = ()) -> Table:
    """An empty table without lines. right: columns of numbers; wide: columns that may wrap."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name not in wide, overflow="fold")
    return table


class Tabled:
    """A table made by `columns`; in a terminal too narrow for its numbers, a block for each row instead: its first
    cell, and under it the others, each after its column's name. A number is never cut."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = sum(map(self._least, self.table.columns)) + len(self.table.columns) - 1
        if needed <= options.max_width:
            yield self.table
            return
        first, *others = self.table.columns
        yield Text(_said(first.header), "dim")
        for cell, *cells in zip(*(column.cells for column in self.table.columns), strict=True):
            yield Text(_said(cell) or "-")
            named = [(_said(column.header), _said(one)) for column, one in zip(others, cells, strict=True)]
            yield Padding(Parts(f"{name} {text}".strip() for name, text in named if text), (0, 0, 0, 2))

    @staticmethod
    def _least(column: Column) -> int:
        """Columns that it needs."""
        longest = max((cell_len(_said(cell)) for cell in (column.header, *column.cells)), default=0)
        return longest if column.no_wrap else min(longest, LEAST_WIDE)


def _said(cell: RenderableType) -> str:
    """The text of a cell; bars have none."""
    if isinstance(cell, Parts):
        return " · ".join(cell.parts)
    return str(cell) if isinstance(cell, (str, Text)) else ""


class Screen:
    """Blocks one under another, in characters that the terminal's encoding has."""

    def __init__(self, *blocks: RenderableType) -> None:
        self.blocks = blocks

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        segments = console.render(Group(*self.blocks), options)
        for line in Segment.split_lines(map(_ascii, segments) if options.ascii_only else segments):
            yield from _unpadded(line)
            yield Segment.line()


def _unpadded(line: list[Segment]) -> list[Segment]:
    """The line without the blanks that a table fills its last column with: in a file they are noise."""
    while line and not line[-1].control and not line[-1].text.rstrip(" "):
        line = line[:-1]
    if line and not line[-1].control:
        line = [*line[:-1], Segment(line[-1].text.rstrip(" "), line[-1].style)]
    return line


def _ascii(segment: Segment) -> Segment:
    """The segment in ASCII, each character replaced by one."""
    text = segment.text.translate(ASCII).encode("ascii", "replace").decode()
    style: Style | None = segment.style
    return Segment(text, style, segment.control)


def place_text(place: Place | None, cwd: str = "") -> str:
    """`train.py:41 in main`; relative to the command's folder where it lies in it. "" where there is none."""
    if place is None:
        return ""
    path = Path(place.file)
    shown = str(path.relative_to(cwd)) if path.is_relative_to(cwd) else place.file
    line = "" if place.line is None else f":{place.line}"
    return f"{shown}{line}" + (f" in {place.function}" if place.function else "")


def at_place(place: Place | None, cwd: str = "", before: str = "") -> str:
    """`at train.py:41 in main`, after what comes before; "" where there is no place."""
    return f"{before}at {place_text(place, cwd)}" if place else ""
