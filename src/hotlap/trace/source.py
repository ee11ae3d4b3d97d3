"""A trace file as bytes: plain or gzip, whole or torn, into blocks of whole events. Nothing here decodes an event.

The text of `traceEvents` is cut where one event ends and the next begins. Kineto, and every other indenting writer,
puts a line break between events, which JSON strings can't hold; in text without line breaks a cut is a guess at
`}, {"ph":` and the like, which decoding proves or refutes.
"""

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final

import msgspec

from hotlap.records.errors import RecordError

READ: Final = 1 << 20
READ_PACKED: Final = 256 << 10
"""So much text is lost before damage at most."""
BLOCK: Final = 4 << 20
"""Bytes of events that are handed on together."""
MAX_PIECE: Final = 64 << 20
"""The most that is held in search of the next event, or of the first."""
EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
MOST_PACKED: Final = 100
"""A gzip file that unpacks to more than this many times its size, and PACKED_FROM, is a bomb: traces pack 10 to 30
times."""
PACKED_FROM: Final = 64 << 20
GUESS: Final = re.compile(rb'\}\s*,\s*\{\s*"(?:ph|name|cat|pid|tid|ts|id|args|bp|dur|s)"\s*:')
END: Final = re.compile(rb"\}\s*(?:,\s*)?\]")
AFTER: Final = re.compile(rb'\s*(?:\}|,\s*(?:"|\Z)|\Z)')
"""What may follow the array of events: the end of the object that holds it, or its next key."""
TRIED: Final = 100
"""Brackets that are looked at as the end of the array."""
JOINED: Final = 4
"""Torn pieces that are tried as one event, where a cut was guessed wrongly."""
GZIP: Final = b"\x1f\x8b"


@dataclass
class Source:
    """What was found around the events, filled while they are read. closed: the array of events ends with a bracket;
    text_bytes: unpacked; why: what is wrong with the file."""

    name: str
    head: bytes = b""
    tail: bytes = b""
    separator: re.Pattern[bytes] = GUESS
    closed: bool = True
    text_bytes: int = 0
    why: list[str] = field(default_factory=list)


def blocks(file: BinaryIO, source: Source, progress: Callable[[int], None] = lambda at: None) -> Iterator[bytes]:
    """Blocks of whole events, as `{...}, {...}` without brackets; the last one may end in a torn event.

    Fills `source`. progress: is told the bytes read from the file. Raises RecordError for what is no trace.
    """
    pieces = _text(file, source, progress)
    buffer = bytearray()
    position = _begin(pieces, buffer, source)
    while True:
        cut = _cut(buffer, position + BLOCK, source.separator)
        while cut is None:
            if len(buffer) - position > BLOCK + MAX_PIECE:
                raise RecordError(
                    f"{source.name}: no end of an event within {MAX_PIECE >> 20} MiB; this is not a trace"
                )
            more = next(pieces, b"")
            if not more:
                yield from _finish(bytes(buffer[position:]), source)
                return
            del buffer[:position]
            position = 0
            buffer += more
            cut = _cut(buffer, max(BLOCK, len(buffer) - len(more) - READ), source.separator)
        with memoryview(buffer) as view:
            block = bytes(view[position : cut[0]])
        yield block
        position = cut[1]


def split(text: bytes, size: int, separator: re.Pattern[bytes]) -> Iterator[bytes]:
    """A block in parts of about `size` bytes, cut between events."""
    position = 0
    while (cut := _cut(text, position + size, separator)) is not None:
        yield text[position : cut[0]]
        position = cut[1]
    yield text[position:]


def untaken(text: bytes, separator: re.Pattern[bytes], take: Callable[[bytes], bool]) -> Iterator[bytes]:
    """A block event by event: what `take` does not take, alone or with what follows."""
    pieces = list(split(text, 1, separator))
    index = 0
    while index < len(pieces):
        ends = range(index + 1, min(index + JOINED, len(pieces)) + 1)
        end = next((end for end in ends if take(b",".join(pieces[index:end]))), None)
        if end is None:
            yield pieces[index]
        index = end or index + 1


def _cut(text: bytes | bytearray, start: int, separator: re.Pattern[bytes]) -> tuple[int, int] | None:
    """Where an event ends (after its brace) and the next begins, at or after `start`."""
    match = separator.search(text, start) if start < len(text) else None
    if match is None:
        return None
    return match.start() + 1, text.index(b"{", match.start() + 1)


