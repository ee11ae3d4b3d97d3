"""`hotlap tune`."""

import contextlib
from pathlib import Path
from typing import Annotated, cast

import msgspec
import typer
from rich.console import Console

from hotlap.experiment.side import STEPS
from hotlap.report.console import stderr_console
from hotlap.report.progress import Progress
from hotlap.report.tune_screen import tune_screen
from hotlap.tune import tune as tuning
from hotlap.tune.objective import SLOWDOWN, Kind, TuneRequest

from ._common import confirmed, free_name, print_json, seconds
from .history import HISTORY, remember

BUDGET = "10m"


def tune(
    command: Annotated[list[str] | None, typer.Argument(help="The training command, as you would type it.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the records; must not exist.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="Time it may take: 90s, 10m (default), 1h. With --resume: as before.")
    ] = None,
    steps: Annotated[
        int,
        typer.Option(
            min=12, help="Steady steps of each process before its turns: 8, then 1 s more, at most this many."
        ),
    ] = STEPS,
    only: Annotated[str, typer.Option(help="Try only these levers: a,b.")] = "",
    without: Annotated[str, typer.Option(help="Don't try these levers: a,b.")] = "",
    allow: Annotated[str, typer.Option(help="'semantic' lets levers change training.")] = "",
    objective: Annotated[str, typer.Option(help="What to reduce: time, memory, or cost per row.")] = "time",
    price: Annotated[float | None, typer.Option(help="Dollars an hour of this machine, for --objective cost.")] = None,
    slowdown: Annotated[
        float, typer.Option(help="With --objective memory: how much longer a step may get; 0.1 is 10%.")
    ] = SLOWDOWN,
    resume: Annotated[Path | None, typer.Option(help="Continue the tune in this folder.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --resume: run the command that the folder holds.")] = False,
    history: Annotated[bool | None, typer.Option(help=HISTORY)] = None,
    json: Annotated[bool, typer.Option(help="Print tune.json as the last line of stdout.")] = False,
) -> int:
    """Make a training command faster, with proof: try levers, keep what measurably helps, write a recipe.

    The bare command and the candidate are alive at once and take turns: one makes steps while the other stands still.
    What is proved is written at once, so Ctrl-C loses nothing. Losses are compared step by step. No file of yours is
    edited.

    Examples:

      hotlap tune python train.py --lr 3e-4

      hotlap tune --budget 5m --without compile python train.py

      hotlap tune --objective memory --slowdown 0.2 python train.py

      hotlap tune --resume hotlap-runs/1121-103000-tune-train python train.py
    """
    if resume is not None:
        request = _resumed(resume, command or [], budget, yes)
    else:
        request = TuneRequest(
            command=tuple(command or ()),
            cwd=str(Path.cwd()),
            budget_s=seconds(budget or BUDGET),
            steps=steps,
            only=_names(only),
            without=_names(without),
            allow=_names(allow),
            objective=cast(Kind, objective),  # `check` says where it is none
            price=price,
            slowdown=slowdown,
        )
    tuning.check(request)
    folder = resume or out or free_name(list(request.command), "tune")
    if resume is None:
        tuning.begin(folder, request)
    import scipy.stats  # noqa: F401 - a tune needs it after minutes; where it is missing, that is said now

    with contextlib.closing(Progress(stderr_console(), request.budget_s)) as progress:
        progress.start(f"tune  {folder}")
        result = tuning.tune(folder, request, progress, resume=resume is not None)
    Console().print(tune_screen(result, folder)) if not json else print_json(result)
    remember(folder, history)
    return 130 if result.why_incomplete.startswith("interrupted") else 0


def _resumed(folder: Path, command: list[str], budget: str | None, yes: bool) -> TuneRequest:
    """What an interrupted tune was asked for, with a budget of its own. Raises UsageError, RecordError."""
    request = tuning.read_request(folder)
    confirmed(command, request.command, folder, request.cwd, yes)
    if budget is not None:
        request = msgspec.structs.replace(request, budget_s=seconds(budget))
    return request


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
