"""What the commands share."""

import math
import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.progress import BarColumn, Progress, TextColumn

from hotlap.records.errors import UsageError
from hotlap.records.files import to_json
from hotlap.report.console import plain, stderr_console

RUNS = Path("hotlap-runs")
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def free_name(command: list[str], kind: str) -> Path:
    """A folder under hotlap-runs that is not there yet: time, kind, script."""
    script = next((Path(word).stem for word in command if word.endswith(".py")), Path(command[0]).name)
    stem = f"{time.strftime('%m%d-%H%M%S')}-{kind}-{''.join(c for c in script if c.isalnum() or c in '-_')[:40]}"
    number = 0
    while (path := RUNS / (stem if not number else f"{stem}-{number}")).exists():
        number += 1
    return path


def confirmed(given: Sequence[str], recorded: Sequence[str], where: Path, cwd: str, yes: bool) -> None:
    """That a command which a folder or a recipe holds may run: it may come from elsewhere. Raises UsageError.

    given: the command that the user gave, which is enough where it runs in the current folder: in another one the same
    words may mean another program."""
    shown = shlex.join(recorded)
    if given and tuple(given) != tuple(recorded):
        raise UsageError(f"{where} belongs to another command: {shown}")
    if given and cwd == str(Path.cwd()):
        return
    told = f"hotlap: {where} holds this command, to run in {cwd}:\n  {shown}"
    stderr_console().print(plain(told), soft_wrap=True)
    if not yes and not (sys.stdin.isatty() and typer.confirm("run it?", err=True)):
        instead = f"go to {cwd}" if given else "give the command itself"
        raise UsageError(f"not confirmed; {instead}, or give --yes to run what {where} holds")


def seconds(text: str) -> float:
    """What a `--budget` says. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    found = float(match[1]) * UNITS[match[2]] if match else math.nan
    if not 0 < found < math.inf:
        raise UsageError(f"--budget {text!r} is not a time; write 90s, 10m or 1h")
    return found


def reading() -> Progress:
    """A bar on stderr for what is read, on terminals only."""
    console = stderr_console()
    bar = TextColumn("reading {task.description}"), BarColumn()
    return Progress(*bar, console=console, transient=True, disable=not console.is_terminal)


def print_json(record: Any) -> None:
    """A record as one line of JSON on stdout."""
    sys.stdout.write(to_json(record).decode() + "\n")
    sys.stdout.flush()
