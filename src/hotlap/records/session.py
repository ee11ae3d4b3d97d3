"""What the parent tells the agent: one JSON file, named by the environment variable HOTLAP_SESSION.

Standard library only: the agent imports this file inside the user's process.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "HOTLAP_SESSION"
ENDED_HARD: Final = 121
"""Exit code of a command under `hotlap run --steps` that did not end by itself after its steps."""


@dataclass(frozen=True)
class LeverUse:
    """One lever put in, with its settings (plain JSON values)."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Of one run, as its plan and its agent have them.

    steps: steady steps after which the command is ended, None to let it run. seconds: end after this many seconds of
    steady steps, whichever of the two comes first, but never before `least_steps`. seed: set before the script's own
    code, None to leave it alone. probe_steps: first steps in which the evidence of parity is taken. nudge: relative
    size of a change made to the weights before the first step (the twin that shows how far rounding carries). redraw:
    reseed the random generators after the first batch (the twin that shows how far other random draws carry).
    profile_steps: steps to record with torch.profiler, 0 for no profile; profile_memory, profile_stacks: with
    allocations, with Python stacks. memory: tell whose memory it is, over some steps. capture_steps: steps that the
    profiler in front of the command is to record, 0 for none. every_step: look at the phases of every step, however
    short. turns: path of the socket at which turns are given once the steps are made (`agent.turnstile`); "" to end
    then. first_steps: made before it stands still there for the first time; 0 to do so where the loop begins. grace_s:
    seconds that a process has to end by itself after its steps, before it is ended hard, with the exit code hard_code;
    that is also so where the script has caught its end twice.
    """

    steps: int | None = None
    seconds: float | None = None
    least_steps: int = 10
    seed: int | None = None
    probe_steps: int = 0
    nudge: float = 0.0
    redraw: int | None = None
    profile_steps: int = 0
    profile_memory: bool = False
    profile_stacks: bool = False
    memory: bool = False
    capture_steps: int = 0
    every_step: bool = True
    turns: str = ""
    first_steps: int = 0
    grace_s: float = 20.0
    hard_code: int = 0


@dataclass(frozen=True)
class Session(Settings):
    """Settings of one run, as the agent reads them.

    folder: the run folder. package: the folder of the hotlap package itself. capture: the profiler in front of the
    command (`nsys`, `ncu`), "" for none. fail_in: the hook in which a test wants an error.
    """

    folder: str
    package: str
    levers: tuple[LeverUse, ...] = ()
    capture: str = ""
    fail_in: str | None = None

    @property
    def windows(self) -> bool:
        """Whether steady steps are recorded, by whatever."""
        return bool(self.profile_steps or self.capture_steps or self.memory)

    def write(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: str) -> "Session":
        """Read what `write` wrote. Raises OSError, ValueError, TypeError or KeyError on anything else."""
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs the user's process an import
            raw = json.load(file)
        raw["levers"] = tuple(LeverUse(**use) for use in raw["levers"])
        return cls(**raw)
