"""What the commands share."""

import math
import re
import sys
import time
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn

from hotlap.records.errors import UsageError
from hotlap.records.files import new_folder, to_json
from hotlap.report.console import stderr_console

RUNS = Path("hotlap-runs")
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def run_folder(out: Path | None, command: list[str], kind: str) -> Path:
    """The folder to write to: `--out`, or a new one under hotlap-runs. Raises RecordError."""
    if out is not None:
        return new_folder(out)
    return new_folder(free_name(command, kind))


def free_name(command: list[str], kind: str) -> Path:
    """A name that is free: time, kind, script."""
    script = next((Path(word).stem for word in command if word.endswith(".py")), Path(command[0]).name)
    stem = f"{time.strftime('%m%d-%H%M%S')}-{kind}-{''.join(c for c in script if c.isalnum() or c in '-_')[:40]}"
    number = 0
    while (path := RUNS / (stem if not number else f"{stem}-{number}")).exists():
        number += 1
    return path


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
