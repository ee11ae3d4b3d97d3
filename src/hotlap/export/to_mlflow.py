"""A run of MLflow in a local store, an SQLite file, written by MLflow's own client."""

import os
from itertools import islice
from pathlib import Path
from typing import Any, Final

from ._base import PREFIX, Target, load
from .series import Series, labels, scalars, settings, totals

BATCH: Final = 1000
"""Metrics in one call: the most that MLflow takes."""


def write(series: Series, path: Path) -> list[str]:
    """A store in a file, with one run. Metrics by step at the time they were taken, the diagnosis's under `run/`."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read at import; nothing leaves the machine
    tracking = load("mlflow.tracking", "mlflow")
    entities = load("mlflow.entities", "mlflow")
    client = tracking.MlflowClient(tracking_uri=_address(path))
    artefacts = path.with_suffix(".artifacts").resolve().as_uri()
    experiment = client.create_experiment(PREFIX, artifact_location=artefacts)
    begun = round(series.run.started * 1000)
    run_id = client.create_run(experiment, run_name=series.name, start_time=begun).info.run_id
    params = [entities.Param(name, text) for name, text in {**labels(series), **settings(series)}.items()]
    client.log_batch(run_id, params=params[:100])
    last = _log_steps(series, client, entities.Metric, run_id)
    if series.diagnosis is not None:
        found = totals(series.diagnosis).items()
        client.log_batch(run_id, [entities.Metric(f"run/{name}", value, last, 0) for name, value in found])
    client.set_terminated(run_id, "FINISHED" if series.run.exit_code == 0 else "FAILED", last or None)
    return [f"mlflow ui --backend-store-uri {_address(path)}"]


def _address(path: Path) -> str:
    """Files of folders, MLflow's older store, are no longer kept up by it."""
    return f"sqlite:///{path.resolve()}"


def _log_steps(series: Series, client: Any, metric: Any, run_id: str) -> int:
    """Log the steps of all ranks; returns the time of the last one, ms since the epoch."""
    last = 0
    for at, rank in enumerate(series.folder.ranks):
        prefix = f"rank-{rank.number}/" if at else ""
        points = (
            metric(prefix + name, value, round(step.time * 1000), step.step)
            for step in rank.steps
            for name, value in scalars(step, series.clock).items()
        )
        while batch := list(islice(points, BATCH)):
            client.log_batch(run_id, batch)
            last = max(last, batch[-1].timestamp)
    return last


TARGET = Target("mlflow", ".db", write)
