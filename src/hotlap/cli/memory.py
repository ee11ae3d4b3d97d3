"""`hotlap memory`."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from hotlap.memory.snapshot import read_snapshot
from hotlap.memory.usage import usage
from hotlap.records.errors import NothingMeasured
from hotlap.records.memory import MemoryUsage, MemoryWindow, When
from hotlap.report.console import Screen, stdout_console
from hotlap.report.memory_screen import memory_block
from hotlap.runs.folder import RunFolder

from ._common import print_json

WINDOWS: tuple[When, ...] = ("start", "first", "steady", "oom")


class MemoryDocument(msgspec.Struct, frozen=True):
    """What `--json` prints. path: of the run or the snapshot. windows: of a run by when they were, of a snapshot one
    for each device."""

    path: str
    windows: tuple[tuple[When, MemoryUsage], ...]


def memory(
    path: Annotated[Path, typer.Argument(help="The folder of a run, or a memory snapshot of torch's (.pickle).")],
    rank: Annotated[int | None, typer.Option(min=0, help="Which rank of the run; without it the first one.")] = None,
    json: Annotated[bool, typer.Option(help="Print the document instead.")] = False,
) -> int:
    """Tell what memory was used for: by category, line and variable.

    Of a run with --memory: before the loop, in its first steps and in steady ones; of any run what was live when memory
    ran out. Of a snapshot (torch.cuda.memory._dump_snapshot), by line alone.

    Examples:

      hotlap memory hotlap-runs/1121-103000-run-train

      hotlap memory memory_snapshot.pickle
    """
    found = read_snapshot(path) if path.is_file() else list(_of_run(path, rank))
    if not found:
        raise NothingMeasured(f"{path}: no window of memory was taken; `hotlap run --memory` takes them")
    told = tuple((window.when, usage(window)) for window in found)
    if json:
        print_json(MemoryDocument(str(path), told))
        return 0
    cwd = str(Path.cwd())
    for when, one in told:
        stdout_console().print(Screen(*memory_block(one, cwd, when), Text()))
    return 0


def _of_run(path: Path, rank: int | None) -> list[MemoryWindow]:
    run = RunFolder(path)
    run.record  # noqa: B018 - says why where there is none
    ranks = run.ranks if rank is None else [run.rank(rank)]
    first = next(iter(ranks), None)
    return [] if first is None else [one for when in WINDOWS if (one := first.memory(when)) is not None]
