"""Records of one run: `run.json`, `rank-K/steps.jsonl`, `rank-K/facts.json`, `rank-K/problems.jsonl`."""

import math
import signal
from typing import Annotated, Any, Final, Literal

import msgspec

from .session import ENDED_HARD

ENDED_BY_OTHERS: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
LONGEST_MS: Final = 1e12
"""Thirty years. Sums of what is read stay finite."""
Ms = Annotated[float, msgspec.Meta(ge=-LONGEST_MS, le=LONGEST_MS)]
WallMs = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_MS)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Status = Literal["running", "finished", "failed", "stopped", "interrupted", "timeout"]


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, as NVML sees it. memory_gib: memory of the device, GiB."""

    name: str
    memory_gib: float


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and the source tree of a run, as the parent sees them.

    hotlap: its version. python: version and path of hotlap's. host: the machine's name, None unknown. cores: number
    that the command may run on; cpu_quota: how many cores its cgroup lets it use in the mean, None without a limit.
    memory_gib: memory of the machine, GiB. driver, gpus: NVIDIA's, known with the `gpu` extra.

    variables: of the command's environment those whose names begin with `CUDA_`, `NCCL_`, `OMP_`, `MKL_`, `KMP_`,
    `PYTORCH_`, `TORCH`, `MALLOC_` or `LD_PRELOAD`, or are `HF_HUB_OFFLINE`, `NVIDIA_TF32_OVERRIDE` or `PYTHONHASHSEED`;
    none whose name or value may hold a secret. git_commit: of the source tree, None without git; git_dirty: the source
    tree had changes that are not committed.
    """

    hotlap: str
    python: str
    os: str
    host: str | None = None
    cpu: str
    cores: int
    cpu_quota: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None
    memory_gib: float
    driver: str | None = None
    gpus: tuple[Gpu, ...] = ()
    variables: dict[str, str] = {}
    git_commit: str | None = None
    git_dirty: bool | None = None

    @property
    def usable_cores(self) -> int:
        """Cores that the command can keep busy: those it may run on, or its quota (rounded up) where that is less."""
        return max(1, self.cores if self.cpu_quota is None else min(self.cores, math.ceil(self.cpu_quota)))


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """Of the process that ran the steps, as it said. cuda: that torch was built for; cudnn, nccl: version that it
    loaded, of a process that used CUDA. packages: version by name of the installed ones that it had imported at its end
    (empty where it was killed)."""

    python: str
    torch: str
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    packages: dict[str, str] = {}


