"""The numbers of a run under the names that all targets use.

A step's scalars: `step_ms`, `gpu_step_ms`, `phase/NAME_ms`, `gpu_phase/NAME_ms`, `samples_per_s`, `tokens_per_s`,
`loss`. Times in ms.
Steps that were probed or profiled have a loss only: their times are not to be quoted. What is not known has no point.
A run's scalars are those of diagnosis.json.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hotlap.diagnose.steps import on_clock
from hotlap.diagnose.verdict import judged
from hotlap.records.diagnosis import Clock, Diagnosis
from hotlap.records.phases import PHASES
from hotlap.records.run import Phases, Run, Step
from hotlap.runs.folder import RunFolder


@dataclass(frozen=True)
class Series:
    """A run. diagnosis: None where nothing could be judged."""

    folder: RunFolder
    run: Run
    diagnosis: Diagnosis | None

    @property
    def clock(self) -> Clock:
        """Whose clock shows the steps' true pace."""
        return self.diagnosis.clock if self.diagnosis else "host"

    @property
    def name(self) -> str:
        """What the run is called elsewhere."""
        return self.folder.path.resolve().name


def read_series(folder: Path) -> Series:
    """A run to export, with the verdict of its end, or one made now where there is none. Raises RecordError."""
    run = RunFolder(folder)
    record = run.record
    return Series(run, record, run.diagnosis or judged(folder)[0])


def scalars(step: Step, clock: Clock) -> dict[str, float]:
    """The numbers of a step by name. clock: whose `step_ms` and `samples_per_s` are, as the diagnosis has it."""
    found: dict[str, float | None] = {} if step.probe else _times(step, on_clock(step, clock))
    found["loss"] = step.loss
    return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}


def _times(step: Step, step_ms: float | None) -> dict[str, float | None]:
    rate = step.samples / (step_ms / 1000) if step.samples is not None and step_ms else None
    return {
        "step_ms": step_ms,
        "gpu_step_ms": step.gpu_ms,
        **_phases("phase", step.phases),
        **_phases("gpu_phase", step.gpu_phases),
        "samples_per_s": rate,
        "tokens_per_s": step.tokens / (step_ms / 1000) if step.tokens is not None and step_ms else None,
    }


def _phases(prefix: str, phases: Phases | None) -> dict[str, float | None]:
    return {f"{prefix}/{name}_ms": getattr(phases, name) if phases else None for name in PHASES}


def totals(diagnosis: Diagnosis) -> dict[str, float]:
    """The numbers of a run by name: `step_ms`, `step_p10_ms` and so on, `throughput`, phases, the findings' shares."""
    found: dict[str, float | None] = {
        "step_ms": diagnosis.step_ms,
        "step_p10_ms": diagnosis.spread.p10,
        "step_p50_ms": diagnosis.spread.p50,
        "step_p90_ms": diagnosis.spread.p90,
        "gpu_step_ms": diagnosis.gpu_ms,
        "throughput": diagnosis.throughput,
        "tokens_s": diagnosis.tokens_s,
        "mfu": diagnosis.utilisation.mfu if diagnosis.utilisation else None,
        "steps": diagnosis.steps,
        "steady_steps": diagnosis.steady_steps,
        "ranks": diagnosis.ranks,
        **_phases("phase", diagnosis.phases),
        **_phases("gpu_phase", diagnosis.gpu_phases),
        **shares(diagnosis),
    }
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


def shares(diagnosis: Diagnosis) -> dict[str, float]:
    """The share of the step that each finding takes; of several with one id the largest."""
    found: dict[str, float] = {}
    for finding in diagnosis.findings:
        name = f"finding/{finding.id}"
        found[name] = max(finding.share, found.get(name, 0.0))
    return found


def labels(series: Series) -> dict[str, str]:
    """What the run was, as text: the command, how it ended, the bound, versions, levers."""
    run, found = series.run, series.diagnosis
    said = {
        "command": " ".join(run.command),
        "status": run.status,
        "hotlap": run.environment.hotlap,
        "git_commit": run.environment.git_commit,
        "levers": ", ".join(lever.name for lever in run.levers),
        "recipe": run.recipe,
        "bound": found.bound if found else None,
        "mode": found.mode if found else None,
        "device": (found.device_name or found.device) if found else None,
        "throughput_unit": found.throughput_unit if found and found.throughput is not None else None,
    }
    return {name: clipped(text) for name, text in said.items() if text}


def clipped(text: str, most: int = 500) -> str:
    """Outside text without what no UTF-8 can hold, and of bounded length."""
    return text.encode("utf-8", "replace").decode()[:most]


def settings(series: Series) -> dict[str, str]:
    """The levers' settings and the environment's variables, as text."""
    levers = {f"lever/{one.name}": msgspec.json.encode(one.settings).decode() for one in series.run.levers}
    return {name: clipped(text) for name, text in (*levers.items(), *series.run.environment.variables.items())}
