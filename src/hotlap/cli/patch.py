"""`hotlap patch`."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from typer.core import TyperCommand

from hotlap.launch.environment import environment
from hotlap.records.errors import UsageError
from hotlap.records.files import new_folder, write_atomic, write_record
from hotlap.records.patch import Patch
from hotlap.report.console import plain, stderr_console
from hotlap.report.patch_screen import patch_screen
from hotlap.report.progress import Progress
from hotlap.runs.folder import RunFolder
from hotlap.tune.recipe import levers_of

from ._common import confirmed, free_name, print_json, seconds

if TYPE_CHECKING:
    from hotlap.patch.patch import Patched

BUDGET = "10m"


class UpToCommand(TyperCommand):
    """Options stand before or behind the recipe; from the next word on everything is the user's command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments with the command marked off."""
        valued = {name for option in self.params for name in option.opts if not getattr(option, "is_flag", True)}
        words, at = 0, 0
        while at < len(args) and args[at] != "--":
            if args[at].startswith("-"):
                at += 2 if args[at] in valued else 1
                continue
            words += 1
            if words == 2:
                args = [*args[:at], "--", *args[at:]]
                break
            at += 1
        return list(super().parse_args(ctx, args))


def patch(
    recipe: Annotated[
        Path, typer.Argument(help="The recipe that `hotlap tune` wrote, or the folder of a profiled run.")
    ],
    command: Annotated[
        list[str] | None, typer.Argument(help="The training command; by default that of the recipe or run.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for patch.json, the diff and the changed files.")] = None,
    diff: Annotated[Path | None, typer.Option(help="Write the diff to this file instead of stdout.")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Write the files in place.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --apply: also change files that have uncommitted edits.")
    ] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Measure the patched source against the recipe.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --verify: run the command that the recipe holds.")] = False,
    budget: Annotated[
        str | None, typer.Option(help=f"Time that --verify may take: 90s, 5m, 1h; default {BUDGET}.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print patch.json on one line of stdout.")] = False,
) -> int:
    """Write a recipe into the source, as a diff to review and apply; or rewrite the lines at which a run waited.

    The diff goes to stdout; what was written, and what could not be, with the lines to look at, goes to stderr. Nothing
    is changed without --apply. Given the folder of a profiled run, the diff is for its findings that the host waits for
    the device. Files outside of the current folder are read and written only where the command is given.

    Examples:

      hotlap patch recipe.toml

      hotlap patch recipe.toml --verify python train.py --lr 3e-4

      hotlap patch recipe.toml | git apply

      hotlap patch hotlap-runs/1121-103000-run-train
    """
    from hotlap.patch import findings  # libcst takes as long to import as all the rest
    from hotlap.patch import patch as patching

    if force and not apply:
        raise UsageError("--force goes with --apply")
    if budget is not None and not verify:
        raise UsageError("--budget goes with --verify")
    budget_s = seconds(budget or BUDGET)
    of_run = RunFolder(recipe).is_run
    if of_run and verify:
        raise UsageError(
            "--verify is for recipes. For a run: apply the diff, run again, and compare the two with `hotlap diff`"
        )
    patched = (findings if of_run else patching).make(recipe, command or (), Path.cwd())
    record = patched.record
    folder = _folder(patched, out, verify)
    if verify and not command:
        confirmed((), record.command, recipe, record.cwd, yes)
    if verify and folder is not None:
        record = _verified(patched, recipe, folder, budget_s)
    if apply:
        patching.apply(patched, force)
        record = msgspec.structs.replace(record, applied=True)
    if folder is not None:
        write_record(folder / "patch.json", record)
    if diff is not None:
        write_atomic(diff, patched.diff)
    stderr_console().print(patch_screen(record, diff or (folder and folder / "patch.diff")))
    if json:
        print_json(record)
    elif diff is None and not apply:
        _print(patched.diff)
    return 0


def _folder(patched: "Patched", out: Path | None, verify: bool) -> Path | None:
    """The folder for the records, with the diff and the changed files; None where none is asked for."""
    if out is None and not verify:
        return None
    folder = new_folder(out or free_name(list(patched.record.command), "patch"))
    write_atomic(folder / "patch.diff", patched.diff)
    from hotlap.patch import patch as patching

    patching.save_under(patched, folder / "source")
    return folder


def _verified(patched: "Patched", recipe: Path, folder: Path, budget_s: float) -> Patch:
    from hotlap.patch.verify import verify

    levers, _ = levers_of(recipe, environment(Path.cwd()))
    with contextlib.closing(Progress(stderr_console(), budget_s)) as progress:
        progress.start(f"patch  {folder}")
        result = verify(patched, levers, folder, progress, budget_s)
    return msgspec.structs.replace(patched.record, verification=result)


def _print(text: bytes) -> None:
    """The diff: byte for byte into a file or a pipe, without what steers a terminal on one."""
    if sys.stdout.isatty():
        for line in text.decode("utf-8", "replace").split("\n")[:-1]:
            typer.echo(plain(line.replace("\t", "    ")).plain)
        return
    sys.stdout.buffer.write(text)
    sys.stdout.flush()
