"""Records of a profiled run: `rank-K/profile.json` and `rank-K/lines.json`. The trace itself is torch's."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from .diagnosis import Place
from .run import Count, Ms

CalledOp = tuple[str, Count, Count, str]
"""Name of an op or message of a sync, index into `files`, line, function."""


Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
CalledLoss = tuple[Count, Count, str, Share, Count, Share]
"""Index into `files`, line, function; the share of targets that are left out; classes; the part that products with so
many columns have in the multiplications of all products of matrices in the forward."""


UserFrame = tuple[Count, Count, str]
"""Index into `files`, line, function."""


RepeatedLine = tuple[Count, Count, str, Count, Share, Count, Count, str]
"""Index into `files`, line, function; how often a step makes the same there; of what the line makes, the part that was
made before; the outermost call all of which is repeated, as index into `files`, line, function."""


DearOrder = tuple[Count, Count, str, Count, Count, Share]
"""Index into `files`, line, function; multiplications of the two products, as it is and in the other order; the part of
the line's work that this saves."""


FramedLine = tuple[Count, Count, str, Count, Share, tuple[UserFrame, ...]]
"""Index into `files`, line, function; a number, and a part of the line's work; the user's frames, the outermost
first."""


CopiedLine = tuple[Count, Count, str, Count]
"""Index into `files`, line, function; bytes a step."""


LargeLine = tuple[Count, Count, str, Count, Share]
"""Index into `files`, line, function; bytes of large tensors that it makes in a step; the part that this is of all such
that the user's lines make."""


class MaskedLine(msgspec.Struct, frozen=True, array_like=True):
    """Attention with masks: index into `files`, line, function. kind: what the masks there leave out: what comes later,
    that and the padding at the end of rows, nothing, or something else. times: how many a step has. hidden: the share
    (0 to 1) of the scores that they leave out in whole blocks (half: of an older hotlap); made: the line that made the
    first, where that is known."""

    file: Count
    line: Count
    function: str
    kind: Literal["causal", "padded", "nothing", "partly"]
    times: Count
    hidden: Share = 0.5
    made: UserFrame | None = None


