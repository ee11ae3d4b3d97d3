"""`hotlap show`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hotlap.diagnose.verdict import judged
from hotlap.records.errors import NothingMeasured
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
    folder: Annotated[Path, typer.Argument(help="The folder of a run, a tune or a check.")],
    price: Annotated[str | None, typer.Option(metavar="DOLLARS|FILE", help=PRICE)] = None,
    json: Annotated[bool, typer.Option(help="Print the documents instead.")] = False,
) -> int:
    """Show the verdict of a finished run, tune or check again, from its folder alone.

    Example:

      hotlap show hotlap-runs/1121-103000-run-train
    """
    priced = price_of(price)
    if (tuned := TuneFolder(folder).tune) is not None:
        if json:
            print_json(tuned)
        else:
            Console().print(tune_screen(tuned, folder))
        return 0
    if (checked := TuneFolder(folder).check) is not None:
        if json:
            print_json(checked)
        else:
            Console().print(check_screen(checked, folder))
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
