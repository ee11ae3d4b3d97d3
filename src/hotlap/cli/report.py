"""`hotlap report`."""

from pathlib import Path
from typing import Annotated, Final

import typer

from hotlap.records.errors import RecordError, UsageError
from hotlap.records.files import write_atomic

from ._common import reading

PAGE: Final = "report.html"
OURS: Final = b"<!doctype html>\n<!-- hotlap report -->"


def report(
    path: Annotated[Path, typer.Argument(help="The folder of a run or a tune, a trace, or a folder of traces.")],
    out: Annotated[Path | None, typer.Option(help="The page; by default report.html in the folder.")] = None,
    shared_js: Annotated[
        bool, typer.Option(help="Write the chart library once beside the page, for many pages in one folder.")
    ] = False,
    source: Annotated[bool, typer.Option(help="Show lines of the user's own files around each finding.")] = True,
) -> int:
    """Write one page that shows where the time went and what to try first. It opens offline, anywhere.

    Examples:

      hotlap report hotlap-runs/1121-103000-run-train

      hotlap report trace.json.gz --out trace.html
    """
    if not path.exists():
        raise UsageError(f"{path} is not there; give the folder of a run or a tune, or a trace")
    from hotlap.diagnose.gather import gather  # polars takes a moment to import, and so do templates
    from hotlap.report.page import PLOTLY_FILE, plotly_source, render

    target = out or (path / PAGE if path.is_dir() else path.with_name(f"{path.name.split('.json')[0]}.html"))
    _may_write(target)
    with reading() as bar:
        task = bar.add_task("", total=None)
        page = gather(path, source, lambda name, at: bar.update(task, description=name[:60]))
    html = render(page, PLOTLY_FILE if shared_js else None)
    target.parent.mkdir(parents=True, exist_ok=True)
    if shared_js and not (target.parent / PLOTLY_FILE).is_file():
        write_atomic(target.parent / PLOTLY_FILE, plotly_source().encode())
    write_atomic(target, html.encode("utf-8", "replace"))
    typer.echo(str(target))
    return 0


def _may_write(target: Path) -> None:
    """Only a page of hotlap's own is written over. Raises RecordError."""
    if not target.exists():
        return
    try:
        with target.open("rb") as file:
            ours = file.read(len(OURS)) == OURS
    except OSError as error:
        raise RecordError(f"cannot write {target}: {error.strerror or error}") from error
    if not ours:
        raise RecordError(
            f"{target} exists and is not a page of hotlap's; it was not overwritten. Give --out another name"
        )
