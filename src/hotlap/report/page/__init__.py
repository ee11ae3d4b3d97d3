"""One HTML page of a run, a trace or a tune. It computes nothing: what it shows is in the `Page` it is given.

A panel is a module here with `data(page)`, which is what its template `templates/NAME.html.j2` sees as `d`, or None
where there is nothing to show; what lies under "chart" is also embedded as JSON for `templates/NAME.js`.

Everything from a run is untrusted. Templates escape it, control and direction characters are taken out, and the JSON
has no character that could end its element. The page's policy lets only the scripts run that hotlap wrote, and no
request leave it.
"""

from .render import PLOTLY_FILE, filled, plotly_source, render, source, templates

__all__ = ["PLOTLY_FILE", "filled", "plotly_source", "render", "source", "templates"]
