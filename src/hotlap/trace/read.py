"""A trace file into its tables.

Blocks of events are decoded in processes beside this one, which unpacks the file, or finds where the blocks of a plain
one are. They are forked, and use neither polars nor a lock of this process. Small files, and machines with one core,
are decoded here.
"""

import multiprocessing
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

from hotlap.records.errors import RecordError

from . import source
from .build import build
from .decode import Columns, Decoder, TooLate
from .tables import Trace

MAX_EVENTS: Final = 100_000_000
"""About 35 GB of JSON, and 20 GB of tables. More is refused: a packed file may hold any number."""
HOPELESS: Final = 1_000_000
"""Events without one that can be used, after which a file is given up."""
PARALLEL_FROM: Final = 3
"""Blocks from which on processes are worth their start."""
Progress = Callable[[int], None]


def read(path: Path, progress: Progress = lambda at: None, processes: int | None = None) -> Trace:
    """Read a trace, plain or gzip. progress is told the bytes of the file read so far; processes: beside this one,
    by default one a core. Raises RecordError that names the file where it is missing or no trace."""
    try:
        with path.open("rb") as file:
            return read_stream(file, str(path), progress, processes)
    except IsADirectoryError:
        raise RecordError(f"{path} is a folder") from None
    except MemoryError as error:
        raise RecordError(f"{path} needs more memory than there is") from error
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror or error}") from error


def read_stream(file: BinaryIO, name: str, progress: Progress = lambda at: None, processes: int | None = None) -> Trace:
    """As `read`, of an open file that can seek."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(cores, 8) if processes is None else processes
    begin = file.tell()
    for exact in (False, True):
        file.seek(begin)
        src = source.Source(name)
        plain = _plain(file, begin) if workers > 1 else None
        blocks = source.blocks(file, src, progress) if plain is None else source.places(plain, src, progress)
        try:
            columns = list(_decoded(blocks, src, exact, workers, plain))
        except TooLate:
            continue
        return build(columns, src)
    raise AssertionError("exact times are never too late")


def _plain(file: BinaryIO, begin: int) -> int | None:
    """The number of an open file of which any part can be read; None where it is packed, or is none."""
    try:
        number = file.fileno()
        return number if begin == 0 and stat.S_ISREG(os.fstat(number).st_mode) and not _packed(number) else None
    except (OSError, AttributeError):  # the second: a member of a tar archive
        return None


def _packed(file: int) -> bool:
    return os.pread(file, 2, 0) == source.GZIP


Block = bytes | source.Place


def _decoded(
    blocks: Iterator[Block], src: source.Source, exact: bool, workers: int, file: int | None
) -> Iterator[Columns]:
    first: list[Block] = []
    for block in blocks:
        first.append(block)
        if len(first) == PARALLEL_FROM:
            break
    if len(first) < PARALLEL_FROM or workers < 2:
        decoder = Decoder(src.separator, exact)
        parts: Iterable[Columns] = (decoder.block(_text(block, file)) for block in (*first, *blocks))
    else:
        parts = _in_processes(chain(first, blocks), Decoder(src.separator, exact), workers, file)
    events = rows = 0
    for part in parts:
        events += part.events + part.lost
        rows += part.rows
        if events > MAX_EVENTS:
            raise RecordError(f"{src.name} holds more than {MAX_EVENTS:,} events; profile fewer steps")
        if events > HOPELESS and not rows:
            raise RecordError(f"{src.name} is no trace: nothing to read in its first {events:,} events")
        yield part


def _text(block: Block, file: int | None) -> bytes:
    if isinstance(block, bytes):
        return block
    assert file is not None
    return source.pread(file, block[0], block[1] - block[0])


_forked: tuple[Decoder, int | None] | None = None
"""What a forked process decodes with, and the file it reads."""


def _set_forked(decoder: Decoder, file: int | None) -> None:
    global _forked
    _forked = decoder, file


def _decode(block: Block) -> Columns:
    assert _forked is not None
    decoder, file = _forked
    return decoder.block(_text(block, file))


def _in_processes(blocks: Iterable[Block], decoder: Decoder, workers: int, file: int | None) -> Iterator[Columns]:
    """Decode in order, with at most two blocks a process under way."""
    context = multiprocessing.get_context("fork")
    waiting: deque[Future[Columns]] = deque()
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_set_forked, initargs=(decoder, file)) as pool:
        try:
            for block in blocks:
                waiting.append(pool.submit(_decode, block))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise RecordError("a process that read the trace was killed (out of memory?)") from error
        finally:
            for future in waiting:
                future.cancel()
