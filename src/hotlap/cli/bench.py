"""`hotlap bench`."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from hotlap.guard.suite import Entry, Turns, chosen, read_suite
from hotlap.launch.environment import environment
from hotlap.records.errors import CommandFailed, Interrupted
from hotlap.records.files import write_atomic
from hotlap.records.suite import Suite
from hotlap.report.bench_screen import bench_csv, bench_screen
from hotlap.report.console import stderr_console, stdout_console
from hotlap.report.progress import Progress
from hotlap.tune.recipe import levers_of

from ._common import free_name, print_json


def bench(
    suite: Annotated[Path, typer.Argument(metavar="SUITE.toml", help="The file that names the commands.")],
    only: Annotated[str, typer.Option(metavar="A,B", help="Only these commands of the suite.")] = "",
    repeat: Annotated[
        int | None, typer.Option(min=1, max=100, help="Starts of each command, in place of what the file says.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table as comma-separated values.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the records; must not exist.")] = None,
    json: Annotated[bool, typer.Option(help="Print bench.json as the last line of stdout.")] = False,
) -> int:
    """Run the commands of a suite in turn, and say of each how long a step takes and what limits it.

    A suite is a TOML file with a table for each command: `command`, and where they differ from the defaults `cwd`,
    `steps` (50), `repeat` (1), `timeout` (seconds, 600), `variables`, `recipe`. A command that fails is a row that says
    why, and the others go on; the exit code is 123 then.

    Examples:

      hotlap bench suite.toml

      hotlap bench --only gpt,vit --repeat 5 --csv out.csv suite.toml
    """
    entries = chosen(read_suite(suite), filter(None, map(str.strip, only.split(","))))
    entries = [_with_levers(one) for one in entries]
    folder = out or free_name([suite.stem], "bench")

    def tell(found: Suite) -> None:
        if csv is not None:
            write_atomic(csv, bench_csv(found))

    with contextlib.closing(Progress(stderr_console(), None)) as progress:
        progress.start(f"bench  {folder}")
        found = Turns(suite, entries, folder, progress, repeat, tell).run()
    stdout_console().print(bench_screen(found, folder)) if not json else print_json(found)
    if not found.complete:
        return Interrupted.exit_code
    return CommandFailed.exit_code if found.failed else 0


def _with_levers(entry: Entry) -> Entry:
    """The command with the levers of its recipe. Raises RecipeError before anything runs."""
    if entry.recipe is None:
        return entry
    return replace(entry, levers=levers_of(entry.recipe, environment(entry.cwd))[0])
