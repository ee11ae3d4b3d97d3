"""The addresses of the dashboard, and the server behind them."""

import contextlib
import socket
from collections.abc import Callable
from typing import Annotated, Any, Final

import uvicorn
from fastapi import FastAPI, HTTPException, Path, Query, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from markupsafe import Markup

from hotlap import __version__
from hotlap.guard.changes import MEASURES
from hotlap.guard.history import Filter, History, moment
from hotlap.records.errors import RecordError, UsageError, unable
from hotlap.records.history import Entry, Series
from hotlap.report.page import PLOTLY_FILE, filled, plotly_source, source, templates

from . import views
from .gate import Gate, check_token

LONGEST: Final = 500
"""Characters of a filter."""
HEADERS: Final = {
    "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}  # fmt: skip
MOST: Final = (1 << 31) - 1
Text = Annotated[str, Query(max_length=LONGEST)]
Number = Annotated[int, Query(ge=1, le=MOST)]
Id = Annotated[int, Path(ge=1, le=MOST)]


def application(history: History, token: str | None = None) -> Any:
    """The application. token: that each request has to carry, None: only this machine may ask."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    package = str(__package__)

    def page(name: str, title: str, chart: Any = None, **more: Any) -> HTMLResponse:
        told = {"history": history.name, "version": __version__, "measures": views.TITLES, **more}
        charts = {} if chart is None else {"trend": chart}
        own = [source("trend.js", package)] if charts else []
        shared = f"/{PLOTLY_FILE}" if charts else None
        return HTMLResponse(
            filled(
                templates(package), name, title, charts, own, shared_script=shared, plotly=None,
                more_style=Markup(source("dashboard.css", package)), **told,
            ),
            headers=HEADERS,
        )  # fmt: skip

    def known(measure: str) -> str:
        if measure not in MEASURES:
            raise HTTPException(404, f"no measure {measure[:40]!r}; there are {', '.join(MEASURES)}")
        return measure

    def there(found: Any, what: str) -> Any:
        if found is None:
            raise HTTPException(404, f"the history has no such {what}")
        return found

    @app.get("/")
    def overview(
        project: Text = "",
        command: Text = "",
        host: Text = "",
        commit: Text = "",
        since: Text = "",
        measure: Text = "step",
    ) -> HTMLResponse:
        wanted = Filter(
            project=project or None, command=command, host=host, commit=commit.strip(),
            since=moment(since) if since.strip() else None,
        )  # fmt: skip
        found = views.overview(history, wanted, known(measure))
        filters = {
            "project": project,
            "command": command,
            "host": host,
            "commit": commit,
            "since": since,
            "measure": measure,
        }
        chart = found["trend"]["chart"] if found["trend"] else None
        return page("overview.html.j2", project or "all projects", chart, d=found, filters=filters, measure=measure)

    @app.get("/series/{number}")
    def series(number: Id, measure: Text = "step") -> HTMLResponse:
        one: Series = there(history.one_series(number), "series")
        found = views.trend_of(history, one, known(measure))
        hosts = views.hosts_of(history, one, measure)
        return page("series.html.j2", one.command, found["chart"], d=found, hosts=hosts, measure=measure)

    @app.get("/run/{number}")
    def run(number: Id) -> HTMLResponse:
        one: Entry = there(history.entry(number), "run")
        return page("run.html.j2", f"run {number}", d=views.run_of(one), others=views.others(history, one))

    @app.get("/compare")
    def compare(before: Number, after: Number) -> HTMLResponse:
        pair: list[Entry] = [there(history.entry(number), "run") for number in (before, after)]
        return page("compare.html.j2", f"run {before} against run {after}", d=views.comparison(*pair))

    @app.get(f"/{PLOTLY_FILE}")
    def plotly() -> Response:
        lasting = {**HEADERS, "Cache-Control": "private, max-age=31536000, immutable"}
        return Response(plotly_source(), media_type="text/javascript", headers=lasting)

    @app.exception_handler(RecordError)
    def unreadable(request: Request, error: Exception) -> Response:
        return PlainTextResponse(str(error), 503, headers=HEADERS)

    @app.exception_handler(UsageError)
    def misused(request: Request, error: Exception) -> Response:
        return PlainTextResponse(str(error), 400, headers=HEADERS)

    return Gate(app, token)


def serve(history: History, host: str, port: int, token: str | None, told: Callable[[str], None]) -> None:
    """Answer until Ctrl-C. port: 0 takes a free one. told: is given the address, once it answers. Raises UsageError
    where others could ask without a token, RecordError where it can't listen there."""
    check_token(host, token)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with unable(f"listen on {host}:{port}"):
            listening.bind((host, port))
            listening.listen()
        shown = f"[{host}]" if ":" in host else host
        told(f"http://{shown}:{listening.getsockname()[1]}")
        server = uvicorn.Server(
            uvicorn.Config(application(history, token), log_level="warning", access_log=False, lifespan="off")
        )
        with contextlib.suppress(KeyboardInterrupt):  # which it raises again once it has ended
            server.run(sockets=[listening])