class Lever(msgspec.Struct, frozen=True, kw_only=True):
    """A lever and its settings, as used in a run."""

    name: str
    settings: dict[str, Any] = {}


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A lever that was asked for and is not in: it left itself out, or found nothing to change. was_in: it was in at
    first."""

    lever: Lever
    why: str
    was_in: bool = True


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """`run.json`.

    cwd: the folder that the command ran in. versions: of the process that ran the steps, known at the end. status:
    `running`, `finished`, `failed`, `stopped` (by hotlap, after its steps), `interrupted` or `timeout`. exit_code: the
    command's own; signal: set when a signal ended it. started: seconds since the epoch; wall_s: seconds it took, None
    while it runs. seed: set from outside, in trials. levers: once `hotlap run` has ended, those that took hold;
    left_out: levers of the recipe that did not. memory_limit_bytes: of host memory for the command, by its cgroup or
    the machine (None: not known); oom_kills: processes of its cgroup that the kernel killed for lack of memory while it
    ran (None: the system does not tell). recipe: the recipe's path. options: of `hotlap run`, but for where it writes
    and what it prints.
    """

    version: int = 1
    command: tuple[str, ...]
    cwd: str
    environment: Environment
    versions: Versions | None = None
    status: Status = "running"
    exit_code: int | None = None
    signal: int | None = None
    started: float = 0.0
    wall_s: float | None = None
    seed: int | None = None
    levers: tuple[Lever, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    memory_limit_bytes: Count | None = None
    oom_kills: Count | None = None
    recipe: str | None = None
    options: tuple[str, ...] = ()

    @property
    def failed_itself(self) -> bool:
        """Whether it ended by an error, not by somebody who ended it, nor by hotlap."""
        return self.status == "failed" and self.exit_code != ENDED_HARD and self.signal not in ENDED_BY_OTHERS


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds in each phase of a step. None: there is no such phase. docs/run.md and `records/phases.py` say where
    each begins and ends.

    data: waiting for the DataLoader. h2d: copies of tensors from the host to the device. forward: modules and the loss.
    backward: autograd. optimizer: `Optimizer.step`. other: the rest of the loop.
    """

    data: Ms | None = None
    h2d: Ms | None = None
    forward: Ms | None = None
    backward: Ms | None = None
    optimizer: Ms | None = None
    other: Ms | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `steps.jsonl`. Fields that have nothing to say are left out.

    step: the step's number. time: seconds since the epoch, at the step's end. wall_ms: on the host. gpu_ms: on the
    device, None where it was not timed; of four short steps in a row each has their mean. backlog_ms: device work still
    queued when the host reached the step's end (CUDA); of four short steps in a row the last has it.

    phases: on the host, they sum to wall_ms; None in a step that was timed and not looked at, whose loss and samples
    are not known either. gpu_phases: the same phases on the device, they sum to gpu_ms. gpu_paced: of gpu_phases, ms in
    which the device was done as soon as the host had issued the work: it waited for the host.

    loss: the sum over the step's backward calls; losses: of each backward call, where there are several; nonfinite: the
    loss is NaN or infinite (then it is null). samples: rows of the batch. tokens: of the batch, where the rows are
    sequences of tokens. kind: whether the step trained. evaluation: an evaluation ran inside. compiles: frames that
    torch.compile compiled inside. skipped: a GradScaler skipped the update. probe: the time is not to be quoted, since
    evidence of parity was taken or the profiler ran. starved: a batch that workers make was not there when it was asked
    for, and of those they make ahead a quarter at most was. trained: tensors that the optimizers hold and that want a
    gradient, in a step before which, not long ago, that number changed.
    """

    step: int
    time: float
    wall_ms: WallMs
    gpu_ms: Ms | None = None
    phases: Phases | None
    gpu_phases: Phases | None = None
    gpu_paced: Phases | None = None
    loss: float | None = None
    losses: tuple[float | None, ...] | None = None
    nonfinite: bool = False
    samples: Count | None = None
    tokens: Count | None = None
    kind: Literal["train", "inference"] = "train"
    evaluation: bool = False
    compiles: int = 0
    skipped: bool = False
    probe: bool = False
    starved: bool = False
    trained: Count | None = None
    backlog_ms: Ms | None = None


class LoaderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A DataLoader that was iterated.

    dataset: its class. iterable: the dataset is an IterableDataset. workers, batch_size, pin_memory, persistent,
    prefetch: as torch's DataLoader was given it. batches: number delivered. training: iterated with gradients enabled.
    context: how workers are started. on_device: batches come on the device already. batch_tensors, batch_bytes: tensors
    of a batch (of the first 4,096 items of each of its lists), and their bytes.

    rows, epoch_batches: rows and batches of an epoch, where a sampler of torch's own tells. default_collate: torch
    makes its batches. collate: file, line and name of the user's function that does. holds_tensors: the dataset has a
    tensor among its attributes; views: the samples of a batch are
    views of the same tensors (of the second one, watched as draws is). draws: making a sample drew random numbers (of
    the global generators; watched in trials without workers only). making_cpu: share (0 to 1) of the time spent making
    batches in which the processor was used; the rest waits for files or the network. objects: Python objects in the
    largest container of the dataset, where there are a million; objects_in: that container; worker_growth_bytes: memory
    that its first worker has come to own meanwhile; worker_threads: threads of this worker that computed then, those
    that took a quarter of the busiest one's time. repeated_rows: rows that the second worker of an IterableDataset
    delivered like the first.

    iterators: number made of it. starts: times that it started workers that end with their epoch. restarting_ms: to
    start such workers, all but the first time; refilling_ms: waited for their first batch, likewise; loop: file, line
    and function of the user's code that started them again, or made the second iterator. asked: batches that were asked
    for of workers, but for the first of those that have just started, in steps that were looked at and made of them;
    late: batches that were not there yet, of those asked for; asked_ms, late_ms: that the loop was at all of these, and
    at the late ones.

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
    context: str | None = None
    on_device: bool = False
    batch_tensors: Count = 0
    batch_bytes: Count = 0
    rows: int | None = None
    epoch_batches: int | None = None
    default_collate: bool = False
    collate: tuple[str, int, str] | None = None
    holds_tensors: bool = False
    views: bool | None = None
    draws: bool | None = None
    making_cpu: float | None = None
    objects: Count = 0
    objects_in: str = ""
    worker_growth_bytes: Count = 0
    worker_threads: Count = 0
    repeated_rows: Count = 0
    starts: Count = 0
    restarting_ms: WallMs = 0.0
    refilling_ms: WallMs = 0.0
    loop: tuple[str, int, str] | None = None
    asked: Count = 0
    late: Count = 0
    asked_ms: WallMs = 0.0
    late_ms: WallMs = 0.0
    iterators: Count = 0
    file: str | None = None
    line: int | None = None
    function: str | None = None


class ExchangeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What DistributedDataParallel measured of its own backwards, means over its first ten, without the first two where
    there are others, and one in a hundred after them (null: it told nothing).

    compute_ms: until the last gradient was there; exchange_ms: from the first that were sent until the last had come,
    waiting for other ranks included; hidden_ms: of the exchange, while gradients were still made. backwards: calls of
    the script's for each that exchanged. searches: it looks for parameters without a gradient in each step
    (`find_unused_parameters`); unused: bytes of the parameters without a gradient that it found.
    """

    compute_ms: WallMs | None = None
    exchange_ms: WallMs | None = None
    hidden_ms: WallMs = 0.0
    backwards: WallMs = 1.0
    searches: bool = False
    unused: Count = 0


