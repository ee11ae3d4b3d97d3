"""`hotlap show`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType

from hotlap.diagnose.verdict import judged
from hotlap.records.check import Check
from hotlap.records.errors import NothingMeasured
from hotlap.records.suite import Suite
from hotlap.records.tune import Tune
from hotlap.report.bench_screen import bench_screen
from hotlap.report.check_screen import check_screen
from hotlap.report.oom_screen import oom_screen
from hotlap.report.run_screen import run_screen
from hotlap.report.tune_screen import tune_screen
from hotlap.runs.folder import RunFolder, TuneFolder

from ._beside import screens
from ._common import print_json
from ._price import HELP as PRICE
from ._price import price_of
from .run import RunDocument, out_of_memory, shown_with, why_none


def show(
    folder: Annotated[Path, typer.Argument(help="The folder of a run, a tune, a check or a bench.")],
    price: Annotated[str | None, typer.Option(metavar="DOLLARS|FILE", help=PRICE)] = None,
    json: Annotated[bool, typer.Option(help="Print the documents instead.")] = False,
) -> int:
    """Show the verdict of a finished run, tune, check or bench again, from its folder alone.

    Example:

      hotlap show hotlap-runs/1121-103000-run-train
    """
    priced = price_of(price)
    if (shown := _of_several(TuneFolder(folder))) is not None:
        print_json(shown[0]) if json else Console().print(shown[1])
        return 0
    run = RunFolder(folder)
    record = run.record
    diagnosis, why = judged(folder)
    if diagnosis is not None:
        priced.check([diagnosis.device_name or diagnosis.device])
    lacked = out_of_memory(run, record)
    if json:
        print_json(RunDocument(str(folder), record, diagnosis, why, lacked))
    else:
        said = why_none(why, lacked)
        screen = run_screen(record, shown_with(diagnosis, lacked), run.problems, folder, said, priced.of(diagnosis))
        Console().print(screen, *screens(folder), *([oom_screen(lacked, record)] if lacked else []), sep="")
    return 0 if diagnosis is not None else NothingMeasured.exit_code


def _of_several(folder: TuneFolder) -> tuple[Tune | Check | Suite, RenderableType] | None:
    """The result of several runs, and its screen; None where the folder is of one."""
    if (tuned := folder.tune) is not None:
        return tuned, tune_screen(tuned, folder.path)
    if (checked := folder.check) is not None:
        return checked, check_screen(checked, folder.path)
    if (benched := folder.bench) is not None:
        return benched, bench_screen(benched, folder.path)
    return None