def place_in(files: Sequence[str], frame: UserFrame) -> Place:
    """The place of a frame, whose file has to be known."""
    file, line, function = frame
    return Place(file=files[file], line=line, function=function)


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What torch.profiler recorded.

    file: the trace's name, None where there is none (note says why). first_step: the number of the first recorded step,
    as in steps.jsonl and in its annotation `ProfilerStep#N`. steps: number that was recorded whole; wanted: number that
    was asked for. device: the device's work is in it. memory: allocations are in it. stacks: Python stacks are in it.
    snapshot: of the device's memory, for memory_viz, by its name. note: why there is less than was asked for.
    """

    file: str | None = None
    first_step: Count | None = None
    steps: Count = 0
    wanted: Count = 0
    device: bool = False
    memory: bool = False
    stacks: bool = False
    snapshot: str | None = None
    note: str = ""


class Lines(msgspec.Struct, frozen=True, kw_only=True):
    """The user's lines behind one step, run without the profiler before the recorded ones. Lines are given as index
    into `files`, line, function.

    ops: name and line of each, as they were called, in order, by the thread that trains, as they reach the device's
    kernels (`aten::addmm`, not `aten::linear`), each with the user's innermost frame; ops that the backward itself
    calls, and `aten::detach`, are left out. steps: 1, or 0 where ops were not seen. files: that lines point to.
    places: by phase, the line that it was begun from, the first time in the step. begins: phases in the order in which
    they began, each with the number of ops before it (none: of an older hotlap). calls: of torch.cuda.synchronize,
    empty_cache and others that wait for the device and are no ops, and of replays of CUDA graphs. syncs: message and
    line of each time that the host waited for the device, in the step after (CUDA). targets: of each loss over
    classes, with its line: the share (0 to 1) of its targets that it leaves out (`ignore_index`), the number of
    classes, and the part (0 to 1) that its logits have in the forward's products of matrices. repeats: lines that
    compute again, outside of the backward, what the step has computed before: the same ops on the same numbers.
    unused: the same of what is computed with gradients and reaches no backward, in this step or the next, nor the host
    or what lives on. zeroed: of lines that compute what only a product with zero uses: the line, how many operations,
    of its work with the backward the part that these have, and the line of the product. gated: as repeats, of lines of
    modules that each compute the same rows, most of which are then multiplied by zero: how many modules, the part of
    what the line makes that is, and the line that calls them. sparse: the same of products with a large matrix that
    the step does not make, nor train, and that is mostly zeros: how many in a hundred are, and of the line's work what
    they take; where others call the line with other matrices, the line that calls it with this one. sparse_made: the
    same of matrices in two dimensions that the step makes itself. long_convolutions: the same of convolutions of many
    taps: how many, and what FFT would save. denormals: the same of ops on the CPU that take longer by numbers too
    small to be normal: how many times as long as with zeros in their place. half: the same of products of float16 or
    bfloat16 on the CPU: how many times as long as in float32 they take. double: the same of ops that make numbers of
    64 bits, of which half is saved. orders: lines that multiply three matrices in an order that takes twice as much as
    the other, where nothing else has what is made first. same_rows: lines with products and convolutions each of whose
    rows is there several times: how often, and the part that all but the first of them take. siblings: lines with four
    products or more of one shape, each with weights of its own: how many of these, in the mean, need nothing that the
    others make, and their part of the line's products. recasts: lines that cast weights to another type which was done
    before, since the last backward: how often the same, the part of what is copied there, and the line that turned
    autocast on in between, if one did. large: lines that make tensors of 128 KiB or more in the memory of the host,
    outside of the backward. copied: lines that copy the same memory of the host to a device in this step and the next
    (CUDA). masks: of fused attention that is given masks. recurrent: as repeats, of lines that call a recurrent net
    with a sequence that begins with that of the call before: how many calls, and of all their times those that were
    there. stepwise: as siblings, of lines that call a recurrent net with one time of a sequence, where none needs
    what the calls before made but as its state. samplewise: as siblings, of lines with eight or more products with
    the same weights. older: as repeats, of the line whose backward goes on into graphs of steps before: how many
    nodes of these, and their part of all. few_columns, few_rows: the same of products with weights of which the
    step uses few columns, or rows: how many of a hundred numbers, and of the line's work the part of the others.
    repeated_columns: the same of products with weights whose columns are joined, some of them the same in many rows,
    and of what joins and repeats these: how often a row repeats.
    autocasts: lines that turn autocast on while no module is called. left_out: ops beyond 200,000. skipped: why ops
    were not seen.
    """

    steps: Count = 0
    ops: tuple[CalledOp, ...] = ()
    files: tuple[str, ...] = ()
    places: dict[str, tuple[Count, Count, str]] = {}
    begins: tuple[tuple[str, Count], ...] = ()
    calls: tuple[CalledOp, ...] = ()
    syncs: tuple[CalledOp, ...] = ()
    targets: tuple[CalledLoss, ...] = ()
    repeats: tuple[RepeatedLine, ...] = ()
    unused: tuple[RepeatedLine, ...] = ()
    zeroed: tuple[RepeatedLine, ...] = ()
    gated: tuple[RepeatedLine, ...] = ()
    sparse: tuple[RepeatedLine, ...] = ()
    sparse_made: tuple[RepeatedLine, ...] = ()
    long_convolutions: tuple[RepeatedLine, ...] = ()
    denormals: tuple[RepeatedLine, ...] = ()
    half: tuple[RepeatedLine, ...] = ()
    double: tuple[RepeatedLine, ...] = ()
    orders: tuple[DearOrder, ...] = ()
    same_rows: tuple[FramedLine, ...] = ()
    siblings: tuple[FramedLine, ...] = ()
    recasts: tuple[FramedLine, ...] = ()
    large: tuple[LargeLine, ...] = ()
    copied: tuple[CopiedLine, ...] = ()
    masks: tuple[MaskedLine, ...] = ()
    recurrent: tuple[RepeatedLine, ...] = ()
    stepwise: tuple[FramedLine, ...] = ()
    samplewise: tuple[FramedLine, ...] = ()
    older: tuple[RepeatedLine, ...] = ()
    few_columns: tuple[RepeatedLine, ...] = ()
    few_rows: tuple[RepeatedLine, ...] = ()
    repeated_columns: tuple[RepeatedLine, ...] = ()
    autocasts: tuple[UserFrame, ...] = ()
    left_out: Count = 0
    skipped: str = ""


SampledLine = tuple[str, int, Count, str, str, Ms]
"""Phase; index into `files` (-1: no line of the user's), line, function; the function that it was in with its package
(`json.JSONDecoder.decode`), where that is not the user's; ms over all steps."""


Beside = tuple[int, Count, str, float]
"""Index into `files`, line, function where another thread of Python was most often; the share of the time it ran."""


SearchedList = tuple[str, Count, str, Count, Ms]
"""File and line of a search by `in`; the list's expression; its entries, and microseconds of a search in it for what is
not there, of the longest that was seen."""


class WorkerSamples(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `workers-PID.jsonl`, of the process PID whose loader's first worker was sampled as it made batches.

    dataset: class of its dataset. looks: how often the worker was looked at, where it did not wait for what to do.
    files: that lines point to. lines, searched: as in `Samples`. ran_ms: processor time of its thread that makes
    batches, since it began; handed_over_ms: of its threads that hand them over (0: not known).
    """

    dataset: str
    looks: Count = 0
    files: tuple[str, ...] = ()
    lines: tuple[SampledLine, ...] = ()
    searched: tuple[SearchedList, ...] = ()
    ran_ms: Ms = 0.0
    handed_over_ms: Ms = 0.0


SampledPath = tuple[str, tuple[UserFrame, ...], str, Ms]
"""Phase; frames of the user's, the outermost first; the function that the thread was in with its package, where that is
not the user's; ms over all steps."""


class LongSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Host time of the training thread in steps that take much longer than those that were sampled.

    looks: how often the thread was looked at. files: that lines point to. lines: each is phase; frames of the user's,
    the outermost first, each as index into `files`, line, function; the function that the thread was in with its
    package, where that is not the user's; ms. usual: frames of some looks at other steps.
    """

    looks: Count = 0
    files: tuple[str, ...] = ()
    lines: tuple[SampledPath, ...] = ()
    usual: tuple[UserFrame, ...] = ()


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """Host time of the training thread by the user's innermost line, over some steps without the profiler.

    steps: number that was sampled. looks: how often the thread was looked at; each counts for the time since the one
    before, but for what it or the looking thread waited for a core. files: that lines point to. lines: each is phase;
    index into `files` (-1: no line of the user's), line, function; the function that the thread was in with its
    package, where that is not the user's; ms over all steps. equal_looks: by phase, from how many looks that all count
    for the same its shares were as sure. left_out_ms: at places beyond 5,000; own_ms: in hotlap's own code.
    taking_over_ms: of the data phase, while this thread or another took tensors over from another process, as the one
    that pins memory does. paths: the same time as in lines with all frames of the user's, as in `LongSamples`. methods:
    functions in paths that are methods of modules, by index into `files` and name. stood: of lines at which the thread
    hardly ran, the time that it neither ran nor waited for a core: it slept, or waited for something. beside: other
    threads of Python in the user's source. searched: lists that the functions search in which it was.
    """

    steps: Count = 0
    looks: Count = 0
    files: tuple[str, ...] = ()
    lines: tuple[SampledLine, ...] = ()
    equal_looks: dict[str, float] = {}
    paths: tuple[SampledPath, ...] = ()
    methods: tuple[tuple[Count, str], ...] = ()
    stood: tuple[SampledLine, ...] = ()
    left_out_ms: Ms = 0.0
    own_ms: Ms = 0.0
    taking_over_ms: Ms = 0.0
    beside: tuple[Beside, ...] = ()
    searched: tuple[SearchedList, ...] = ()
