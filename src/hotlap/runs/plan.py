"""A run before it begins: what to run and how, as data."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

from hotlap.records.run import Environment, Lever, Run
from hotlap.records.session import LeverUse, Session, Settings

PACKAGE: Final = Path(__file__).resolve().parents[1]
"""hotlap's own folder."""


@dataclass(frozen=True)
class RunPlan(Settings):
    """What to run and how. perf, py_spy: their paths, to attach to a command in the foreground; capture: the profiler
    that is put in front of it (`nsys`, `ncu`), for `capture_steps`, "" for none."""

    command: tuple[str, ...]
    folder: Path
    environment: Environment
    levers: tuple[Lever, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    recipe: str | None = None
    options: tuple[str, ...] = ()
    perf: str | None = None
    py_spy: str | None = None
    capture: str = ""
    cwd: Path = field(default_factory=Path.cwd)

    def session(self) -> Session:
        """What the agent is told."""
        told = {one.name: getattr(self, one.name) for one in fields(Settings)}
        told["folder"], told["package"] = str(self.folder.resolve()), str(PACKAGE)
        told["levers"] = tuple(LeverUse(lever.name, dict(lever.settings)) for lever in self.levers)
        told["capture_steps"] = self.capture_steps if self.capture else 0
        return Session(**told, capture=self.capture)

    def record(self) -> Run:
        """The run as it begins."""
        return Run(
            command=self.command, cwd=str(self.cwd), environment=self.environment, started=time.time(),
            seed=self.seed, levers=self.levers, recipe=self.recipe, options=self.options,
        )  # fmt: skip
