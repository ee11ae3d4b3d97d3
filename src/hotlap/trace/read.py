"""A trace file into its tables.

Blocks of events are decoded in processes beside this one, which reads the file and unpacks it. They are forked, and use
neither polars nor a lock of this process. Small files, and machines with one core, are decoded here.
"""

import multiprocessing
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, Final

from hotlap.records.errors import RecordError

from . import source
from .build import build
from .decode import Columns, Decoder
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
    """As `read`, of an open file."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(cores, 8) if processes is None else processes
    src = source.Source(name)
    return build(list(_decoded(source.blocks(file, src, progress), src, workers)), src)


def _decoded(blocks: Iterator[bytes], src: source.Source, workers: int) -> Iterator[Columns]:
    first = list(islice(blocks, PARALLEL_FROM))
    decode, every = partial(_decode, separator=src.separator), chain(first, blocks)
    few = len(first) < PARALLEL_FROM or workers < 2
    parts = map(decode, every) if few else _in_processes(every, decode, workers)
    events, used = 0, False
    for part in parts:
        events += part.events + part.lost
        used = used or bool(part.host or part.device or part.memory)
        if events > MAX_EVENTS:
            raise RecordError(f"{src.name} holds more than {MAX_EVENTS:,} events; profile fewer steps")
        if events > HOPELESS and not used:
            raise RecordError(f"{src.name} is not a trace: nothing readable in its first {events:,} events")
        yield part


@cache
def _decoder(separator: re.Pattern[bytes]) -> Decoder:
    """One in each process."""
    return Decoder(separator)


def _decode(block: bytes, separator: re.Pattern[bytes]) -> Columns:
    return _decoder(separator).block(block)


def _in_processes(blocks: Iterable[bytes], decode: Callable[[bytes], Columns], workers: int) -> Iterator[Columns]:
    """Decode in order, with at most two blocks a process under way."""
    context = multiprocessing.get_context("fork")
    waiting: deque[Future[Columns]] = deque()
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        try:
            for block in blocks:
                waiting.append(pool.submit(decode, block))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise RecordError("a process that read the trace was killed (out of memory?)") from error
        finally:
            for future in waiting:
                future.cancel()