PILE: Final = 3
"""Hooks of the same code that a module has more at the end than at its first forward, from which they pile up. Two may
be a pair that was made between these."""


class RootFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An outermost module whose forward was seen. softmax, sdpa, constants, expert_loop, mask_checks and shapes_by are
    read in the code of its modules.

    parameters: number of elements of its parameters; optimized: number of these that an optimizer holds, None where
    that is not known; with_gradients: that have a gradient at the end; unused: of the tensors that have one, the
    share (0 to 1) that no optimizer holds; frozen: none of them takes one then. modules: number in it. devices,
    dtypes: of its parameters. conv, dropout: number of such modules; conv_input_4d: its convolutions get images.
    channels_last: its weights have that memory format. embeds: it holds an nn.Embedding or nn.EmbeddingBag, None
    where that is not known. sparse: it makes sparse gradients. compiled: it is, by
    torch.compile. autocast: dtype of the autocast that it ran in. training: it is in training mode.
    wrapper: DDP and the like. hooks: number on the forwards of its modules, when it was first seen and last;
    alike: of these, of the module with most, those of the same code, at the same times; hook: that code, where it is
    the user's.
    blocks: number of modules in it that are repeated; block: classes of these modules; block_kinds: how many of these
    differ in class or shapes. classes: the most outputs of a linear layer outside of repeated blocks. shapes: different
    shapes of its inputs in the first forwards; grows: share (0 to 1) of its first forwards that got one token more than
    the forward before. exchange: of gradients between ranks, by DistributedDataParallel. part_of: another one that
    holds it, whose forward may call it too. owner: class of the module in one of whose
    methods it was called first, outside of any module's call, as in `self.forward(x)`.

    softmax: softmax is called beside a product of matrices; softmax_ran: that code did so in the first forwards with
    gradients, None where that is not known, as in inference. sdpa: torch's fused attention is called; constants:
    tensors of Python's numbers are made; expert_loop: where a forward may loop over a list of modules and look for the
    rows of each; mask_checks: it holds torch's encoder or decoder, which compare their mask with the causal one in each
    forward; shapes_by: a function whose result has a shape that depends on values, as `nonzero`.
    double: share (0 to 1) of the parameters' numbers in float64. padding: of a module with an embedding, share (0 to 1)
    of the places in the rows of ids of its first forwards that only fill them up to one length; of a recurrent one, or
    with attention, of the steps of its sequences of numbers; padding_of_all: share (0 to 1) of the places at which all
    rows of a batch do.

    called: the user's line that calls it, the first time. file, line, function: its forward, or that line where the
    forward is torch's.
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
    embeds: bool | None = None
    sparse: bool = False
    softmax: bool = False
    softmax_ran: bool | None = None
    sdpa: bool = False
    constants: bool = False
    expert_loop: tuple[str, int, str] | None = None
    mask_checks: bool = False
    shapes_by: str = ""
    classes: Count = 0
    compiled: bool = False
    autocast: str | None = None
    training: bool = True
    wrapper: str | None = None
    blocks: Count = 0
    block: str = ""
    block_kinds: Count = 0
    shapes: Count = 0
    grows: float = 0.0
    hooks: tuple[Count, Count] = (0, 0)
    alike: tuple[Count, Count] = (0, 0)
    hook: tuple[str, int, str] | None = None
    double: float = 0.0
    padding: float = 0.0
    padding_of_all: float = 0.0
    optimized: Count | None = None
    with_gradients: Count = 0
    unused: float = 0.0
    frozen: bool = False
    part_of: str | None = None
    owner: str | None = None
    exchange: ExchangeFacts | None = None
    called: tuple[str, int, str] | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None

    @property
    def by_hand(self) -> bool:
        """Whether it may run attention that is written out: its code has some, and it is not known to be passed by."""
        return self.softmax and self.softmax_ran is not False

    @property
    def piled(self) -> bool:
        """Whether the same hook came to be on a module again and again."""
        return self.alike[1] >= self.alike[0] + PILE


class OptimizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer that stepped.

    name: its class; builtin: it is one of torch's own. tensors: number that it updates. fused, capturable, foreach: the
    option of torch's optimizers, None: left to torch. momentum: some group has one, by an option of that name. groups:
    number of its parameter groups; settings: of those that differ in a setting, at most, from its first step on,
    differ: which settings do then. made, stepped: file, line and
    function of the user's code that made it, and its first step. sparse: some gradient was sparse. devices, dtypes: of
    its tensors. idle: of its elements, the share (0 to 1) in rows without a gradient in its first step, of matrices of
    16,384 rows or more; matrix: the shape of the largest such matrix. counters: its step counters that lie on a device
    though it is neither fused nor capturable. on_device: settings (`lr`) that are tensors on a device, None of an older
    hotlap.
    """

    name: str
    builtin: bool
    tensors: int
    fused: bool | None = None
    capturable: bool | None = None
    foreach: bool | None = None
    momentum: bool = False
    groups: Count = 0
    settings: Count = 0
    differ: tuple[str, ...] = ()
    made: tuple[str, int, str] | None = None
    stepped: tuple[str, int, str] | None = None
    sparse: bool = False
    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    idle: float = 0.0
    matrix: tuple[Count, ...] = ()
    counters: Count = 0
    on_device: tuple[str, ...] | None = None


class CompiledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the script's own torch.compile took, of its last 64 compilations.

    file, line, function: where it is defined. graphs: number compiled of it; recompiles: number of graphs that were
    made because its guards failed, reason: of the last recompilation, in torch's words. breaks: lines at which a graph
    ended. failed: why it runs in eager mode instead, failed_at: the line at which that happened, failed_in: the file of
    failed_at (empty: the function's own; it may be one that the function calls). limit: how many graphs torch.compile
    made of it at most, by its configuration at the last recompilation (0: not known); reached: it wanted more than
    that, and what fits none of them runs in eager mode. seconds: that compiling it took (0: not known); without_graph:
    why Inductor made no CUDA graph of it where it was asked to (torch's words).
    """

    file: str
    function: str
    line: int | None = None
    graphs: Count = 0
    recompiles: Count = 0
    reason: str = ""
    breaks: tuple[int, ...] = ()
    failed: str = ""
    failed_at: int | None = None
    failed_in: str = ""
    limit: Count = 0
    reached: bool = False
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    without_graph: str = ""


class MemoryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """CUDA memory of a process, by torch's caching allocator.

    peak_bytes: the most in tensors; peak_reserved_bytes: the most that the allocator held; total_bytes: memory of the
    device. retries: allocations that failed at first and succeeded after the cache was freed, each of which waits for
    the device. late_mallocs: calls of cudaMalloc in `step - since` steps of the loop after its first `since`, when one
    of fixed shapes makes none; late_retries: retries in these. since, step: the first and the last step of that count.
    """

    peak_bytes: Count
    peak_reserved_bytes: Count
    total_bytes: Count
    retries: Count = 0
    late_mallocs: Count = 0
    late_retries: Count = 0
    since: Count = 0
    step: Count = 0


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the loop cost the host, means over warm steps.

    They are of the mode that the command is in, from the eleventh on, without those that held an evaluation, compiled
    or were probed. Counters are read at the ends of some of the steps that are looked at; what lies outside of two
    readings does not count.

    steps: number that the means are over. faults: pages that the kernel had to map, mostly memory that was given back
    and is asked for again; major: pages that were read from a disk, among the faults; own_faults: of the thread that
    trains; fault_us: processor time that one takes on this machine, microseconds, as timed once (None: not known, as
    own_faults); grown: pages by which the process grew, which nothing gave back; system_ms, user_ms: processor
    time in the kernel and outside of it, of all threads; took_ms: a step took, of these steps (both None: of an older
    hotlap); involuntary: times that a thread was taken off a core and would have gone on; stood_ms: time that the
    thread that trains did not run; waited_ms: of it, ready to run and without a core; threads_waited_ms: as waited_ms,
    of all threads of the process, summed (None: the system does not tell); gc_ms: in Python's cyclic garbage collector;
    collections: of that collector, their number in all.
    """

    steps: Count
    faults: float = 0.0
    major: float = 0.0
    own_faults: float | None = None
    fault_us: float | None = None
    grown: float = 0.0
    system_ms: float = 0.0
    user_ms: float | None = None
    took_ms: float | None = None
    involuntary: float = 0.0
    stood_ms: float = 0.0
    waited_ms: float | None = None
    threads_waited_ms: float | None = None
    gc_ms: float = 0.0
    collections: Count = 0


class WastedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Backwards that go on into parameters whose gradients are thrown away, as of a generator whose samples were not
    detached. place: file, line and function where most of them begin. share: of the first backwards that were looked
    at, these (0 to 1). part: of the host's time in all of those, what these went on (0 to 1).
    """

    place: tuple[str, int, str]
    share: float
    part: float


class BesidesFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is called without gradients by a script that trains. name: its class. trained: an optimizer holds
    parameters of it. of: steps that were looked at; steps: of them, those with such calls; calls, took_ms: in all of
    these, on the host. place: file, line and function of the user's code that calls it, of several that with most time;
    lines: number of them; part: its share (0 to 1) of the time of all of them. inference_mode: under
    torch.inference_mode, not no_grad.
    """

    name: str
    trained: bool = False
    of: Count = 0
    steps: Count = 0
    calls: Count = 0
    took_ms: Ms = 0.0
    place: tuple[str, int, str] | None = None
    lines: Count = 1
    part: float = 1.0
    inference_mode: bool = False


class UnusedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A line that calls a model with gradients, by a script that trains. name: the model's class. steps: that were
    looked at, with others between them. calls, rows, took_ms: in all of these, on the host, as far as is known what
    became of them; of many calls in a step some stand for all. unused_calls, unused_rows, unused_took_ms: of those
    whose graph was let go with no backward through it. place: file, line and function of the user's code that calls it.
    """

    name: str
    place: tuple[str, int, str] | None = None
    steps: Count = 0
    calls: Count = 0
    rows: Count = 0
    took_ms: Ms = 0.0
    unused_calls: Count = 0
    unused_rows: Count = 0
    unused_took_ms: Ms = 0.0


class RaisedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A peak of memory that an evaluation or a checkpoint raised beyond what training had reached before it. kind:
    which. memory: in tensors of the current GPU (device), or resident in the process (host). peak_bytes: what it was
    raised to; training_bytes: what training, or anything else, has raised it to, so that the difference is the least
    that this adds. backwards: number before it. place: file, line and function of the user's code that evaluates or
    saves. gradients: the forwards of the evaluation were with gradients.
    """

    kind: Literal["evaluation", "checkpoint"]
    memory: Literal["device", "host"]
    peak_bytes: Count
    training_bytes: Count
    backwards: Count = 0
    place: tuple[str, int, str] | None = None
    gradients: bool = False


class Hung(msgspec.Struct, frozen=True, kw_only=True):
    """A wait for a batch that an error ended, such as Ctrl-C. waited_s: seconds that it had lasted. worker: number of
    the worker process whose turn it was, None without workers; worker_pid: its process; alive: it still ran. file,
    line, function: of the user's code that asked for the batch."""

    waited_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    worker: int | None = None
    worker_pid: int | None = None
    alive: bool | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """`rank-K/facts.json`: what the agent saw of the script, as later decisions need it. Written again now and then, so
    a job that was killed has one.

    pid: the process's id. torch_imported: when it had imported torch, seconds since the epoch. world: number of ranks.
    argv: the script's arguments. cudnn, nccl: versions, where CUDA was used. capability: the CUDA device's compute
    capability. threads: that torch computes with on the CPU. tf32_matmul, cudnn_benchmark, deterministic: torch's
    settings of this name. cpu_bf16: the processor computes in bfloat16. switches: for debugging, that were on in a step
    of the loop: `detect_anomaly`, `fill_uninitialized_memory`, `CUDA_LAUNCH_BLOCKING`,
    `PYTORCH_NO_CUDA_MEMORY_CACHING`, `set_sync_debug_mode`, `profiler`. dispatch_modes, function_modes: classes of
    modes in Python that were on around half of the forwards with gradients or more, and are told of torch's operations,
    or of calls of its functions. seeded: the script seeds torch itself.

    mode: whether it trains. samples_from: what tells the rows of a step. forwards: number seen, in steps that were
    looked at; backwards, optimizer_steps: number seen. in_flight: batches that workers make ahead; draining: when
    hotlap ended it, batches made ahead were being used up faster than others came, so steps may become longer.
    device_uuid: of the GPU, by which NVML knows it, as `GPU-…`. replayed: phases that lie together in a CUDA graph of
    the script's own. recomputed: calls of modules that were seen inside a backward, in the first steps, as
    torch.utils.checkpoint makes them. retained: share (0 to 1) of the backwards that were looked at that kept their
    graph for another one. forwards_each: forwards with gradients for each backward, of those that were looked at (None:
    of an older hotlap). hung: the wait for a batch in which the loop ended.

    peak_memory_bytes: the most in tensors of torch's CUDA allocator. peak_rss_bytes: the most resident memory of the
    process, on Linux. raised: of these, by evaluations and checkpoints. imported: at the end, folders of installed
    packages with the first names of what was imported from them; own_files: of the other modules, but for Python's own.
    stopped: hotlap ended it.
    """

    pid: int
    rank: int
    world: int
    argv: tuple[str, ...]
    python: str
    torch: str
    torch_imported: float | None = None
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    device: str = "cpu"
    device_name: str | None = None
    device_uuid: str | None = None
    capability: tuple[int, int] | None = None
    threads: int = 1
    tf32_matmul: bool = False
    cpu_bf16: bool = False
    cudnn_benchmark: bool = False
    deterministic: bool = False
    switches: tuple[str, ...] = ()
    dispatch_modes: tuple[str, ...] = ()
    function_modes: tuple[str, ...] = ()
    recomputed: Count = 0
    retained: float = 0.0
    forwards_each: float | None = None
    wasted: WastedFacts | None = None
    besides: tuple[BesidesFacts, ...] = ()
    unused: tuple[UnusedFacts, ...] = ()
    hung: Hung | None = None
    mode: Literal["train", "inference", "none"] = "none"
    samples_from: Literal["loader", "forward", "none"] = "none"
    in_flight: int = 0
    draining: bool = False
    seeded: bool = False
    forwards: int = 0
    backwards: int = 0
    optimizer_steps: int = 0
    replayed: tuple[str, ...] = ()
    peak_memory_bytes: int | None = None
    peak_rss_bytes: int | None = None
    raised: tuple[RaisedFacts, ...] = ()
    host: HostFacts | None = None
    imported: dict[str, tuple[str, ...]] = {}
    own_files: tuple[str, ...] = ()
    memory: MemoryFacts | None = None
    stopped: bool = False
    loaders: tuple[LoaderFacts, ...] = ()
    roots: tuple[RootFacts, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    compiled: tuple[CompiledFunction, ...] = ()

    @property
    def feeding(self) -> LoaderFacts | None:
        """The loader that feeds the loop: the one that delivered the most batches, of those that were iterated with
        gradients enabled, or of all where the command only infers."""
        mine = [loader for loader in self.loaders if loader.training or self.mode == "inference"]
        return max(mine, key=lambda loader: loader.batches, default=None)

    @property
    def model(self) -> RootFacts | None:
        """The largest outermost module: of those with parameters that an optimizer holds, where there are some."""
        return max(self.roots, key=lambda root: (bool(root.optimized), root.parameters), default=None)


REFUSED: Final = "Refused: "
"""How `what` begins where a lever said itself that it does not belong here (`agent/seams.py`)."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `problems.jsonl`: hotlap's own, never the user's. what: the error, where: the part of hotlap that it
    came from, trace: the traceback. lever: set when a lever could not be put in. time: seconds since the epoch."""

    where: str
    what: str
    trace: str = ""
    lever: str | None = None
    time: float = 0.0
