"""`hotlap fit`."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from hotlap.records.errors import UsageError
from hotlap.report.console import stderr_console, stdout_console
from hotlap.report.fit_screen import fit_screen
from hotlap.report.progress import Progress
from hotlap.scale.fit import INTERRUPTED, STEPS, FitRequest
from hotlap.scale.fit import fit as fitting
from hotlap.scale.option import option_of, values_of
from hotlap.trace.peaks import card_of

from ._common import free_name, print_json, seconds


def fit(
    command: Annotated[list[str] | None, typer.Argument(help="The training command, as you would type it.")] = None,
    flag: Annotated[
        str, typer.Option(metavar="NAME", help="The option of the command that changes, which has to stand in it.")
    ] = "",
    values: Annotated[
        str, typer.Option(metavar="A,B", help="Its values to predict; by default 2, 4 and 8 times the command's own.")
    ] = "",
    measure: Annotated[
        str, typer.Option(metavar="A,B", help="Its values to run; by default three, near the command's own.")
    ] = "",
    card: Annotated[
        str, typer.Option(metavar="A,B", help="What fits into other cards: H100-80GB, A100-40GB, H200; or 24GiB.")
    ] = "",
    budget: Annotated[str, typer.Option(help="Time that the runs may take: 90s, 5m, 1h.")] = "5m",
    steps: Annotated[int, typer.Option(min=5, help="Steady steps of a run, at most.")] = STEPS,
    out: Annotated[Path | None, typer.Option(help="Folder for the records; must not exist.")] = None,
    json: Annotated[bool, typer.Option(help="Print fit.json as the last line of stdout.")] = False,
) -> int:
    """Say whether a command fits into memory with a larger batch, longer sequences, or more of any numeric option.

    It runs the command a few times with other values of the option, each for some steps, and predicts the peak of
    memory and the step time of the values that you ask for, and the largest that fits. The batch size and the length of
    sequences have a different name in every script, so --flag takes the name, however it is written in the command:
    `--batch-size 32`, `--batch_size=32`, `-b32`, `data.batch_size=32`.

    Examples:

      hotlap fit --flag batch-size --values 64,128 python train.py --batch-size 32

      hotlap fit --flag block_size --card H100-80GB,A100-40GB python train.py --block_size=256

      hotlap fit --flag data.batch_size --budget 10m python train.py data.batch_size=32
    """
    words = tuple(command or ())
    if not flag:
        raise UsageError("--flag is missing: the option that changes, as in hotlap fit --flag batch-size COMMAND...")
    request = FitRequest(
        command=words,
        option=option_of(words, flag),
        values=values_of(values, "--values"),
        measured=values_of(measure, "--measure"),
        cards=tuple(card_of(one) for one in card.split(",") if one.strip()),
        budget_s=seconds(budget),
        steps=steps,
    )
    folder = out or free_name(list(words), "fit")
    with contextlib.closing(Progress(stderr_console(), request.budget_s)) as progress:
        progress.start(f"fit  {folder}")
        found = fitting(folder, request, progress)
    stdout_console().print(fit_screen(found, folder)) if not json else print_json(found)
    return 130 if found.why_incomplete == INTERRUPTED else 0
