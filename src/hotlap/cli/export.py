"""`hotlap export` and `hotlap open`."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from hotlap.records.errors import RecordError, UsageError
from hotlap.records.files import new_folder
from hotlap.report.console import plain, stdout_console


def export(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")],
    to: Annotated[
        str, typer.Option(help="container, csv, mlflow, mlperf, otlp, perfetto, prometheus, tensorboard or wandb.")
    ],
    out: Annotated[Path | None, typer.Option(help="File or folder to write; by default in FOLDER/export.")] = None,
    replace: Annotated[
        bool, typer.Option(help="Replace a file that exists (csv, mlperf, otlp, perfetto, prometheus).")
    ] = False,
    online: Annotated[bool, typer.Option(help="wandb: send it at once, with your login.")] = False,
) -> int:
    """Write a run's numbers for another tool: those of steps.jsonl and diagnosis.json. Nothing leaves the machine.
    `container` writes its environment instead, as a Containerfile with pinned versions.

    Examples:

      hotlap export hotlap-runs/1121-103000-run-train --to tensorboard

      hotlap export hotlap-runs/1121-103000-run-train --to prometheus --out /var/lib/node_exporter/hotlap.prom --replace
    """
    from hotlap.export import all_targets
    from hotlap.export.series import read_series  # what is below reads traces, and takes a moment to import

    target = all_targets().get(to)
    if target is None:
        raise UsageError(f"no target {to!r}; targets are {', '.join(all_targets())}")
    if online and target.online is None:
        raise UsageError("--online goes with --to wandb")
    series = read_series(folder)
    path = out or folder / "export" / f"{target.name}{target.suffix}"
    _ready(path, bool(target.suffix), replace)
    said = (target.online if online and target.online else target.write)(series, path)
    console = stdout_console(soft_wrap=True)
    for line in (f"written  {path}", *(f"{target.label:8} {one}" for one in said)):
        console.print(plain(line))
    return 0


def _ready(path: Path, is_file: bool, replace: bool) -> None:
    """Make what the target writes into. Raises RecordError where something would be overwritten."""
    if not is_file:
        if replace:
            raise UsageError("--replace goes with targets that write one file")
        new_folder(path)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"cannot make {path.parent}: {error.strerror or error}") from error
    if path.is_dir() or (path.exists() and not replace):
        raise RecordError(f"{path} exists and was not overwritten. Give --out another name, or --replace")


def open_(
    path: Annotated[Path, typer.Argument(help="A run with traces, a trace, or a folder of the traces of its ranks.")],
    browser: Annotated[bool, typer.Option(help="Start the browser.")] = True,
) -> int:
    """Open traces in Perfetto: several ranks as one trace. The file goes from this machine to your browser only.

    Serves one file on 127.0.0.1:9001, the one address that ui.perfetto.dev may fetch from, until it has been fetched or
    Ctrl-C. From another machine, first: ssh -L 9001:127.0.0.1:9001 HOST.

    Examples:

      hotlap open hotlap-runs/1121-103000-run-train

      hotlap open --no-browser trace.json.gz
    """
    from hotlap.export.serve import address, in_one_file, serve, snapshots

    console = stdout_console(soft_wrap=True)
    for found in snapshots(path):
        console.print(plain(f"memory   drag {found} into https://pytorch.org/memory_viz"))
    with in_one_file(path) as trace, serve(trace) as server:
        console.print(plain(f"trace    {address(trace)}"))
        console.print(plain(f"serving  {trace} until it has been fetched; Ctrl-C ends it", "dim"))
        if browser:
            webbrowser.open(address(trace))
        server.until_fetched()
    return 0
