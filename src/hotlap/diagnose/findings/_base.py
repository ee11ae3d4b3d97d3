"""What a finding decides from."""

from dataclasses import dataclass, field
from typing import Literal

from hotlap.records.diagnosis import Place
from hotlap.records.memory import MemorySeries, MemoryUsage
from hotlap.records.phases import PHASES
from hotlap.records.run import Facts, LoaderFacts, Phases, RootFacts

MODEL = ("forward", "backward", "optimizer")
DRAINED_MS = 0.5
DRAINED_SHARE = 0.05

EACH = 0.8
"""Of the steps, in which a model runs that runs in each."""
LEAST_COST = 0.01
"""Of the step: what costs less at most is not told."""
FULL = 0.85
"""Of the cores, that are kept busy."""
STARVED_SHARE = 0.05
"""Of the step outside of the model, below which nothing is lost where the host has work ahead for the device."""


def counted(amount: int, thing: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{amount} {thing}{'' if amount == 1 else 's'}"


@dataclass(frozen=True)
class CpuUse:
    """What the command could use of the processor over its steady steps. usable: cores that it can keep busy; cores:
    that it may run on; quota: of its cgroup, in cores.

    The rest is None where it is not known. seconds: that it rests on. throttled: share of the quota's periods in which
    it ran out. ms a second: throttled_ms: that threads were held then, summed over cores; busy_ms, steal_ms: of all its
    cores, at work and taken by the hypervisor; waited_ms: that main threads of its processes were ready and had no
    core. running: threads of the machine that had or wanted a
    core, median. used: cores that the command kept busy, in the mean. processes: of the command, median.
    """

    usable: int
    cores: int
    quota: float | None = None
    seconds: float = 0.0
    throttled: float | None = None
    throttled_ms: float | None = None
    busy_ms: float | None = None
    steal_ms: float | None = None
    waited_ms: float | None = None
    running: float | None = None
    used: float | None = None
    processes: float | None = None

    @property
    def full(self) -> bool:
        """Whether hardly a core was ever idle."""
        own = self.used is not None and self.used >= FULL * self.usable
        return own or (self.busy_ms is not None and self.busy_ms >= FULL * 1000 * self.cores)


@dataclass(frozen=True)
class LongSteps:
    """Steps that take much longer than the others, by their numbers. usual_ms: a step in the median; long_ms: these in
    the mean; share: what they take beyond the others' time, of all steps' time; every: steps from one to the next,
    None where that varies."""

    steps: frozenset[int]
    usual_ms: float
    long_ms: float
    share: float
    every: int | None = None


Changed = tuple[Literal["trained", "backwards", "evaluation", "compiled"], int, int]
"""Tensors that are trained, backwards in a step, whether it holds forwards without gradients, graphs that were compiled
there: it was, and is."""


@dataclass(frozen=True)
class Jump:
    """From a step on all take longer. before_ms, after_ms: in the median. phase: the one that is longer by most, and
    more_ms by how much ("": not known). changed: what else did there; rows: of a step, or tokens, where they changed:
    before and after. where: a line that names that step, or makes the change. machine: what the machine gave less of,
    for a sentence."""

    step: int
    before_ms: float
    after_ms: float
    phase: str = ""
    more_ms: float = 0.0
    changed: Changed | None = None
    rows: tuple[int, int] | None = None
    where: Place | None = None
    machine: str = ""


@dataclass(frozen=True)
class Measured:
    """Means over the steady steps, ms. backlog_ms: median device work still queued when the host ends a step. levers:
    the names of those that were in. cpu: what the machine gave it of the processor. run_ms: all of its steps, if each
    were a steady one, with what restarts of workers took; 0 unknown. unseen_ms: of the step, in which phases is not
    known (`Diagnosis.unseen_ms`); unseen: how far the steps that were looked at are from all, in words, empty where
    they are not. growth: of steps that take longer and longer, ms of the first and of the last ones, and how many steps
    lie between (`steps.growth`); grown_in: the phase that grows by most, and by how many ms. memory_bytes: the
    machine's.
    evaluating: as `Diagnosis.evaluating`. evaluates: most steps hold an evaluation. gpu_paced: as `Step.gpu_paced`,
    zero where NVML rules that out (`cpu_use.kept_busy`). gpu_busy: as `Diagnosis.gpu_busy`. long: steps that take much
    longer than the others, without which the phases are. micro: losses that go backward in a step, where there are
    several, and rows of each. rows: of a step, median; None unknown. usage: memory of some steps, where it was looked
    at; series: at the ends of steps; early: memory before the loop, and in the first steps."""

    step_ms: float
    phases: Phases
    gpu_phases: Phases | None
    backlog_ms: float | None
    facts: Facts | None
    levers: tuple[str, ...] = ()
    cpu: CpuUse | None = None
    run_ms: float = 0.0
    unseen_ms: float = 0.0
    unseen: str = ""
    growth: tuple[float, float, int] | None = None
    memory_bytes: float | None = None
    evaluating: float = 0.0
    evaluates: bool = False
    gpu_paced: Phases | None = None
    gpu_busy: float | None = None
    long: LongSteps | None = None
    micro: tuple[float, float] | None = None
    rows: float | None = None
    jump: Jump | None = None
    grown_in: tuple[str, float] = ("", 0.0)
    usage: MemoryUsage | None = None
    series: MemorySeries | None = None
    early: dict[str, MemoryUsage] = field(default_factory=dict)

    def share(self, *names: str) -> float:
        """Share of the step that phases cost: on the device's clock where there is one, else on the host's."""
        total = self.unseen_ms + self.took_ms(*PHASES)
        return self.took_ms(*names) / total if total else 0.0

    def of_step(self, ms: float) -> float:
        """Share of the step that so many ms are; 0 of a step that took no time."""
        return ms / self.step_ms if self.step_ms else 0.0

    def took_ms(self, *names: str) -> float:
        """Ms a step that phases take, on the same clock."""
        times = self.gpu_phases or self.phases
        return sum(getattr(times, name) or 0.0 for name in names)

    @property
    def memory(self) -> tuple[float, float] | None:
        """Bytes in use at the peak, and those that there are: of the GPU as the allocator holds them, without one of
        the machine; None unknown."""
        if self.facts is None:
            return None
        on_gpu = self.facts.memory
        used = on_gpu.peak_reserved_bytes if on_gpu else self.facts.peak_rss_bytes
        whole = on_gpu.total_bytes if on_gpu else self.memory_bytes
        return (used, whole) if used and whole else None

    @property
    def evaluates_itself(self) -> bool:
        """Whether most steps evaluate the model that is trained. Forwards of one that no optimizer updates or that is
        frozen, as a teacher, are seen as an evaluation's too."""
        roots, besides = (self.facts.roots, self.facts.besides) if self.facts else ((), ())
        each = {one.trained for one in besides if one.steps >= EACH * one.of}
        return self.evaluates and each != {False} and not any(root.optimized == 0 or root.frozen for root in roots)

    @property
    def cuda(self) -> bool:
        """Whether device times are known."""
        return self.gpu_phases is not None

    @property
    def lead_ms(self) -> float | None:
        """How far the host was ahead of the device: work queued when it ended the step, or what phases took
        longer on the device than on the host and the host then waited for (`.item()`); None unknown."""
        if self.backlog_ms is None or self.gpu_phases is None:
            return self.backlog_ms
        pairs = ((getattr(self.gpu_phases, name) or 0.0, getattr(self.phases, name) or 0.0) for name in PHASES)
        return max(self.backlog_ms, sum(max(0.0, device - host) for device, host in pairs))

    def waited_ms(self, name: str) -> float:
        """Device ms of a phase of the model in which it waited for the host to issue its work."""
        if self.gpu_paced is not None:
            return getattr(self.gpu_paced, name) or 0.0
        return (getattr(self.gpu_phases, name, None) or 0.0) if self.drained else 0.0

    @property
    def drained(self) -> bool:
        """Whether the device mostly has no work queued: it waits for the host."""
        if self.gpu_paced is not None:
            times = self.gpu_phases or self.gpu_paced
            paced, took = (sum(getattr(one, name) or 0.0 for name in MODEL) for one in (self.gpu_paced, times))
            return 2 * paced > took
        lead = self.lead_ms
        return lead is not None and lead < max(DRAINED_MS, DRAINED_SHARE * self.step_ms)

    @property
    def host_matters(self) -> bool:
        """Whether a slower host makes the step slower: not where the device always has work queued."""
        return not self.cuda or self.drained or self.share("data", "h2d", "other") >= STARVED_SHARE

    @property
    def taken_ms(self) -> float:
        """Of a step on the CPU, how long the model had no core since loader workers had it: what the step is longer
        than its waits for batches and the processor time of the process that trains, as far as it is theirs and not
        other work's; 0 where cores were idle, or the workers need less of them than the model."""
        host, use, loader = self.facts.host if self.facts else None, self.cpu, self.loader
        if host is None or host.user_ms is None or use is None or use.used is None or not use.full:
            return 0.0
        if self.cuda or loader is None or not loader.workers or self.facts is None or self.facts.world > 1:
            return 0.0
        own = host.user_ms + host.system_ms
        workers = use.used * self.step_ms - own
        if workers < own:
            return 0.0
        others = max(0.0, (use.busy_ms or 0.0) / 1000 - use.used) * self.step_ms
        longer = self.step_ms - (self.phases.data or 0.0) - own / max(1, min(self.facts.threads, use.usable))
        return max(0.0, longer) * workers / (workers + others)

    @property
    def of_counted(self) -> float:
        """The step over those few in which the process's counters were read, which may take longer or less."""
        host = self.facts.host if self.facts else None
        return self.step_ms / host.took_ms if host is not None and host.took_ms else 1.0

    @property
    def nvml(self) -> str:
        """For evidence: how much of the time a kernel ran; empty unknown."""
        return "" if self.gpu_busy is None else f"; a kernel ran {self.gpu_busy:.0%} of the time, by NVML"

    @property
    def loader(self) -> LoaderFacts | None:
        """The loader that feeds the loop."""
        return self.facts.feeding if self.facts else None

    @property
    def root(self) -> RootFacts | None:
        """The model that the loop trains, or infers with."""
        return self.facts.model if self.facts else None

    @staticmethod
    def place_at(seen: tuple[str, int, str] | None) -> Place | None:
        """A file, a line and a function that the agent has seen."""
        return None if seen is None else Place(file=seen[0], line=seen[1], function=seen[2])

    @staticmethod
    def place_of(thing: LoaderFacts | RootFacts | None) -> Place | None:
        """Where something of the user's is defined or used."""
        if thing is None or thing.file is None:
            return None
        return Place(file=thing.file, line=thing.line, function=thing.function)
