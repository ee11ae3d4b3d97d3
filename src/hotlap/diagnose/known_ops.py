"""Operations of torch, and statements, that take much of a trace and that something else does for less, each with what
that is."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from hotlap.records.diagnosis import Bound, Finding, Place, left_beside
from hotlap.records.durations import ms
from hotlap.records.trace import HostTime, KernelTime, OpRoofline, RankTrace
from hotlap.trace import scaling

from . import masks, recasts
from .causes import JACOBIAN, Cause
from .repeated import SPARSE, Line, Repeated, not_needed
from .statements import calls, cross_entropy_at, last_of_all_at, pairs_at, product_at

LEAST: Final = 0.2
"""Of what the machine leaves of the step."""
LARGE_NS: Final = 50_000
"""Of one operation in the mean, from which on issuing it takes less than computing it."""
GENERAL: Final = frozenset({"compute", "bandwidth", "no-tensor-cores", "host-code"})
"""Findings that say where time goes and not why."""


@dataclass(frozen=True)
class KnownOp:
    """A cause, whose bound is that on a device; on the CPU it computes. on_a_device: it is one there. ops: names
    without `aten::`; a backward's are its class (`SortBackward0`)."""

    cause: Cause
    ops: re.Pattern[str]
    on_a_device: bool = True


def _known(id_: str, ops: str, title: str, why: str, instead: str, bound: Bound = "bandwidth") -> KnownOp:
    return KnownOp(Cause(id_, title, why, instead, bound), re.compile(ops))


