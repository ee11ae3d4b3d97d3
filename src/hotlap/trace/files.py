"""Which traces a path means: a file, the ranks of a folder (a run's, or any with exports), the members of a tar, the
processes of an export of nsys."""

import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hotlap.records.errors import RecordError
from hotlap.runs.folder import FILES, REQUEST, TRACE, RunFolder

from . import nsys
from .read import Progress, read, read_stream
from .tables import Trace

NAMES: Final = re.compile(r"\.json(\.gz)?$|\.trace(\.gz)?$")
NOT_TRACES: Final = {*FILES.values(), REQUEST, "package.json"}
RANK: Final = re.compile(r"rank[-_.]?(\d{1,6})", re.I)
MOST: Final = 100_000


@dataclass(frozen=True)
class TraceFile:
    """One rank's trace. rank: as its name says, None where it does not. size: bytes on disk."""

    name: str
    size: int
    rank: int | None
    load: Callable[[Progress], Trace]


def trace_files(path: Path) -> list[TraceFile]:
    """The traces at a path, in rank order. Raises RecordError where there are none."""
    if path.is_dir():
        found = [one for file in _in_folder(path) for one in _in_file(file)]
    elif path.is_file() and _is_tar(path):
        found = list(_in_tar(path))
    else:
        return _in_file(path)
    if not found:
        raise RecordError(f"{path} holds no traces (*.json, *.json.gz). `hotlap run --profile CMD` records one")
    return sorted(found, key=lambda file: (file.rank is None, file.rank or 0, file.name))


def _is_tar(path: Path) -> bool:
    try:
        return tarfile.is_tarfile(path)
    except (OSError, EOFError, zlib.error):  # a torn gzip, which may well be a trace
        return False


def _in_folder(path: Path) -> list[Path]:
    if ours := RunFolder(path).traces:
        return ours
    found = [file for file in path.iterdir() if NAMES.search(file.name) and file.name not in NOT_TRACES]
    found = found or list(path.glob("*.sqlite"))
    return sorted(file for file in found if file.is_file())[:MOST]


def _rank(name: str) -> int | None:
    match = list(RANK.finditer(name))
    return int(match[-1][1]) if match else None


def _in_file(path: Path) -> list[TraceFile]:
    """The processes of an export of nsys, or the one trace that the file is."""
    if not nsys.is_export(path):
        return [_of_file(path)]
    processes = nsys.processes(path)
    rank, size = _rank(path.name) if len(processes) == 1 else None, path.stat().st_size // len(processes)
    return [
        TraceFile(path.name, size, rank, lambda progress, one=process: nsys.read_export(path, one, progress))  # type: ignore[misc]
        for process in processes
    ]


def _of_file(path: Path) -> TraceFile:
    size = path.stat().st_size if path.is_file() else 0
    name = f"{path.parent.name}/{path.name}" if path.name == TRACE else path.name
    return TraceFile(name, size, _rank(name), lambda progress: read(path, progress))


def _in_tar(path: Path) -> Iterator[TraceFile]:
    """Members are read where they lie; nothing is unpacked to disk."""
    try:
        with tarfile.open(path, "r:*") as archive:
            members = [member for member in archive if member.isfile() and NAMES.search(member.name)][:MOST]
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise RecordError(f"cannot read {path}: {error}") from error
    for member in members:
        yield TraceFile(member.name, member.size, _rank(member.name), _member(path, member))


def _member(path: Path, member: tarfile.TarInfo) -> Callable[[Progress], Trace]:
    def load(progress: Progress) -> Trace:
        try:
            with tarfile.open(path, "r:*") as archive:
                file = archive.extractfile(member)
                if file is None:
                    raise RecordError(f"{path}: {member.name} is not a file")
                return read_stream(file, f"{path}:{member.name}", progress)  # type: ignore[arg-type]
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            raise RecordError(f"cannot read {member.name} in {path}: {error}") from error

    return load
