"""`hotlap serve`."""

import os
from typing import Annotated

import typer

from hotlap.records.errors import missing_named
from hotlap.report.console import plain, stdout_console

from .history import Db


def serve(
    db: Db = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; other than of this machine only with a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8737,
    token: Annotated[
        str | None,
        typer.Option(help="That each request has to carry; by default $HOTLAP_TOKEN, which other users can't read."),
    ] = None,
) -> int:
    """Show the history in a browser: trends with change points, run against run, by commit and by machine.

    Only this machine can ask, unless --host and a token are given. From another machine: ssh -L 8737:127.0.0.1:8737
    HOST. Ctrl-C ends it.

    Examples:

      hotlap serve

      HOTLAP_TOKEN=$(openssl rand -hex 16) hotlap serve --host 0.0.0.0
    """
    with missing_named("serve"):
        from hotlap.dashboard.app import serve as answer
        from hotlap.guard.history import open_history
    console = stdout_console(soft_wrap=True)
    with open_history(db) as found:

        def told(address: str) -> None:
            console.print(plain(f"serving  {found.name}"))
            console.print(plain(f"open     {address}"))

        answer(found, host, port, token or os.environ.get("HOTLAP_TOKEN") or None, told)
    return 0
