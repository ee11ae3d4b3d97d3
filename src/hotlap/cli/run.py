"""`hotlap run`."""

import contextlib
import sys
import traceback
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from hotlap.diagnose.verdict import judged
from hotlap.launch.command import find_program
from hotlap.launch.environment import environment
from hotlap.launch.run import ForegroundRun
from hotlap.launch.supervise import exit_like
from hotlap.levers import variables_of
from hotlap.memory.ran_out import ran_out
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.errors import HotlapError, RecordError, UsageError, missing_named
from hotlap.records.files import new_folder, read_bytes, write_atomic
from hotlap.records.mlperf import MLPERF_FILE, MLPERF_LOG
from hotlap.records.ran_out import RanOut
from hotlap.records.run import Run
from hotlap.records.session import ENDED_HARD
from hotlap.report.console import plain, stderr_console
from hotlap.report.oom_screen import oom_screen
from hotlap.report.run_screen import run_screen
from hotlap.runs.folder import RunFolder
from hotlap.runs.plan import RunPlan
from hotlap.tune.applied_levers import with_applied_levers
from hotlap.tune.recipe import levers_of

from ._beside import Profiler, screens
from ._common import free_name, print_json
from ._price import HELP as PRICE
from ._price import UNPRICED, Price, price_of
from .history import HISTORY, remember

PROFILE_STEPS: Final = 3
GRACE_S: Final = 120.0
"""A checkpoint that is written as the script ends may take so long."""
MOST_PROFILED: Final = 100
"""A trace is written whole, and three steps of a large model are already 100 MB."""


class RunDocument(msgspec.Struct, frozen=True):
    """What `--json` prints: the documents of the run folder. folder: its path. diagnosis: None where nothing was
    measured; why: the reason. ran_out: of memory, None where it did not."""

    folder: str
    run: Run
    diagnosis: Diagnosis | None
    why: str = ""
    ran_out: RanOut | None = None


def run(
    command: Annotated[list[str] | None, typer.Argument(help="The training command, as you would type it.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the records; must not exist.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="End the command after this many steady steps.")] = None,
    recipe: Annotated[Path | None, typer.Option(help="Use the levers of this recipe.")] = None,
    lenient: Annotated[bool, typer.Option(help="Leave out levers of the recipe that can't be used here.")] = False,
    beside: Annotated[
        str | None,
        typer.Option(
            "--with",
            help="Another profiler too: `perf` (counts), `py-spy` (lines), `nsys` (steady steps) or `ncu` (kernels).",
        ),
    ] = None,
    profile: Annotated[bool, typer.Option(help="Record steady steps with torch.profiler.")] = False,
    profile_steps: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_PROFILED, help="Steps to profile: 3, or 1 with --with ncu."),
    ] = None,
    profile_memory: Annotated[bool, typer.Option(help="With --profile: record allocations too; slower.")] = False,
    profile_stacks: Annotated[bool, typer.Option(help="With --profile: record Python stacks too; slower.")] = False,
    memory: Annotated[
        bool, typer.Option(help="Tell whose memory it is at the peak: by category, line and what stays behind.")
    ] = False,
    every_step: Annotated[bool, typer.Option(help="Record the phases of every step instead of a sample.")] = False,
    mlperf: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="Write a log for MLPerf, with what this file says beside.")
    ] = None,
    price: Annotated[str | None, typer.Option(metavar="DOLLARS|FILE", help=PRICE)] = None,
    history: Annotated[bool | None, typer.Option(help=HISTORY)] = None,
    json: Annotated[bool, typer.Option(help="Print the documents as the last line of stdout.")] = False,
) -> int:
    """Run a training command unchanged, time its steps and phases, and say what limits it.

    The command's output, signals and exit code are its own; hotlap's screen goes to stderr when it has ended (or on
    Ctrl-C).

    Examples:

      hotlap run python train.py --lr 3e-4

      hotlap run --steps 50 torchrun --nproc-per-node 4 train.py

      hotlap run --recipe recipe.toml python train.py

      hotlap run --profile --steps 50 python train.py

      hotlap run --memory --steps 50 python train.py
    """
    words, here = list(command or []), Path.cwd()
    find_program(words, here)
    machine, priced = environment(here), price_of(price)
    priced.check([*(one.name for one in machine.gpus), "cpu"])
    if lenient and recipe is None:
        raise UsageError("--lenient goes with --recipe")
    levers, passed = levers_of(recipe, machine, lenient) if recipe is not None else ((), [])
    profiler = Profiler(beside) if beside is not None else None
    profiled, captured = _windows(profiler, profile, profile_steps, profile_memory or profile_stacks)
    if mlperf is not None:
        _check_mlperf(mlperf, profiler)
    folder = new_folder(out or free_name(words, "run"))
    if mlperf is not None:
        write_atomic(folder / MLPERF_FILE, read_bytes(mlperf))
    for line in passed:
        stderr_console().print(plain(f"hotlap: {line}", "yellow"), soft_wrap=True)
    given = {
        "--steps": steps, "--recipe": recipe, "--lenient": lenient, "--with": beside, "--profile": profile,
        "--profile-steps": profile_steps, "--profile-memory": profile_memory, "--profile-stacks": profile_stacks,
        "--memory": memory, "--every-step": every_step, "--mlperf": mlperf,
    }  # fmt: skip
    plan = RunPlan(
        command=tuple(words),
        folder=folder,
        environment=machine,
        steps=steps,
        least_steps=steps or 0,
        levers=levers,
        variables=variables_of(levers),
        profile_steps=profiled,
        profile_memory=profile_memory,
        profile_stacks=profile_stacks,
        memory=memory,
        capture_steps=captured,
        every_step=every_step,
        grace_s=GRACE_S,
        hard_code=ENDED_HARD,
        recipe=str(recipe) if recipe else None,
        options=tuple(word for name, value in given.items() if value for word in _words(name, value)),
        cwd=here,
    )
    return _run(plan, profiler, json, priced, history, mlperf is not None)