DIAGONAL: Final = "for a diagonal covariance: `Independent(Normal(mean, std), 1)` in place of `MultivariateNormal`; "
OF_MATRICES: Final = (
    ("svd", "only the largest singular value: power iteration (`torch.nn.utils.parametrizations.spectral_norm`), the "
    "largest few: `torch.svd_lowrank`; "),
    ("inv", "`torch.linalg.solve` or `cholesky_solve` in place of an inverse; "),
    ("cholesky", DIAGONAL),
    ("triangular", DIAGONAL),
)  # fmt: skip
"""What helps with some of them, by parts of their names."""
KNOWN: Final = (
    _known(
        "index-gradient",
        r"IndexBackward\d|_?index_put(_impl)?_?|IndexPutBackward\d",
        "rows at an index are added or written one by one",
        "the gradient of `table[index]`, like `index_put_`, sorts the index and adds rows that share a position "
        "one after another",
        "`F.embedding(index, table)` or `table.index_select(0, index)`, whose gradients are summed in parallel; "
        "for a table of few rows `F.one_hot(index, n).to(table.dtype) @ table`",
        "compute",
    ),
    _known(
        "embedding-gradient",
        r"Embedding(Bag|DenseBackward)?Backward\d|embedding_dense_backward|_embedding_bag_dense_backward",
        "the gradient of an embedding is as large as its table",
        "all of it is filled with zeros and added to, however few rows a batch used",
        "`nn.Embedding(..., sparse=True)` with SparseAdam, SGD or Adagrad; for a small table, fewer lookups of "
        "the same row",
    ),
    _known(
        "sums-by-index",
        r"scatter_(add|reduce)_?|index_(add|reduce)_?|(ScatterAdd|ScatterReduce|IndexAdd|IndexReduce)Backward\d",
        "rows are summed by an index",
        "additions to one position wait for each other, and on a CPU they mostly run on one core",
        "a product with a sparse matrix made once, `torch.sparse_csr_tensor(...) @ x`; or sort rows by the "
        "index once, before the loop, and use `torch.segment_reduce`",
    ),
    _known(
        "whole-copies",
        r"cat|CatBackward\d|stack|StackBackward\d|roll|RollBackward\d|flip|FlipBackward\d|clone|CloneBackward\d",
        "whole tensors are copied to join or shift them",
        "everything is read and written again, even if only a small part is new",
        "write in place into a tensor made once: a ring buffer for a memory or history, `out=` or slices for "
        "parts; join a list's parts once, at its end",
    ),
    _known(
        "repeats",
        r"repeat|tile|repeat_interleave|Repeat(Interleave)?Backward\d|kron",
        "tensors are repeated in memory",
        "each copy is written, then read again by the next operation",
        "`expand` and broadcasting (`x[:, None]`), which copy nothing",
    ),
    _known(
        "sorting",
        r"sort|argsort|msort|(nan)?median|(nan)?quantile|_unique2?|unique_(dim|consecutive)|SortBackward\d|"
             r"MedianBackward\d",
        "values are sorted",
        "a sort passes over all values many times, however few are needed",
        "`topk` for the largest few, `kthvalue` for one, `torch.bucketize` or `histc` for counts, a sample of "
        "the values for a quantile; sort fixed values once, before the loop; if only logged: every n steps",
    ),
    _known(
        "scans",
        r"_?cum(sum|prod|max|min)(_helper)?_?|_?logcumsumexp|Cum(sum|prod|max|min)Backward\d|LogcumsumexpBackward\d",
        "cumulative sums, products or maxima are computed",
        "with few long rows most of a device is idle; over any dimension but the last, memory is read in "
        "strides",
        "compute over the last, contiguous dimension (transpose first), or in chunks, adding the sums of "
        "earlier chunks",
    ),
    _known(
        "decomposition",
        r"_?linalg_(svd|eig|inv|pinv|qr|cholesky|solve|lu|ldl|det|slogdet|matrix_(exp|power)|lstsq)\w*|inverse|pinverse|"
             r"Linalg(Svd|Eig|Inv|Pinv|Qr|Cholesky|Solve|L[uU]|Ldl|Det|Slogdet|Matrix(Exp|Power)|Lstsq)\w*|slogdet|logdet|"
             r"cholesky\w*|geqrf|ormqr|orgqr|matrix_exp\w*",
        "a matrix is decomposed or inverted",
        "it takes many small dependent steps, which fill neither a CPU's cores nor a device",
        "decompose only every n steps and reuse the last result; many small matrices in one batched call",
        "compute",
    ),
    _known(
        "spectra",
        r"_?fft_\w+|stft|istft|Fft\w+Backward\d",
        "Fourier transforms are computed",
        "they are memory-bound, and lengths with large prime factors take several times as long",
        "transform fixed data once, before the loop; `rfft` for real numbers; pad lengths to a power of two",
    ),
    _known(
        "distances",
        r"_?cdist\w*|pdist|_pdist\w*|CdistBackward\d|PdistBackward\d|_euclidean_dist|EuclideanDistBackward\d",
        "distances of all pairs are computed",
        "for n and m rows of d numbers the work is n x m x d, and several times that in the backward",
        "`torch.cdist(x, y, compute_mode='use_mm_for_euclid_dist')`, which uses a matrix product; for fixed "
        "points once; or for a sample of the pairs",
        "compute",
    ),
    _known(
        "resizing",
        r"_?upsample_\w+|Upsample\w+Backward\d|(cudnn_)?grid_sampler\w*|(Cudnn)?GridSampler\w+Backward\d",
        "images are resized or warped",
        "each value is a weighted sum of scattered values; antialiasing adds more",
        "resize once, when preparing the data; bilinear in place of bicubic, without `antialias`; a smaller size",
    ),
    _known(
        "patches",
        r"im2col|col2im|Im2ColBackward\d|Col2ImBackward\d|unfold_backward|UnfoldBackward\d",
        "overlapping windows are copied out",
        "each value is written once for each window it is in",
        "a convolution or pooling reads windows without copies; for windows that do not overlap: `reshape`, or "
        "a convolution with `stride=kernel_size`",
    ),
    _known(
        "constants",
        r"arange|linspace|eye|tril|triu|tril_indices|triu_indices|hann_window|hamming_window",
        "constants are made",
        "masks, positions and windows are the same in each step",
        "make them once, in `__init__` with `register_buffer`; for a causal mask: `is_causal=True`",
    ),
    _known(
        "value-checks",
        r"isnan|isfinite|isinf|isneginf|isposinf|equal|allclose|isclose",
        "values are checked",
        "each check reads all of them",
        "check every n steps, or only the loss or the gradients' norm, which is NaN or infinite if any value is",
    ),
    _known(
        "counting",
        r"histc|bincount|histogram\w*|_histogramdd\w*",
        "values are counted into bins",
        "each is added to its bin separately, many to the same one",
        "every n steps if only logged; or count a sample of the values",
    ),
    _known(
        "membership",
        r"isin",
        "values are searched in a list",
        "each is compared with each value of the list",
        "a boolean table made once: `is_in[ids]`",
    ),
    _known(
        "draws",
        r"multinomial|randperm|poisson|binomial|_standard_gamma|_sample_dirichlet",
        "random numbers are drawn from a table or a distribution",
        "each draw goes through all weights or rows",
        "many draws in one call; `torch.searchsorted(cumulative, torch.rand(n))` with kept sums; `randint` in "
        "place of `randperm(n)[:k]` if a row may come twice",
    ),
    replace(
        _known(
            "dropout",
            r"bernoulli_?|native_dropout|NativeDropoutBackward\d",
            "dropout draws its mask number by number",
            "on a CPU torch draws them one by one, about 9 ns each on one core, four times as long as `rand`",
            "`x * torch.rand_like(x).lt_(1 - p).div_(1 - p)` in training: the same but for the draws, in a "
            "third of the time; or drop fewer numbers: small hidden features, or whole rows or channels",
            "compute",
        ),
        on_a_device=False,
    ),
    _known(
        "renormalized-embedding",
        r"embedding_renorm_",
        "an embedding's rows are renormalized at each lookup",
        "`max_norm` makes each forward find, measure and write its rows, on one core",
        "`nn.Embedding` without `max_norm`; normalize the table by hand every n steps",
    ),
    _known(
        "sparse-coordinates",
        r"_?coalesce|_to_sparse\w*|to_sparse\w*|_coo_\w+|_sparse_coo_tensor\w*|sparse_mask",
        "a sparse matrix is sorted or converted again",
        "a COO matrix is coalesced or converted each time it is used",
        "convert it once, before the loop: `matrix.coalesce().to_sparse_csr()`",
    ),
    _known(
        "slow-convolution",
        r"_?slow_conv\w*|SlowConv\w+Backward\d",
        "a convolution runs in torch's own kernel, sample by sample",
        "torch uses it if no library has a kernel, as for float64, and with one CPU thread for 1x1 convolutions "
        "of fewer than 16 samples",
        "float32, bf16 or fp16 in place of float64; no dilation in 3-d; contiguous tensors; a 1x1 convolution "
        "before an upsampling, not after it (`F.interpolate(self.conv(x), ...)`): fewer pixels, the same result "
        "but for rounding",
        "compute",
    ),
    _known(
        "ctc",
        r"_ctc_loss\w*|CtcLossBackward\d",
        "the CTC loss runs in torch's own kernel",
        "it computes time steps one by one",
        "use cuDNN's: targets on the CPU as int32 in one dimension, lengths on the CPU, `blank=0`, float32 "
        "log-probabilities",
        "launch",
    ),
)  # fmt: skip


