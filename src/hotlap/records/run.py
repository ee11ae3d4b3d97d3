"""Records of one run: `run.json`, `rank-K/steps.jsonl`, `rank-K/facts.json`, `rank-K/problems.jsonl`."""

from typing import Annotated, Any, Final, Literal

import msgspec

LONGEST_MS: Final = 1e12
"""Thirty years. Sums of what is read stay finite."""
Ms = Annotated[float, msgspec.Meta(ge=-LONGEST_MS, le=LONGEST_MS)]
WallMs = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_MS)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Status = Literal["running", "finished", "failed", "stopped", "interrupted", "timeout"]


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as NVML sees it; memory in GiB."""

    name: str
    memory_gib: float


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the source tree of a run (A7), as the parent sees them."""

    hotlap: str
    python: str
    os: str
    cpu: str
    cores: int
    memory_gib: float
    driver: str | None = None
    gpus: tuple[Gpu, ...] = ()
    variables: dict[str, str] = {}
    git_commit: str | None = None
    git_dirty: bool | None = None


class Lever(msgspec.Struct, frozen=True, kw_only=True):
    """A lever and its settings, as used in a run."""

    name: str
    settings: dict[str, Any] = {}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """`run.json`. exit_code is the command's own; signal is set when a signal ended it."""

    version: int = 1
    command: tuple[str, ...]
    cwd: str
    environment: Environment
    status: Status = "running"
    exit_code: int | None = None
    signal: int | None = None
    started: float = 0.0
    wall_s: float | None = None
    seed: int | None = None
    levers: tuple[Lever, ...] = ()
    recipe: str | None = None


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds in each phase; see `records/phases.py` for what each means."""

    data: Ms | None = None
    h2d: Ms | None = None
    forward: Ms | None = None
    backward: Ms | None = None
    optimizer: Ms | None = None
    other: Ms | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `steps.jsonl`. Times in ms; `time` is seconds since the epoch at the step's end.

    loss: the sum over the step's backward calls; losses: each of them where there are several; nonfinite: it is NaN or
    infinite (then loss is null). kind: "train" or
    "inference". evaluation: an evaluation ran inside. compiles: frames torch.compile compiled inside. skipped: a
    GradScaler skipped the update. probe: evidence of parity was taken, so the time is not to be quoted. backlog_ms:
    device work still queued when the host reached the step's end (CUDA).
    """

    step: int
    time: float
    wall_ms: WallMs
    gpu_ms: Ms | None = None
    phases: Phases
    gpu_phases: Phases | None = None
    loss: float | None = None
    losses: tuple[float | None, ...] | None = None
    nonfinite: bool = False
    samples: Count | None = None
    kind: Literal["train", "inference"] = "train"
    evaluation: bool = False
    compiles: int = 0
    skipped: bool = False
    probe: bool = False
    backlog_ms: Ms | None = None


class LoaderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A DataLoader that was iterated. moved: which leaves of a batch the script moves to the device itself.

    file, line, function: the method that makes its samples, or the user's code that iterates it where that is torch's.
    """

    dataset: str
    iterable: bool
    workers: int
    batch_size: int | None = None
    pin_memory: bool = False
    persistent: bool = False
    prefetch: int | None = None
    batches: int = 0
    training: bool = False
    in_main: bool = True
    context: str | None = None
    custom_batch: bool = False
    leaves: int = 0
    moved: tuple[int, ...] = ()
    on_device: bool = False
    batch_bytes: Count = 0
    non_blocking: bool = False
    file: str | None = None
    line: int | None = None
    function: str | None = None


class RootFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An outermost module whose forward was seen. parameters: their number.

    file, line, function: its forward, or the user's code that calls it where that is torch's.
    """

    name: str
    parameters: int
    modules: int
    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    conv: int = 0
    conv_input_4d: bool = False
    channels_last: bool = False
    dropout: int = 0
    sparse: bool = False
    compiled: bool = False
    autocast: str | None = None
    training: bool = True
    wrapper: str | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None


class OptimizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer that stepped."""

    name: str
    builtin: bool
    tensors: int
    fused: bool | None = None
    foreach: bool | None = None
    capturable: bool | None = None
    sparse: bool = False
    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """`rank-K/facts.json`: what the agent saw of the script, as later decisions need it."""

    pid: int
    rank: int
    world: int
    argv: tuple[str, ...]
    python: str
    torch: str
    cuda: str | None = None
    device: str = "cpu"
    device_name: str | None = None
    capability: tuple[int, int] | None = None
    threads: int = 1
    tf32_matmul: bool = False
    tf32_cudnn: bool = False
    cpu_bf16: bool = False
    cudnn_benchmark: bool = False
    deterministic: bool = False
    mode: Literal["train", "inference", "none"] = "none"
    samples_from: Literal["loader", "forward", "none"] = "none"
    in_flight: int = 0
    seeded: bool = False
    forwards: int = 0
    backwards: int = 0
    optimizer_steps: int = 0
    peak_memory_bytes: int | None = None
    stopped: bool = False
    loaders: tuple[LoaderFacts, ...] = ()
    roots: tuple[RootFacts, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `problems.jsonl`: hotlap's own, never the user's. lever: set when a lever could not be put in."""

    where: str
    what: str
    trace: str = ""
    lever: str | None = None
    time: float = 0.0
