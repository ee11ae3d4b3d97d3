"""A run of Weights & Biases, written offline by its own library; the network is used only where that is asked for."""

import os
from pathlib import Path
from typing import Any

from ._base import PREFIX, Target, load
from .series import Series, labels, scalars, settings, totals


def write(series: Series, path: Path) -> list[str]:
    """An offline run in a folder; `wandb sync` sends it later."""
    _write(series, path, "offline")
    return [f"wandb sync {path}/wandb/offline-run-*   (sends it; nothing was sent so far)"]


def online(series: Series, path: Path) -> list[str]:
    """The same, sent at once with the account that `wandb login` has set up."""
    return [f"sent to {_write(series, path, 'online')}"]


def _write(series: Series, path: Path, mode: str) -> str | None:
    if mode == "offline":
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # else its crash reports go out, offline or not
    wandb = load("wandb", "wandb")
    quiet = wandb.Settings(
        console="off", silent=True, save_code=False, disable_git=True, x_disable_stats=True, x_disable_meta=True
    )
    run = wandb.init(
        project=PREFIX,
        name=series.name,
        dir=str(path),
        mode=mode,
        config={**labels(series), **settings(series)},
        settings=quiet,
        reinit="create_new",
    )
    run.define_metric("*", step_metric="step")
    for at, rank in enumerate(series.folder.ranks):
        prefix = f"rank-{rank.number}/" if at else ""
        for step in rank.steps:
            run.log({"step": step.step, "time": step.time, **_named(prefix, scalars(step, series.clock))})
    if series.diagnosis is not None:
        run.summary.update(_named("run/", totals(series.diagnosis)))
    url: Any = run.url if mode == "online" else None
    run.finish()
    return str(url) if url else None


def _named(prefix: str, values: dict[str, float]) -> dict[str, float]:
    return {f"{prefix}{name}": value for name, value in values.items()}


TARGET = Target("wandb", "", write, online)