def known_ops(
    rank: RankTrace,
    findings: Sequence[Finding],
    step_ms: float,
    spare: Sequence[Repeated] = (),
    masked: Sequence[masks.Mask] = (),
    recast: Sequence[recasts.Recast] = (),
) -> tuple[Finding, ...]:
    """Findings with those operations that take much of a step, which leaves less to those that only say where its time
    goes. step_ms: of steps without the profiler. spare: what is computed and not needed; masked: attention
    with masks of that kind; recast: weights that are cast again."""
    on_device, left = bool(rank.breakdown), left_beside(findings)
    if on_device:
        rows: Sequence[KernelTime | HostTime] = [row for row in rank.kernels if row.by == "op"]
        share = left * scaling.per_step_ms(rank, 1.0) / scaling.step_ms(rank)
    else:
        rows = rank.model
        whole = max((one.share for one in findings if one.id == "compute" and not one.named), default=0.0)
        share = whole / max(1, sum(row.ns for row in rows))
    sparse = {one.line for one in spare if one.cause is SPARSE}  # whose dropout is told with them
    others = [row for row in rows if row.where is None or (row.where.file, row.where.line) not in sparse]
    told = list(_told(others, share, step_ms, on_device, LEAST * left))
    if on_device:
        of_lines: Sequence[KernelTime | HostTime] = [row for row in rank.kernels if row.by == "line"]
    else:
        of_lines = [row for row in rank.model if "::" in row.name]
    told += _statements(of_lines, ON_A_DEVICE if on_device else ON_THE_CPU, share, step_ms, LEAST * left)
    sized: Sequence[OpRoofline | HostTime] = rank.roofline if on_device else rank.model
    of_masks = list(masks.not_needed(sized, masked, share, step_ms))
    findings = tuple(masks.with_facts(findings, masked, of_masks))
    told += of_masks
    told += recasts.again(sized, recast, share, step_ms, left)
    told += not_needed(_costs(rank, findings, of_lines, share), spare, step_ms, left)
    return (*told, *_less(findings, sum(one.share for one in told)))


