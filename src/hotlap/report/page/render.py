"""Templates, scripts and data become one page."""

import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import distribution, version
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import jinja2
import msgspec
from markupsafe import Markup

from ...records.files import to_json
from ...records.page import Page
from .. import console
from .text import FILTERS, term

PANELS: Final = (
    "verdict",
    "waterfall",
    "breakdown",
    "parity",
    "findings",
    "advise",
    "timeline",
    "steps",
    "ranks",
    "roofline",
    "memory",
    "environment",
    "links",
)
"""In the order of the page."""
PLOTLY_FILE: Final = f"hotlap-plotly-{version('plotly')}.min.js"
"""Name of the script that many pages share."""
PLOTTED: Final = ("parity", "steps", "roofline", "memory")
"""Panels with charts of plotly's. It is large, so its script only runs when one of them comes into view."""
ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}
END_OF_SCRIPT: Final = re.compile(r"</(?=script)", re.I)


def plotly_source() -> str:
    """plotly.js, as the plotly package ships it."""
    found = Path(str(distribution("plotly").locate_file("plotly/package_data/plotly.min.js")))
    return found.read_text("utf-8")


def render(page: Page, shared_script: str | None = None) -> str:
    """The page. shared_script: name of a file beside it that holds plotly.js, None to have it inside."""
    shown = {name: data for name in PANELS if (data := _module(name).data(page)) is not None}
    charts = {name: data["chart"] for name, data in shown.items() if data.get("chart") is not None}
    plotted = any(name in charts for name in PLOTTED)
    return filled(
        templates(),
        "page.html.j2",
        page.title,
        charts,
        [source(f"{name}.js") for name in charts],
        page=page,
        panels=shown,
        titles={name: _module(name).TITLE for name in shown},
        plotly=script(plotly_source()) if plotted and shared_script is None else None,
        shared_script=shared_script if plotted else None,
    )


def filled(
    found: jinja2.Environment, name: str, title: str, charts: Mapping[str, Any], scripts: Sequence[str], **more: Any
) -> str:
    """A template that extends `layout.html.j2`. charts: what the scripts of panels are given, by the panel's name."""
    return found.get_template(name).render(
        title=title,
        data=embedded(charts),
        nonce=secrets.token_urlsafe(16),
        style=Markup(source("page.css")),
        scripts=[script(one) for one in (source("page.js"), *scripts)],
        **more,
    )


def embedded(value: Any) -> Markup:
    """JSON that can stand in a script element: nothing in it ends the element or a line of script."""
    return Markup(to_json(_cleaned(msgspec.to_builtins(value))).decode().translate(ESCAPES))


def script(source: str) -> Markup:
    """hotlap's own or plotly's script, such that it can not end its element."""
    return Markup(END_OF_SCRIPT.sub(r"<\\/", source))


def _cleaned(value: Any) -> Any:
    """Texts on one line without control and direction characters, and of bounded length."""
    if isinstance(value, str):
        return console.clean(value)
    if isinstance(value, Mapping):
        return {console.clean(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not all(isinstance(item, (int, float)) for item in value):
        return [_cleaned(item) for item in value]
    return value


def _module(name: str) -> ModuleType:
    return import_module(f".{name}", __package__)


def source(name: str, package: str = __package__) -> str:
    """A style or a script among a package's templates."""
    return (files(package) / "templates" / name).read_text("utf-8")


@cache
def templates(*packages: str) -> jinja2.Environment:
    """The templates of these packages, and those of the report."""
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(one, "templates") for one in (*packages, __package__)]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: console.clean(value) if type(value) is str else value,
    )
    made.filters.update(FILTERS)
    made.globals.update(term=term)
    return made
