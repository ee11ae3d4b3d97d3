"""What a lever is. Standard library only at run time: this is imported in the user's process."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.diagnosis import Diagnosis
    from hotlap.records.run import Environment, Facts

Settings = dict[str, Any]
Cause = Literal[
    "input", "h2d", "syncs", "launches", "update-launches", "backward", "attention", "arithmetic", "kernels", "bytes",
    "on-cpu", "precision", "layout", "optimizer", "threads", "page-faults", "allocator", "memory",
]  # fmt: skip
"""What a step loses time or memory to, as findings ask for it: waits for batches; copies to the device; waits for its
values; launches (of the model, of the update alone, of the backward alone); attention by hand; the model's work as a
whole, its kernels', the bytes that they move; its work on a CPU, the lever first that was never slower on public
scripts; float32 products; memory format; an optimizer's passes over memory;
threads without a core; page faults; calls of the driver; a device's memory that is full."""
Risk = Literal["exact", "numeric", "semantic"]
Stage = Literal["first", "compiler", "graphs"]
STAGES: Final[tuple[Stage, ...]] = ("first", "compiler", "graphs")


class Around(IntEnum):
    """What levers put around a forward (`Seams.wrap_forward`), from the innermost on.

    INPUTS lie otherwise inside the compiled region. CASTS are compiled, and what they make is OFFLOADED. MASKS are
    looked at before each call of what is COMPILED. What is REPLAYED was recorded with all of these. COUNTED: a wrapper
    that only counts forwards, outside of those that replay one without a call of what lies within.
    """

    INPUTS = 1
    CASTS = 2
    COMPILED = 3
    MASKS = 4
    OFFLOADED = 5
    REPLAYED = 6
    COUNTED = 7


Places = Literal["batches", "optimizers", "reads", "calls"]
"""Lines to look at to write a lever by hand: the loader, the backward and what follows it; the optimizers; reads of
values of the device; calls of the model."""


class Unfit(Exception):
    """What a lever was given is not what it can take; the message says why."""


class Unwritten(NamedTuple):
    """Why no rule writes a lever into source, and the lines to look at to write it by hand."""

    why: str
    look_at: Places


class Applies(NamedTuple):
    """Whether a lever may help here, and the reason either way."""

    yes: bool
    why: str


class Setting(NamedTuple):
    """A setting that a lever takes. what: the values that it may have, in words; optional: it may be left out."""

    what: str
    accepts: Callable[[Any], bool]
    optional: bool = False


def integer(low: int, high: int) -> Setting:
    """A setting that is a whole number."""
    return Setting(f"an integer from {low} to {high}", lambda value: type(value) is int and low <= value <= high)


def one_of(*words: str) -> Setting:
    """A setting that is one of some words."""
    return Setting(f"one of {', '.join(words)}", words.__contains__)


FLAG: Final = Setting("true or false", lambda value: isinstance(value, bool))
MARK: Final = Setting("true where it is given", lambda value: value is True, optional=True)


@dataclass(frozen=True)
class Context:
    """What a lever decides from: the diagnosis of the incumbent, what the agent saw of the script, the machine, and
    the levers that are already in, or supposed to be in."""

    diagnosis: "Diagnosis"
    facts: "Facts"
    environment: "Environment"
    active: Mapping[str, Settings]

    @property
    def cuda(self) -> bool:
        """Whether the model is on a CUDA device."""
        return self.facts.device == "cuda"

    @property
    def for_inference(self) -> Settings:
        """A setting of levers that change loaders (`Seams.on_loader`), in commands that only infer."""
        return {"inference": True} if self.facts.mode == "inference" else {}

    @property
    def varied(self) -> bool:
        """Whether the model's inputs come in many shapes: two may be those of an epoch and of its last batch."""
        return any(root.shapes > 2 for root in self.facts.roots)

    def share_of(self, *phases: str) -> float:
        """Share of the step (0 to 1) that phases take: on the device's own clock where there is one."""
        times = self.diagnosis.gpu_phases or self.diagnosis.phases
        total = self.diagnosis.unseen_ms + sum(getattr(times, name) or 0.0 for name in times.__struct_fields__)
        return sum(getattr(times, phase) or 0.0 for phase in phases) / total if total else 0.0

    @property
    def model_share(self) -> float:
        """Share of the step in forward, backward and optimizer."""
        return self.share_of("forward", "backward", "optimizer")