def _text(file: BinaryIO, source: Source, progress: Callable[[int], None]) -> Iterator[bytes]:
    """The decompressed text in pieces."""
    begin = file.tell()
    try:
        packed = file.read(len(GZIP)) == GZIP
        file.seek(begin)
        for piece in _gunzip(file, source) if packed else iter(lambda: file.read(READ), b""):
            source.text_bytes += len(piece)
            yield piece
            progress(file.tell() - begin)
    except OSError as error:
        raise RecordError(f"cannot read {source.name}: {error.strerror or error}") from error


def _gunzip(file: BinaryIO, source: Source) -> Iterator[bytes]:
    """Every member of a gzip file, however well it is packed. Where it is torn or damaged it ends early, and `source`
    says so."""
    unpacked = gzip.GzipFile(fileobj=file)
    try:
        while piece := unpacked.read1(READ_PACKED):
            yield piece
            if source.text_bytes > max(PACKED_FROM, MOST_PACKED * file.tell()):
                raise RecordError(
                    f"{source.name} unpacks to more than {MOST_PACKED} times its size; this is not a trace"
                )
    except EOFError:
        source.why.append("the gzip file ends before its data does")
    except (zlib.error, gzip.BadGzipFile) as error:
        source.why.append(f"the gzip data are damaged ({error})")


def _begin(pieces: Iterator[bytes], buffer: bytearray, source: Source) -> int:
    """Read up to the first event; returns where it begins in the buffer."""
    searched = 0
    while True:
        more = next(pieces, b"")
        buffer += more
        if not searched and buffer.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"[":  # Chrome's bare array
            return _first(pieces, buffer, buffer.index(b"[") + 1, source)
        match = EVENTS.search(buffer, max(0, searched - 64))
        if match:
            source.head = bytes(buffer[: match.start()]).removeprefix(b"\xef\xbb\xbf")
            return _first(pieces, buffer, match.end(), source)
        searched = len(buffer)
        if not more:
            raise RecordError(f"{source.name} is not a trace: {_what(buffer)}")
        if searched > MAX_PIECE:
            raise RecordError(f'{source.name} is not a trace: no "traceEvents" in its first {MAX_PIECE >> 20} MiB')


def _what(buffer: bytearray) -> str:
    if not buffer.strip():
        return "it is empty"
    return 'it holds no "traceEvents"' if buffer.lstrip()[:1] == b"{" else "it is not JSON of the trace-event format"


def _first(pieces: Iterator[bytes], buffer: bytearray, start: int, source: Source) -> int:
    """Skip the space before the first event, and learn from it how events are set apart."""
    while True:
        space = re.compile(rb"\s*").match(buffer, start)
        end = space.end() if space else start
        if end < len(buffer) or not (more := next(pieces, b"")):
            break
        if end - start > READ:
            raise RecordError(f"{source.name} is not a trace: only whitespace after its beginning")
        buffer += more
    _, line, indent = bytes(buffer[start:end]).rpartition(b"\n")  # torch 2.12 puts more lines before the first
    if line:
        source.separator = re.compile(rb"\}\s*,\s*\n" + re.escape(indent) + rb"\{")
    return end


def _finish(rest: bytes, source: Source) -> Iterator[bytes]:
    """The last events, and what follows the array."""
    if rest.lstrip()[:1] == b"]" or not rest.strip():
        source.tail = rest.lstrip()[1:]
        if not rest.strip():
            source.why.append("the file ends where its events begin")
        return
    end = _end(rest, source.separator)
    if end is None:
        source.closed = False
        yield rest.rstrip(b", \t\r\n")
        return
    source.tail = rest[end.end() :]
    yield rest[: end.start() + 1]


def _end(rest: bytes, separator: re.Pattern[bytes]) -> re.Match[bytes] | None:
    """The end of the array of events: the first bracket after which the text goes on as it does behind an array, best
    one after which it is whole."""
    start = 0
    if separator is not GUESS:  # line breaks can be trusted: the array ends after the last event began
        for match in separator.finditer(rest):
            start = match.start() + 1
    likely = None
    for _, match in zip(range(TRIED), END.finditer(rest, start), strict=False):
        if AFTER.match(rest, match.end()):
            try:
                msgspec.json.decode(b"{" + rest[match.end() :].lstrip(b", \t\r\n"), type=dict[str, msgspec.Raw])
                return match
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                likely = likely or match
    return likely
