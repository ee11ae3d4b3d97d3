"""OpenTelemetry metrics as a file: a line of OTLP JSON a batch, as the specification's file exporter writes it.

https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/: JSON lines, names in lowerCamelCase, 64-bit integers
as text. The Collector's `otlpjsonfile` receiver reads it.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from hotlap.records.errors import unable
from hotlap.records.files import to_json

from ._base import PREFIX, Target
from .series import Series, labels, scalars, totals

BATCH: Final = 500
"""Steps a line: about a megabyte."""


def write(series: Series, path: Path) -> list[str]:
    """Gauges by step, one resource a rank, and those of the diagnosis at the end of the run."""
    with unable(f"write {path}"), path.open("wb") as file:
        for line in _lines(series):
            file.write(to_json(line) + b"\n")
    return [f"{path}: for the otlpjsonfile receiver of the OpenTelemetry Collector"]


def _lines(series: Series) -> Iterator[dict[str, Any]]:
    last = series.run.started
    for rank in series.folder.ranks:
        steps = rank.steps
        while batch := list(islice(steps, BATCH)):
            last = max(last, batch[-1].time)
            points = ((k, step.time, value) for step in batch for k, value in scalars(step, series.clock).items())
            yield _line(series, {"rank": str(rank.number)}, _metrics(points))
    if series.diagnosis is not None:
        points = ((f"run/{name}", last, value) for name, value in totals(series.diagnosis).items())
        yield _line(series, {}, _metrics(points))


def _line(series: Series, resource: dict[str, str], metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    told = {"service.name": PREFIX, "service.instance.id": series.name}
    told |= {f"{PREFIX}.{name}": text for name, text in {**labels(series), **resource}.items()}
    scope = {"name": PREFIX, "version": series.run.environment.hotlap}
    found = {"resource": {"attributes": _attributes(told)}, "scopeMetrics": [{"scope": scope, "metrics": metrics}]}
    return {"resourceMetrics": [found]}


Point = tuple[str, float, float]
"""Name, time in seconds since the epoch, value."""


def _metrics(points: Iterable[Point]) -> list[dict[str, Any]]:
    """One gauge a name, `phase/data_ms` as `hotlap.phase` with the attribute `phase`."""
    found: dict[str, list[dict[str, Any]]] = {}
    units: dict[str, str] = {}
    for name, time, value in points:
        path, unit = (name.removesuffix("_ms"), "ms") if name.endswith("_ms") else (name, "1")
        key, attributes = _named(path)
        units[key] = unit
        point = {"timeUnixNano": str(round(time * 1e9)), "asDouble": value, "attributes": _attributes(attributes)}
        found.setdefault(key, []).append(point)
    return [{"name": key, "unit": units[key], "gauge": {"dataPoints": made}} for key, made in found.items()]


def _named(path: str) -> tuple[str, dict[str, str]]:
    """`run/finding/input` is `hotlap.run.finding` of the finding `input`."""
    *groups, last = path.split("/")
    if groups and groups[-1] in {"phase", "gpu_phase", "finding"}:
        return ".".join((PREFIX, *groups)), {groups[-1].removeprefix("gpu_"): last}
    return ".".join((PREFIX, *groups, last)), {}


def _attributes(texts: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": text}} for key, text in texts.items()]


TARGET = Target("otlp", ".jsonl", write)
