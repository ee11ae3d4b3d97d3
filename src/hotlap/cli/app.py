"""The application: its commands, and the one place where errors become exit codes."""

import contextlib
import sys
from pathlib import Path
from typing import Any

import typer

from hotlap import __version__
from hotlap.records.errors import EXIT_CODES, HotlapError, missing_named
from hotlap.report.console import clean, stderr_console

from .advise import advise
from .bench import bench
from .calibrate import calibrate
from .check import check
from .diff import diff
from .export import export, open_
from .fit import fit
from .history import history
from .memory import memory
from .patch import UpToCommand, patch
from .report import report
from .run import run
from .serve import serve
from .show import show
from .trace import trace
from .tune import tune

CLICK_ERROR: Any = typer.BadParameter.__mro__[2]  # ClickException; newer typer carries its own click
NO_FOLDER = "the working folder is gone: it was deleted or moved away; go to one that exists (cd)"
CODES = "\n\n".join(f"{code}: {meaning}" for code, meaning in EXIT_CODES.items())

app = typer.Typer(
    name="hotlap",
    no_args_is_help=False,
    add_completion=False,
    rich_markup_mode=None,
    help="Makes PyTorch training commands faster, with proof. Prefix the command; edit nothing.",
    epilog=f"Exit codes of hotlap itself:\n\n{CODES}",
)
COMMAND = {"allow_interspersed_args": False}  # the first word that is no option begins the command
app.command(name="run", context_settings=COMMAND)(run)
app.command(name="tune", context_settings=COMMAND)(tune)
app.command(name="check", context_settings=COMMAND)(check)
app.command(name="bench")(bench)
app.command(name="fit", context_settings=COMMAND)(fit)
app.command(name="patch", cls=UpToCommand)(patch)
app.command(name="show")(show)
app.command(name="diff")(diff)
app.command(name="report")(report)
app.command(name="advise")(advise)
app.command(name="trace")(trace)
app.command(name="memory")(memory)
app.add_typer(history, name="history")
app.command(name="serve")(serve)
app.command(name="open")(open_)
app.command(name="export")(export)
app.command(name="calibrate")(calibrate)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"hotlap {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Makes PyTorch training commands faster, with proof. Prefix the command; edit nothing."""


def main() -> None:
    """Run the command line and end the process."""
    sys.exit(_main())


def _main() -> int:
    try:
        with missing_named():
            result = app(standalone_mode=False)
    except HotlapError as error:
        _say(str(error))
        return error.exit_code
    except typer.Abort:
        return 130
    except CLICK_ERROR as error:
        _say(f"{error.format_message()}\nTry: hotlap --help")
        return HotlapError.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 141
    except OSError as error:
        _say(NO_FOLDER if _no_folder(error) else f"{error.strerror or error}: {error.filename or ''}")
        return HotlapError.exit_code
    return result if isinstance(result, int) else 0


def _no_folder(error: OSError) -> bool:
    """Whether it is the working folder that is not there: what asks for that names no file."""
    if error.filename is not None:
        return False
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # stderr is full or gone; the exit code still tells
        stderr_console().print(f"hotlap: {clean(text)}", style="red", markup=False, highlight=False, soft_wrap=True)
