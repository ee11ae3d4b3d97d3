"""Tables kept as Parquet, so that a second read takes no decoding.

A folder for each trace, named by what the file system says of the file: as in git's index, one with the size and the
time of change that it had is the same. Broken or half-written entries are passed over; the oldest go when the cache is
larger than LIMIT.
"""

import hashlib
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from hotlap.records.errors import unable
from hotlap.records.files import cache_folder

from .read import Progress, read
from .tables import TABLES, Gpu, Losses, Trace

FORMAT: Final = 1
"""Of the tables. Raise it when their columns, or how they are made, change."""
LIMIT: Final = 20 << 30
SMALL: Final = 4 << 20
"""Files up to this many bytes are read faster than they are looked up."""


class _Known(msgspec.Struct, frozen=True):
    """What the tables do not hold, and which file they were read from."""

    base_ns: int
    rank: int | None
    gpus: tuple[Gpu, ...]
    schema_version: str
    losses: Losses
    skipped: dict[str, int]


def read_cached(path: Path, progress: Progress = lambda at: None) -> Trace:
    """As `read`, from the cache where it holds the file. Raises RecordError."""
    with unable(f"read {path}"):
        status = path.stat()
    if status.st_size <= SMALL:
        return read(path, progress)
    try:
        entry = cache_folder("traces") / _name(status)
        if (found := _load(entry, path)) is not None:
            os.utime(entry)
            return found
    except OSError:  # a cache that can't be read is as good as none
        return read(path, progress)
    trace = read(path, progress)
    try:
        _store(entry, trace)
        _prune(entry.parent)
    except (OSError, pl.exceptions.ComputeError):  # nor is one that can't be written: a full disk, a read-only home
        shutil.rmtree(entry, ignore_errors=True)
    return trace


def _name(status: os.stat_result) -> str:
    """Of the entry of a file, also where that is moved."""
    told = f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns}"
    return f"{hashlib.blake2b(told.encode(), digest_size=20).hexdigest()}-{FORMAT}"


def _load(entry: Path, path: Path) -> Trace | None:
    try:
        known = msgspec.json.decode((entry / "trace.json").read_bytes(), type=_Known)
        tables: dict[str, Any] = {name: pl.read_parquet(entry / f"{name}.parquet", memory_map=True) for name in TABLES}
    except (FileNotFoundError, msgspec.DecodeError, pl.exceptions.PolarsError):
        return None
    if any(dict(table.schema) != dict(pl.Schema(TABLES[name])) for name, table in tables.items()):
        return None
    rest: dict[str, Any] = {name: getattr(known, name) for name in known.__struct_fields__}
    return Trace(source=str(path), **tables, **rest)


def _store(entry: Path, trace: Trace) -> None:
    """All of it or nothing: written beside, then renamed."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=entry.parent, prefix=".new-"))
    try:
        for name in TABLES:
            getattr(trace, name).write_parquet(made / f"{name}.parquet", compression="lz4", statistics=False)
        known = {name: getattr(trace, name) for name in _Known.__struct_fields__}
        known["gpus"], known["losses"] = [asdict(gpu) for gpu in trace.gpus], asdict(trace.losses)
        (made / "trace.json").write_bytes(msgspec.json.encode(known))
        shutil.rmtree(entry, ignore_errors=True)
        made.rename(entry)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _prune(root: Path) -> None:
    """Remove what was used longest ago until the rest is within LIMIT."""
    entries = [path for path in root.iterdir() if path.is_dir()]
    sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in entries}
    total = sum(sizes.values())
    for path in sorted(entries, key=lambda path: path.stat().st_mtime):
        if total <= LIMIT:
            return
        shutil.rmtree(path, ignore_errors=True)
        total -= sizes[path]
