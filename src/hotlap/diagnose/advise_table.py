"""The decision flow of "what should I try first?", as data.

After the flow and the checklist of the lesson "Performant PyTorch patterns & synthesis" (profile; gaps on the host;
many small launches; kernels below their roofline; memory pressure; communication), with what is out of date in it
replaced: `PYTORCH_CUDA_ALLOC_CONF` by `PYTORCH_ALLOC_CONF`, `torch.cuda.amp` by `torch.autocast`, "4 workers" and "50
steps after 10" by what is measured, a synchronisation a step by none. The lesson's three ways to be faster are `kind`.

Rows are ordered by what they could win of the step, not as in the lesson: a gap of 5% is not worth more than half of
the step in slow kernels. Thresholds: 5% of the step, the least that is worth a change to the source; the rest of the
idle time 10%, because profilers add some; kernels 30% below their roofline, as no real kernel reaches it; memory 90%,
where the allocator begins to run short.
"""

from typing import Any, Final

from hotlap.levers import answering
from hotlap.records.advice import Condition, Measure, Row, ShareOf, Table

WORTH: Final = 0.05
UNEXPLAINED: Final = 0.10
BELOW_ROOF: Final = 0.30
FULL: Final = 0.90

BETWEEN: Final = "less work between kernels"
BYTES: Final = "fewer bytes moved"
CHIP: Final = "better use of the chip"
KERNEL_PARTS: Final = ("compute", "no_tensor_cores", "bandwidth")

MEASURES: Final = (
    Measure(
        name="idle",
        label="Device idle",
        main=True,
        adds_up=True,
        question="How much of a step is the device idle, for any reason?",
        help="The device has nothing to run. 100% minus utilisation in a trace. Without a GPU: the time outside of the "
        "model.",
    ),
    Measure(
        name="launch_bound",
        label="of it: waiting for launches",
        main=True,
        within="idle",
        question="How much of a step does it wait for kernels to be launched (part of the idle time)?",
        help="Short gaps between many small kernels, while Python and the dispatcher are busy.",
    ),
    Measure(
        name="communication",
        label="Exposed communication",
        main=True,
        question="How much of a step is communication that no computation hides?",
        help="Collectives that run alone on the device, and waits on the host for other ranks.",
    ),
    Measure(
        name="roofline_gap",
        label="Kernels below their roofline",
        main=True,
        question="How far are the largest kernels below what the device could do?",
        help="0%: at the peak of arithmetic or of memory bandwidth. hotlap trace shows it for each op. It is used "
        "only if what the kernels do is unknown.",
    ),
    Measure(
        name="memory_pressure",
        label="Device memory in use at the peak",
        main=True,
        question="How much of the device's memory is in use at the peak?",
        help="At 100% a run fails with out-of-memory errors. Near it, the allocator frees memory and takes it again.",
    ),
    Measure(
        name="input",
        label="waiting for batches",
        within="idle",
        question="How much of a step waits for the next batch?",
        help="In next(DataLoader), while nothing else runs.",
    ),
    Measure(
        name="sync",
        label="after the host waited for a value",
        within="idle",
        question="How much of a step is idle because the host waited for the device?",
        help=".item(), print(loss), .cpu(), a boolean mask, torch.cuda.synchronize(): then the device has nothing "
        "queued.",
    ),
    Measure(
        name="host_code",
        label="Python of the loop",
        within="idle",
        question="How much of a step goes into Python outside of data, model and optimizer?",
        help="Logging, metrics, checkpoints, batches made by hand.",
    ),
    Measure(
        name="allocator",
        label="memory from the driver",
        within="idle",
        question="How much of a step goes into cudaMalloc and cudaFree?",
        help="In steady state neither should be called.",
    ),
    Measure(
        name="h2d",
        label="Exposed copies",
        question="How much of a step goes into copies that overlap nothing?",
        help="Batches on their way to the device, while it computes nothing.",
    ),
    Measure(
        name="compute",
        label="arithmetic",
        within="roofline_gap",
        question="How much of a step is arithmetic?",
        help="Matrix products, convolutions, attention. Without a trace: all of the model.",
    ),
    Measure(
        name="no_tensor_cores",
        label="arithmetic without tensor cores",
        within="roofline_gap",
        question="How much of a step goes into products that leave the tensor cores unused?",
        help="float32 without TF32, or dimensions that are no multiples of 8.",
    ),
    Measure(
        name="bandwidth",
        label="kernels that move data",
        within="roofline_gap",
        question="How much of a step goes into kernels that move data and compute next to nothing?",
        help="Elementwise operations, norms, softmax, copies, the optimizer.",
    ),
    Measure(
        name="optimizer",
        label="an optimizer of many kernels",
        within="roofline_gap",
        question="How much of a step goes into an optimizer that passes over the parameters many times?",
        help="Part of the kernels that move data.",
    ),
    Measure(
        name="straggler",
        label="waiting for one slow rank",
        within="communication",
        question="How much of a step do the ranks wait for the slowest?",
        help="Waits in collectives for the rank that comes last.",
    ),
)
IDLE_PARTS: Final = tuple(one.name for one in MEASURES if one.within == "idle")


