"""The agent as its parts see it: types alone, of which none is there at run time.

The agent holds its parts, and some of them ask it for others. They are typed against this file, which knows of those
only what the others ask, so that no file of the agent needs itself. `core.Agent` is all of it.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from hotlap.records.session import Session
from hotlap.records.steady import Steady

from .besides import Besides
from .device import DeviceMarks, LateLosses
from .guard import Guard
from .habits import Habits
from .host import Host
from .peaks import Peaks
from .probe import Probe
from .recorder import Folder, Recorder
from .steps import Steps
from .timeline import Timeline
from .tokens import Tokens
from .unused import Unused
from .wasted import Wasted


class Finder(Protocol):
    """Of `hooks.forward.Finder`: the outermost modules."""

    @property
    def hidden(self) -> Sequence[Any]: ...
    def look(self) -> None: ...
    def expect_evaluation(self) -> None: ...
    def ready(self) -> bool: ...
    def see(self, seen: bool) -> None: ...
    def rewrap(self) -> None: ...


class Profile(Protocol):
    """Of `profile.Profile`: the windows of instruments."""

    def boundary(self) -> bool: ...
    def no_ops(self) -> str: ...
    def tell(self, act: Callable[..., None], *of: Any) -> None: ...
    def enter(self, phase: int) -> None: ...
    def leave(self) -> None: ...
    def unwind(self) -> None: ...


class Memory(Protocol):
    """Of `memory.Memory`: windows in which memory is looked at."""

    looking: bool
    operations: Any

    def window(self) -> Generator[None, None, None]: ...
    def phase(self, phase: int) -> None: ...
    def give_up(self) -> None: ...


class Script(Protocol):
    """Of `facts.Script`: what is known of the script."""

    roots: dict[int, Any]
    recomputed: int
    habits: Habits

    def in_flight(self, inference: bool) -> int: ...
    def root(self, module: Any, training: bool, compiled: bool) -> None: ...
    def forward(self, what: str, module: Any, of: Any) -> dict[str, Any]: ...


class Seams(Protocol):
    """Of `seams.Seams`: the levers that are in."""

    rewrap: Callable[[], None]

    def root(self, module: Any, forward: Callable[..., Any]) -> Callable[..., Any]: ...
    def wrapped(self, module: Any, forward: Callable[..., Any]) -> Callable[..., Any]: ...
    def put_in(self, levers: dict[str, dict[str, Any]]) -> None: ...


class StepSampling(Protocol):
    """Of `step_sampling.StepSampling`: the steps that are not looked at."""

    ends: list[tuple[int, Any]]
    event: Callable[[], None]

    def evaluating(self) -> None: ...
    def lapped(self) -> None: ...


class Stopper(Protocol):
    """Of `stopper.Stopper`: the steps that count."""

    disturbed: list[bool]
    draining: bool
    steady: Steady | None


class Agent(Protocol):
    """Of `core.Agent`."""

    session: Session
    guard: Guard
    pid: int
    torch_imported: float
    thread: int | None
    rank: int
    world: int
    begun: bool
    done: bool
    compiled_frames: int
    marks: DeviceMarks
    losses: LateLosses
    timeline: Timeline
    steps: Steps
    recorder: Recorder
    host: Host
    probe: Probe
    tokens: Tokens
    peaks: Peaks
    besides: Besides
    unused: Unused
    wasted: Wasted

    @property
    def finder(self) -> Finder: ...
    @property
    def profile(self) -> Profile: ...
    @property
    def memory(self) -> Memory: ...
    @property
    def script(self) -> Script: ...
    @property
    def seams(self) -> Seams: ...
    @property
    def step_sampling(self) -> StepSampling: ...
    @property
    def stopper(self) -> Stopper: ...
    def folder(self) -> Folder: ...
    def append(self, name: str, line: str) -> None: ...
    def mine(self) -> bool: ...
    def begin(self) -> None: ...
    def write_facts(self, kind: str, stopped: bool = False) -> None: ...