def _costs(
    rank: RankTrace, findings: Sequence[Finding], rows: Sequence[KernelTime | HostTime], share: float
) -> dict[Line, float]:
    """Of the step, by line: the work there and, of a device that waits for launches, the host's time for them."""
    costs: defaultdict[Line, float] = defaultdict(float)
    launch = sum(one.share for one in findings if one.id == "launch") if rank.breakdown else 0.0
    whole = max(1, sum(row.ns for row in rank.model))
    for by, those in ((share, rows), (launch / whole, rank.model)):
        for row in those:
            if by and row.where is not None:
                costs[row.where.file, row.where.line] += by * row.ns
    return costs


def _told(
    rows: Sequence[KernelTime | HostTime], share: float, step_ms: float, on_device: bool, least: float
) -> Iterator[Finding]:
    for known in (one for one in KNOWN if one.on_a_device or not on_device):
        of_it = [row for row in rows if known.ops.fullmatch(_name(row).removeprefix("aten::"))]
        if (took := min(1.0, share * sum(row.ns for row in of_it))) >= least:
            at = max((row for row in of_it if row.where is not None), key=lambda row: row.ns, default=of_it[0]).where
            most = _name(max(of_it, key=lambda row: row.ns))
            first = next((text for part, text in OF_MATRICES if part in most.lower()), "")
            cause = replace(known.cause, instead=first + known.cause.instead)
            alike = " and the like" if len(of_it) > 1 else ""
            found = cause.finding(took, at, f"{ms(took * step_ms)} a step in {most}{alike}")
            yield found if on_device else msgspec.structs.replace(found, bound="compute")


def _jacobian_at(place: Place) -> Cause | None:
    return JACOBIAN.cause if calls(place, JACOBIAN) else None


ON_THE_CPU: Final = (last_of_all_at, _jacobian_at)
"""Causes that statements show. Others are told by where the host is."""
ON_A_DEVICE: Final = (last_of_all_at, product_at, cross_entropy_at, pairs_at, _jacobian_at)


def _statements(
    rows: Sequence[KernelTime | HostTime],
    causes: Sequence[Callable[[Place], Cause | None]],
    share: float,
    step_ms: float,
    least: float,
) -> Iterator[Finding]:
    """Causes that lines of a function show, by the work at these lines."""
    for cause_of in causes:
        functions: defaultdict[tuple[Cause, str, str | None], list[tuple[int, Place, int]]] = defaultdict(list)
        for row in rows:
            if row.where is not None and (cause := cause_of(row.where)) is not None:
                functions[cause, row.where.file, row.where.function].append((row.ns, row.where, row.count))
        for (cause, _, function), lines in functions.items():
            if (took := min(1.0, share * sum(ns for ns, *_ in lines))) >= least:
                _, where, _ = max(lines, key=lambda one: one[0])
                large = sum(ns for ns, *_ in lines) > LARGE_NS * sum(count for *_, count in lines)
                found = replace(cause, bound="compute") if large and cause.bound == "launch" else cause
                said = f"{ms(took * step_ms)} a step at such lines of {function or 'the file'}"
                yield found.finding(took, where, said)


def _name(row: KernelTime | HostTime) -> str:
    return row.key if isinstance(row, KernelTime) else row.name


def _less(findings: Sequence[Finding], took: float) -> Iterator[Finding]:
    """Without what causes took, of the dearest first."""
    cut: dict[int, float] = {}
    for at in sorted(range(len(findings)), key=lambda at: -findings[at].share):
        if findings[at].id in GENERAL and not findings[at].named and took > 0:
            cut[at] = min(took, findings[at].share)
            took -= cut[at]
    for at, one in enumerate(findings):
        evidence = f"{one.evidence}, with the cause listed separately" if one.evidence else ""
        yield msgspec.structs.replace(one, share=one.share - cut[at], evidence=evidence) if at in cut else one
