"""`hotlap calibrate`."""

import shutil
import sys
from typing import Annotated

import typer

from hotlap.launch.calibrate import measured_peaks
from hotlap.records.errors import UsageError
from hotlap.report.console import columns, count, plain, stdout_console
from hotlap.trace.peaks import keep

from ._common import print_json

KINDS = ("fp32", "tf32", "bf16", "fp16", "fp64", "fp64_tensor")


def calibrate(
    python: Annotated[list[str] | None, typer.Argument(help="The job's Python; by default the first on PATH.")] = None,
    save: Annotated[bool, typer.Option(help="Keep the result for `hotlap trace` on this machine.")] = True,
    json: Annotated[bool, typer.Option(help="Print the record instead.")] = False,
) -> int:
    """Measure what the device can do: matrix products by type, and a copy. Takes about a minute.

    `hotlap trace` compares ops with data sheets, or with this, where it was measured on a device of the same name.

    Examples:

      hotlap calibrate

      hotlap calibrate .venv/bin/python
    """
    words = python or [shutil.which("python") or sys.executable]
    if words[0].startswith("-"):
        raise UsageError(f"no option {words[0]}; try hotlap calibrate --help")
    found = measured_peaks(words)
    kept = keep(found) if save else None
    if json:
        print_json(found)
        return 0
    table = columns("measured", "", right=("",))
    for kind in KINDS:
        rate = getattr(found, kind)
        if rate is not None:
            table.add_row(f"{kind} products", f"{count(rate)} TFLOP/s")
    table.add_row("copy", f"{count(found.memory_gbs)} GB/s")
    console = stdout_console()
    console.print(plain(found.name, "bold"), table, plain(found.source, "dim"))
    if kept is not None:
        console.print(plain(f"kept in {kept}", "dim"))
    return 0
