"""`hotlap advise`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from hotlap.diagnose.advise import Values, advise_answers, advise_folder
from hotlap.diagnose.advise_table import TABLE
from hotlap.records.errors import UsageError
from hotlap.report.advise_screen import advise_screen
from hotlap.report.console import stderr_console, stdout_console
from hotlap.runs.folder import RunFolder

from ._common import print_json

Percent = float | None


def advise(
    path: Annotated[Path | None, typer.Argument(help="A run, a tune, or traces to take the answers from.")] = None,
    idle: Annotated[Percent, typer.Option(help="Device idle for any reason, in percent of the step.")] = None,
    launch_bound: Annotated[Percent, typer.Option(help="Part of --idle: waiting for launches.")] = None,
    communication: Annotated[Percent, typer.Option(help="Communication that no computation hides.")] = None,
    roofline_gap: Annotated[Percent, typer.Option(help="How far kernels are below their roofline.")] = None,
    memory_pressure: Annotated[Percent, typer.Option(help="Device memory in use at the peak.")] = None,
    input_: Annotated[Percent, typer.Option("--input", help="Part of --idle: waiting for batches.")] = None,
    sync: Annotated[Percent, typer.Option(help="Part of --idle: after the host waited for a value.")] = None,
    host_code: Annotated[Percent, typer.Option(help="Part of --idle: Python code of the loop.")] = None,
    h2d: Annotated[Percent, typer.Option(help="Copies that overlap nothing.")] = None,
    compute: Annotated[Percent, typer.Option(help="Arithmetic, in percent of the step.")] = None,
    bandwidth: Annotated[Percent, typer.Option(help="Kernels that only move data.")] = None,
    top: Annotated[int, typer.Option(min=1, max=100, help="Suggestions to show in full.")] = 3,
    json: Annotated[bool, typer.Option(help="Print the document instead.")] = False,
) -> int:
    """Say what to try first, what it could win at most, and how to verify it.

    Reads a run, or takes what you know of one, in percent of the step. Given neither, it asks on a terminal. Options
    override the run; 0 means that it takes no time.

    Examples:

      hotlap advise hotlap-runs/1121-103000-run-train

      hotlap advise --idle 40 --launch-bound 20 --roofline-gap 50

      hotlap advise hotlap-runs/1121-103000-run-train --input 0
    """
    given = {
        "idle": idle,
        "launch_bound": launch_bound,
        "communication": communication,
        "roofline_gap": roofline_gap,
        "memory_pressure": memory_pressure,
        "input": input_,
        "sync": sync,
        "host_code": host_code,
        "h2d": h2d,
        "compute": compute,
        "bandwidth": bandwidth,
    }
    answers: Values = {name: value / 100 for name, value in given.items() if value is not None}
    if path is None and not answers and not json and sys.stdin.isatty() and sys.stderr.isatty():
        answers = _prompted()
    advice = advise_answers(answers) if path is None else advise_folder(path, answers)
    if json:
        print_json(advice)
        return 0
    cwd = run.record.cwd if path is not None and (run := RunFolder(path)).is_run else ""
    stdout_console().print(advise_screen(advice, cwd, top))
    return 0


def _prompted() -> dict[str, float]:
    """Answers from a person at a terminal; Enter says that one is not known."""
    stderr_console().print(
        "In percent; press Enter if you do not know. A trace or `hotlap run --profile` tells most of these."
    )
    answers: dict[str, float] = {}
    for measure in TABLE.measures:
        if not measure.main:  # the others are parts of these, which a run knows
            continue
        said = typer.prompt(f"{measure.question} %", default="", show_default=False, err=True).strip().rstrip("%")
        if said:
            answers[measure.name] = _number(said, measure.name) / 100
    return answers


def _number(said: str, name: str) -> float:
    try:
        return float(said)
    except ValueError:
        raise UsageError(f"{name} is a percentage from 0 to 100, not {said!r}") from None
