"""Prometheus's text format, as the textfile collector of node_exporter reads it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from hotlap.records.files import write_atomic
from hotlap.records.phases import PHASES

from ._base import PREFIX, Target, load
from .series import Series, labels, shares, totals

Point = tuple[dict[str, str], float]
INFO: Final = ("bound", "mode", "device", "status")
COUNTS: Final = {
    "steps": "Steps that were seen.",
    "steady_steps": "Steps that the numbers rest on.",
    "ranks": "Training processes.",
}
QUANTILES: Final = {"step_p10_ms": "0.1", "step_p50_ms": "0.5", "step_p90_ms": "0.9"}


def write(series: Series, path: Path) -> list[str]:
    """Gauges of the whole run: the format holds no history. Times in seconds, as Prometheus wants them."""
    client = load("prometheus_client.core", "prometheus")
    exposition = load("prometheus_client.exposition", "prometheus")
    write_atomic(path, exposition.generate_latest(_Collector(client, series)))
    return [f"{path}: for the folder of --collector.textfile.directory of node_exporter"]


class _Collector:
    """What prometheus_client asks for metrics."""

    def __init__(self, client: Any, series: Series) -> None:
        self.client, self.series = client, series

    def collect(self) -> Iterator[Any]:
        for name, told, points in _gauges(self.series):
            names = ["run", *(points[0][0] if points else ())]
            family = self.client.GaugeMetricFamily(f"{PREFIX}_{name}", told, labels=names)
            for extra, value in points:
                family.add_metric([self.series.name, *extra.values()], value)
            yield family


def _gauges(series: Series) -> Iterator[tuple[str, str, list[Point]]]:
    """Name, meaning, labels and value of each."""
    yield "run_info", "What the run was.", [({name: labels(series).get(name, "") for name in INFO}, 1.0)]
    diagnosis = series.diagnosis
    if diagnosis is None:
        return
    found = totals(diagnosis)
    yield "step_seconds", "A step, as diagnosis.json has it.", [({}, found["step_ms"] / 1000)]
    quantiles: list[Point] = [({"quantile": text}, found[name] / 1000) for name, text in QUANTILES.items()]
    yield "step_quantile_seconds", "Quantiles over single steady steps.", quantiles
    yield "phase_seconds", "Mean time of a step in a phase, by clock.", list(_phases(found))
    if "throughput" in found:
        unit = {"unit": diagnosis.throughput_unit}
        yield "throughput", "Rows a second over all ranks.", [(unit, found["throughput"])]
    findings: list[Point] = [
        ({"finding": name.removeprefix("finding/")}, share) for name, share in shares(diagnosis).items()
    ]
    yield "finding_share", "Share of the step that a finding takes.", findings
    for name, told in COUNTS.items():
        yield name, told, [({}, found[name])]


def _phases(found: dict[str, float]) -> Iterator[Point]:
    for prefix, clock in (("phase", "host"), ("gpu_phase", "device")):
        for phase in PHASES:
            if (value := found.get(f"{prefix}/{phase}_ms")) is not None:
                yield {"phase": phase, "clock": clock}, value / 1000


TARGET = Target("prometheus", ".prom", write)