def above(measure: str, value: float) -> Condition:
    """The measure is known and above."""
    return Condition(measure=measure, above=value)


def unknown(*measures: str) -> tuple[Condition, ...]:
    """None of them is known."""
    return tuple(Condition(measure=name, unknown=True) for name in measures)


def share_of(measure: str, kind: str = BETWEEN, **told: Any) -> Row:
    """What to do about one measure, by name unless an id is told: from WORTH on, and it can win that share; all of it
    goes away where it is a wait between kernels."""
    known: dict[str, Any] = {"id": measure, "conditions": (above(measure, WORTH),), "share": ShareOf(of=measure)}
    return Row(**{**known, "kind": kind, "removable": kind == BETWEEN, **told})


ROWS: Final = (
    share_of(
        "input",
        bound="input",
        title="Feed it: make batches ahead of their use",
        because="{input} of the step is waiting for the next batch.",
        do=(
            "Make batches in worker processes (num_workers, persistent_workers=True). Measure how many.",
            "For a GPU: pin_memory=True and .to(device, non_blocking=True), so that the copy overlaps the computation.",
            "Make a batch cheaper: decode once and keep the result; collate whole arrays instead of samples.",
            "Tensors in memory: index them with a whole batch of indices, on the device where they fit.",
        ),
        levers=answering("input"),
        verify="The `data` phase becomes short.",
    ),
    share_of(
        "sync",
        bound="sync",
        title="Stop waiting for values in the loop",
        because="For {sync} of the step the device is idle after the host has waited for it.",
        do=(
            "Keep losses and metrics on the device; read them every n steps. print(loss), f-strings and .item() "
            "each wait.",
            "Decide on the device: torch.where instead of `if tensor` or a boolean mask.",
            "Take torch.cuda.synchronize() out of the loop; time with CUDA events.",
        ),
        levers=answering("syncs"),
        verify="`hotlap run --profile COMMAND` before and after: the finding is gone and the step is shorter.",
    ),
    share_of(
        "host_code",
        bound="unknown",
        title="Take Python out of the loop",
        because="{host_code} of the step is the loop's own code, outside of data, model and optimizer.",
        do=(
            "Log, checkpoint and evaluate every n steps, or in another thread.",
            "Make batches ahead, in a DataLoader with workers, where the loop makes them by hand.",
            "Compute metrics only in the steps that log them, on the device, on whole batches instead of samples.",
            "Python's collector: gc.collect(); gc.freeze() after the first steps, or gc.disable() with a collect "
            "between epochs.",
        ),
        verify="The `other` phase becomes short; `hotlap run --profile COMMAND` names the lines that are left in it.",
    ),
    Row(
        id="gaps",
        bound="unknown",
        title="Find out what the device waits for",
        conditions=(above("share", UNEXPLAINED),),
        share=ShareOf(of="idle", less=IDLE_PARTS),
        removable=True,
        kind=BETWEEN,
        because="For {share} of the step the device is idle. The cause is unknown: batches, synchronisation or Python.",
        do=(
            "`hotlap run --profile COMMAND` divides the idle time by cause and names the lines.",
            "Idle at the start of each step: the loader. Use more workers and pinned memory.",
            "Idle in the middle of a step: .item(), print(loss), .cpu(), `if tensor`. Log every n steps.",
        ),
        levers=answering("input"),
        verify="`hotlap run --profile COMMAND` before and after.",
    ),
    share_of(
        "launch_bound",
        id="launch",
        bound="launch",
        title="Launch less: compile, then CUDA graphs",
        because="For {launch_bound} of the step the device waits for the host to launch its next kernel.",
        do=(
            "torch.compile the model; with static shapes mode='reduce-overhead', which replays CUDA graphs.",
            "For inference: torch.inference_mode(), and a CUDA graph for each input shape.",
            "fused=True for the optimizer.",
            "A larger batch, if training allows it: the same launches do more work.",
        ),
        levers=answering("launches"),
        verify="Mixed precision alone can make such a step slower.",
    ),
    share_of(
        "h2d",
        bound="h2d",
        title="Copy the next batch while this one is computed",
        because="{h2d} of the step goes into copies that overlap nothing.",
        do=(
            "pin_memory=True in the DataLoader and .to(device, non_blocking=True). Pinning inside the loop is slower.",
            "Prefetch to the device on a stream of its own.",
            "Send less: uint8 images, augmented on the device.",
        ),
        levers=answering("h2d"),
        verify="The `h2d` phase becomes short.",
    ),
    share_of(
        "allocator",
        bound="memory",
        title="Stop taking memory from the driver in every step",
        because="For {allocator} of the step the device is idle during cudaMalloc and cudaFree.",
        do=(
            "Take torch.cuda.empty_cache() out of the loop.",
            "Keep shapes alike: pad to a few sizes.",
            "If memory is fragmented: PYTORCH_ALLOC_CONF=expandable_segments:True (old name "
            "PYTORCH_CUDA_ALLOC_CONF). It has hung with CUDA graphs and NCCL together.",
        ),
        levers=answering("allocator"),
        verify="`hotlap run --profile COMMAND`: no driver allocations in steady steps.",
    ),
    share_of(
        "straggler",
        bound="communication",
        title="Look at the slow rank",
        because="For {straggler} of the step the other ranks wait for one.",
        do=(
            "Give every rank the same work: lengths, shards, experts.",
            "Look at that rank's input, host and clocks before the network.",
        ),
        verify="`hotlap run --profile COMMAND`: no rank arrives later than the others by more than noise.",
    ),
    share_of(
        "communication",
        bound="communication",
        title="Hide communication behind the backward",
        because="{communication} of the step goes into communication that no computation hides.",
        do=(
            "DistributedDataParallel with its buckets, or fully_shard with prefetch; no collectives after the "
            "backward.",
            "Larger buckets; gradient_as_bucket_view=True; no_sync() while gradients are accumulated.",
            "One tensor instead of a list of them: all_gather_into_tensor (all_gather_single from torch 2.13).",
        ),
        verify="`hotlap run --profile COMMAND`: the share of hidden communication rises.",
    ),
    share_of(
        "no_tensor_cores",
        bound="compute",
        title="Use the tensor cores: bf16, or TF32",
        kind=CHIP,
        because="{no_tensor_cores} of the step goes into products that leave the tensor cores unused.",
        do=(
            "torch.autocast('cuda', dtype=torch.bfloat16) around forward and loss; weights and optimizer stay float32. "
            "bf16 needs no GradScaler.",
            "TF32 if float32 has to stay: torch.set_float32_matmul_precision('high').",
            "Dimensions (vocabulary, heads, channels) in multiples of 8, or better 64.",
        ),
        levers=answering("precision"),
        verify="The step is shorter, and the losses still agree.",
    ),
    share_of(
        "compute",
        bound="compute",
        title="Make what the model computes cheaper",
        kind=CHIP,
        because="{compute} of the step is what the model computes.",
        do=(
            "Lower precision (bf16 autocast) and torch.compile. Benchmark the two together and alone.",
            "Fused attention (scaled_dot_product_attention), channels_last for convolutions, dimensions that fill "
            "tiles.",
            "Convolutions with fixed sizes: torch.backends.cudnn.benchmark = True.",
            "Inference with a large vocabulary: compute logits only at the positions that are used.",
            "A single slow kernel: profile it before rewriting it; on NVIDIA GPUs with ncu.",
        ),
        levers=answering("arithmetic", "threads"),
        verify="What is kept has a measured gain and passes parity.",
    ),
    share_of(
        "bandwidth",
        bound="bandwidth",
        title="Move fewer bytes: fuse",
        kind=BYTES,
        because="{bandwidth} of the step goes into kernels that move data and compute next to nothing.",
        do=(
            "torch.compile: chains of elementwise operations become one kernel, also in a loss function of your own.",
            "Smaller types; fused=True for the optimizer.",
            "Fewer copies: expand instead of repeat, no .contiguous() back and forth, channels_last for convolutions.",
            "torch.cumsum over few long rows or columns (as positions of tokens in their experts): in chunks.",
        ),
        levers=answering("bytes"),
        verify="The step is shorter; in a trace fewer kernels move the same data.",
    ),
    share_of(
        "optimizer",
        bound="bandwidth",
        title="Step the optimizer in one pass",
        kind=BYTES,
        because="{optimizer} of the step goes into an optimizer that reads and writes the parameters many times.",
        do=("fused=True (Adam, AdamW, SGD, Adagrad).",),
        levers=answering("optimizer"),
        verify="The `optimizer` phase becomes short.",
    ),
    Row(
        id="kernels",
        bound="compute",
        title="Bring the kernels to their roofline",
        conditions=(above("roofline_gap", BELOW_ROOF), above("share", WORTH), *unknown(*KERNEL_PARTS)),
        share=ShareOf(of="step", less=("idle", "communication", "straggler", "h2d"), times=("roofline_gap",)),
        kind=CHIP,
        because="The kernels run {roofline_gap} below what the device could do: {share} of the step.",
        do=(
            "See what limits them: after a run with --profile, `hotlap trace RUN` names op, line and limit.",
            "Arithmetic: bf16 autocast, tensor cores. Memory traffic: torch.compile fuses it.",
            "For a single slow op a library or Triton kernel, once ncu has shown what limits it.",
        ),
        levers=answering("arithmetic"),
        verify="What is kept has a measured gain and passes parity.",
    ),
    Row(
        id="memory",
        bound="memory",
        title="Make room on the device",
        conditions=(above("memory_pressure", FULL),),
        kind=BYTES,
        because="{memory_pressure} of the device's memory is in use at the peak. How much time that costs is unknown.",
        do=(
            "bf16 autocast halves the activations. zero_grad() sets gradients to None by default; keep that.",
            "PYTORCH_ALLOC_CONF=expandable_segments:True if shapes vary.",
            "Activation checkpointing (use_reentrant=False), or a smaller batch with gradient accumulation.",
            "Logits of a large vocabulary: F.linear_cross_entropy with its options (torch 2.13 or later), or head and "
            "loss in chunks of rows.",
            "Don't keep tensors alive: a list of losses keeps their whole graphs unless they are detached.",
        ),
        levers=answering("memory"),
        verify="The peak falls (`peak_memory_bytes` in facts.json) and the step does not become longer.",
    ),
)
OTHERWISE: Final = (
    Row(
        id="profile",
        bound="unknown",
        title="Measure first",
        conditions=unknown(*(one.name for one in MEASURES)),
        because="Nothing is known of the step yet.",
        do=(
            "`hotlap run --profile COMMAND` measures the step and names its bound.",
            "`hotlap advise FOLDER` then starts from that run.",
        ),
        verify="The screen names the bound, what it costs and the line.",
    ),
    Row(
        id="fine",
        bound="unknown",
        title="Nothing stands out",
        because="No cause that is known takes a notable share of the step.",
        do=(
            "`hotlap tune COMMAND` tries what applies, with proof.",
            "What remains is less work: a smaller model, lower precision, more devices.",
        ),
        verify='`hotlap tune` says "no gain" where there is none.',
    ),
)
TABLE: Final = Table(measures=MEASURES, rows=ROWS, otherwise=OTHERWISE)