def _words(name: str, value: object) -> tuple[str, ...]:
    return (name,) if value is True else (name, str(value))


def _check_mlperf(path: Path, profiler: Profiler | None) -> None:
    """That a log can be written later. Raises RecordError, UsageError."""
    from hotlap.export.to_mlperf import read_settings

    read_settings(path)
    if profiler is not None and profiler.nsight is not None:
        raise UsageError(f"--mlperf and --with {profiler.name} need two runs: each takes the command's output")


def _write_mlperf(folder: Path) -> None:
    """The log of a run that has ended. Raises RecordError."""
    from hotlap.export.series import read_series
    from hotlap.export.to_mlperf import write

    path = folder / MLPERF_LOG
    for line in (*write(read_series(folder), path), str(path)):
        stderr_console().print(plain(f"mlperf  {line}"), soft_wrap=True)


def _run(plan: RunPlan, profiler: Profiler | None, json: bool, price: Price, history: bool | None, mlperf: bool) -> int:
    """Returns the exit code of the command. Whatever happens to hotlap once it has begun, this process ends like it."""
    if profiler is not None:
        plan = profiler.put_in(plan)
    command = ForegroundRun(plan, profiler.nsight if profiler else None, keep_printed=mlperf)
    try:
        record, ended = command.finish()
        if profiler is not None:
            profiler.finish()
        _finish(plan.folder, record, profiler.name if profiler else "", json, price, mlperf)
        remember(plan.folder, history)
    finally:
        if sys.exc_info()[0] is not None:
            with contextlib.suppress(OSError, MemoryError):
                traceback.print_exc()
            raise SystemExit(exit_like(command.ended()))
    return exit_like(ended)


def _finish(folder: Path, record: Run, beside: str, json: bool, price: Price, mlperf: bool = False) -> None:
    """Write and show what a command that has ended left. Its exit code stands, so no failure here leaves."""
    try:
        with missing_named():
            report(folder, record, json, price)
            if beside:
                stderr_console().print(*screens(folder, beside), sep="")
            if mlperf:
                _write_mlperf(folder)
    except (HotlapError, OSError) as error:
        with contextlib.suppress(OSError):  # stderr may be what failed
            stderr_console().print(plain(f"hotlap: {error}", "red"))


def _windows(profiler: Profiler | None, profile: bool, steps: int | None, in_detail: bool) -> tuple[int, int]:
    """Steps that torch.profiler records, and those that a profiler in front of the command does. Raises UsageError."""
    captured = 0 if profiler is None else profiler.steps and (steps or profiler.steps)
    if profile and profiler is not None and captured:
        raise UsageError(
            f"--profile and --with {profiler.name} need two runs: the device's counters serve one at a time"
        )
    if not profile and ((steps and not captured) or in_detail):
        raise UsageError("--profile-steps, --profile-memory and --profile-stacks go with --profile")
    return (steps or PROFILE_STEPS) if profile else 0, captured


def report(folder: Path, record: Run, json: bool, price: Price = UNPRICED) -> None:
    """Write the record and the diagnosis of a run that has ended, and show them, what can't be written too.

    Raises RecordError.
    """
    with contextlib.suppress(RecordError):  # of what can't be read the verdict says so
        record = with_applied_levers(folder, record)
    run = RunFolder(folder)
    unwritten = [_unwritten(run, record)]
    try:
        diagnosis, why = judged(folder, ours=True)
    except RecordError as error:
        diagnosis, why = None, str(error)
    if diagnosis is not None:
        unwritten.append(_unwritten(run, diagnosis))
    console = stderr_console()
    lacked = out_of_memory(run, record)
    said = why_none(why, lacked)
    console.print(run_screen(record, shown_with(diagnosis, lacked), run.problems, folder, said, price.of(diagnosis)))
    if what := "; ".join(filter(None, unwritten)):
        told = f"hotlap: {what}. The screen above shows what was in memory or already written"
        console.print(plain(told, "yellow"), soft_wrap=True)
    if lacked is not None:
        console.print(oom_screen(lacked, record))
    if json:
        print_json(RunDocument(str(folder), record, diagnosis, why, lacked))


def shown_with(diagnosis: Diagnosis | None, lacked: RanOut | None) -> Diagnosis | None:
    """The verdict beside the screen of how memory ran out, which says what to do next."""
    if diagnosis is None or lacked is None or lacked.went_on:
        return diagnosis
    return msgspec.structs.replace(diagnosis, next="")


def why_none(why: str, lacked: RanOut | None) -> str:
    """Why there is no verdict, where there is none: of memory that ran out its own screen says all."""
    return why if lacked is None or lacked.went_on else f"memory ran out in step {lacked.step}"


def out_of_memory(run: RunFolder, record: Run) -> RanOut | None:
    """How memory ran out, where it did; of what can't be read that is said on stderr."""
    try:
        return ran_out(run, record)
    except RecordError as error:
        stderr_console().print(plain(f"hotlap: how memory ran out can't be read: {error}", "yellow"), soft_wrap=True)
        return None


def _unwritten(run: RunFolder, record: msgspec.Struct) -> str:
    """Write a record. Returns why it could not be, "" where it was."""
    try:
        run.write(record)
    except RecordError as error:
        return str(error)
    return ""