class Lever:
    """One change that may help. Subclass, set the class variables, and bind one instance to `LEVER` in the module.

    name: as users type it; its module has the same name with underscores. meaning: one line. causes: what it answers,
    and its place among the levers that answer the same, the most promising at 0. risk: `exact` (bitwise, or
    within the command's own run-to-run noise), `numeric` (rounding changes), `semantic` (changes training).
    settings: those that it takes, by name.
    needs_gpu: it is for CUDA devices alone. redraws: random transforms of the data may draw other numbers, though the
    samples stay the same. tolerance: for `numeric`, how far (relative) losses and first gradients may lie from the
    baseline's. saves_memory: it lowers the peak of device memory, mostly at the cost of time, so it is for `--objective
    memory` and for commands that run out of memory; its variants then come from the cheapest to the one that saves
    most. resizes_step: a step holds another number of samples with it, so trials compare by `Diagnosis.throughput`, and
    losses step by step say nothing.
    stage: when in the search it comes: `first` what costs no compilation, then compilers on top of what is proved, then
    CUDA graphs. compiles: it has something compiled. costs_s: seconds that a trial takes with it before steps are at
    their pace, beyond those of others. switchable: it can be put in and taken out between two steps of a live process
    (`Seams.switch`, and `undo` of the others): no environment variables, nothing of a loader. memory_order: where
    memory counts, levers come by it, from those that make a step shorter or little longer to those that cost most time;
    100 where the lever is not known to save any. frees: of each category of memory (`records.memory.Category`,
    `fragmentation`, or `request`: what was asked for in the model) the share (0 to 1) that it takes away at most.
    takes: what that costs, in words. eager: it can not be used with levers that compile. signs: words that an error has
    which it may be the cause of, so that it is suspected first where several were in. unwritten: of a lever without a
    rule in `patch/rules`, why it has none.
    """

    name: ClassVar[str]
    meaning: ClassVar[str]
    causes: ClassVar[Mapping[Cause, int]] = {}
    risk: ClassVar[Risk] = "exact"
    settings: ClassVar[Mapping[str, Setting]] = {}
    needs_gpu: ClassVar[bool] = False
    redraws: ClassVar[bool] = False
    tolerance: ClassVar[float] = 0.0
    excludes: ClassVar[tuple[str, ...]] = ()
    saves_memory: ClassVar[bool] = False
    resizes_step: ClassVar[bool] = False
    stage: ClassVar[Stage] = "first"
    compiles: ClassVar[bool] = False
    costs_s: ClassVar[float] = 0.0
    switchable: ClassVar[bool] = False
    memory_order: ClassVar[int] = 100
    frees: ClassVar[Mapping[str, float]] = {}
    takes: ClassVar[str] = ""
    eager: ClassVar[bool] = False
    signs: ClassVar[tuple[str, ...]] = ()
    unwritten: ClassVar[Unwritten | None] = None

    def excluding(self, other: "Lever") -> bool:
        """Whether it can not be used with another one."""
        return other.name in self.excludes or (self.eager and other.compiles)

    def applies(self, context: Context) -> Applies:
        """Whether it may help here, and why or why not."""
        raise NotImplementedError

    def settled(self, facts: "Facts", active: Collection[str]) -> bool:
        """Whether the script has made its change itself, or has nothing to make it on, so that no finding names it.
        active: names of the levers that are in. `applies` decides in the end, and knows more reasons."""
        return self.needs_gpu and facts.device != "cuda"

    def variants(self, context: Context) -> list[Settings]:
        """Settings worth trying, the most promising first; the first is the default."""
        return [{}]

    def searched(self, context: Context) -> bool:
        """Whether other settings may be better still, such as a number of workers: they are tried once the first that
        helped is proved. Else later variants are tried only where the first fails."""
        return False

    def share(self, context: Context) -> float:
        """The largest share of the step (0 to 1) that it can win here: none where it is for memory, and costs time."""
        return 0.0

    def check(self, settings: Mapping[str, Any]) -> str | None:
        """What is wrong with settings that come from a recipe; None if nothing is."""
        if not self.settings:
            return f"{self.name} has no settings" if settings else None
        if unknown := [name for name in settings if name not in self.settings]:
            return f"unknown setting {unknown[0]!r}"
        for name, known in self.settings.items():
            if not (known.accepts(settings.get(name)) or (known.optional and name not in settings)):
                return f"{name} must be {known.what}, not {settings.get(name)!r}"
        return None

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        """Why it can't be used on this machine, as far as the machine alone tells; None if it can. For recipes."""
        if not self.needs_gpu or environment.gpus or environment.driver:
            return None
        return "no NVIDIA GPU was found on this machine"

    def environment(self, settings: Settings) -> dict[str, str]:
        """Environment variables to set before the command starts."""
        return {}

    def for_parity(self, settings: Settings) -> Settings | None:
        """Settings under which the same random numbers are drawn as without the lever, where they differ."""
        return None

    def inert(self, facts: "Facts") -> str:
        """Why it has changed nothing though it took hold, by what was seen of the run; "" where it did or may have."""
        return ""

    def install(self, seams: "Seams", settings: Settings) -> None:
        """In the user's process, at the end of `import torch`."""

    def source(self, settings: Settings) -> str:
        """How the change is written in the user's own source."""
        raise NotImplementedError


def single_precision(facts: "Facts") -> bool:
    """Whether a model has float32 weights, or weights of types that are not known."""
    return any("float32" in root.dtypes or not root.dtypes for root in facts.roots)
