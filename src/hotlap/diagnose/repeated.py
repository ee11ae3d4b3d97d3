"""What a step computes and does not need: the same several times, products with zeros, convolutions tap by tap,
denormal numbers, products in the expensive order."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from hotlap.records.diagnosis import Finding, Place
from hotlap.records.durations import ms
from hotlap.records.profile import Lines, place_in

from .causes import Cause
from .statements import product_at, repeating

REPLAY: Final = "torch.cuda.CUDAGraph.replay"
LEAST: Final = 0.2
"""Of what the machine leaves of the step."""
AGAIN: Final = Cause(
    "computed-again",
    "the same is computed from the same input several times a step",
    "the result is the same each time; a backward, if any, runs as often",
    "compute it once, before the loop, and pass the result on: keys and values of a memory once a sequence, an "
    "encoded set once a batch; reuse it with `.detach()` if no gradients are needed; BatchNorm averages then "
    "count it once",
    "compute",
)
UNUSED: Final = Cause(
    "unused-results",
    "a result is computed with gradients and never used",
    "it is computed, with the graph for a backward, and discarded",
    "leave it out if nothing uses it, such as a branch whose loss is not trained in this step; if only logged "
    "or plotted: every n steps, under `torch.no_grad()`",
    "compute",
)
ZEROED: Final = Cause(
    "zero-weight",
    "a term is multiplied by zero, and is still computed",
    "everything that only this product uses is computed, and the backward goes through it with zero gradients; "
    "if it is finite, it adds nothing",
    "skip the term where its weight is 0: `if weight: loss = loss + weight * term(...)`; if only logged: every "
    "n steps, under `torch.no_grad()`; parameters that only this term trains then get no gradient instead of "
    "zeros",
    "compute",
)
GATED: Final = Cause(
    "gated-rows",
    "each expert computes all rows, and most results are multiplied by zero",
    "rows that a gate drops are computed forward and backward like the others",
    "give each expert only the rows that its gate keeps: `rows = gates[:, i].nonzero().squeeze(1)`, then "
    "`out.index_add_(0, rows, gates[rows, i, None] * expert(x[rows]))`; or sort rows by "
    "expert and use torch.nn.functional.grouped_mm, without a `nonzero` for each; the same for task heads chosen by a "
    "mask",
    "compute",
)
SPARSE: Final = Cause(
    "sparse-product",
    "a matrix that is mostly zeros is multiplied as a dense one",
    "zeros are read and multiplied like other numbers, forward and backward, and add nothing",
    "once, before the loop, `a = a.to_sparse_csr()`, then `a @ x` in two dimensions (`x.reshape(n, -1)`); or "
    "over its edges `out.index_add_(0, to, x[of] * weight[:, None])`; one-hot rows: `F.embedding`; an identity: "
    "only the other matrix; counts: `nn.EmbeddingBag`; dropout: only on its nonzero numbers",
    "compute",
)
SPARSE_MADE: Final = replace(
    SPARSE,
    instead="make a sparse matrix from indices and values instead of writing into `torch.zeros`: `a = "
    "torch.sparse_coo_tensor(torch.tensor([rows, columns]), values, (n, m))`, then `a @ x`; or "
    "`out.index_add_(0, rows, x[columns] * values[:, None])`; sums or means of rows: `F.embedding_bag`; one-hot "
    "rows: `F.embedding`",
)
TAP_BY_TAP: Final = Cause(
    "long-convolution",
    "a convolution with a very long kernel is computed tap by tap",
    "its work grows with length times taps; by FFT, with the length times its logarithm",
    "by FFT: `torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(k.flip(-1), n), n)`, cut to the length, "
    "with n = `x.size(-1) + k.size(-1) - 1` or the next power of two; if channels mix, an einsum of both "
    "spectra; or a shorter or dilated kernel",
    "compute",
)
DENORMALS: Final = Cause(
    "denormals",
    "denormal numbers",
    "CPUs and their libraries are many times slower with denormal numbers (below 1.2e-38 in float32)",
    "`torch.set_flush_denormal(True)` at the start of the script, which replaces them with zeros",
    "compute",
)
HALF: Final = Cause(
    "slow-half",
    "half precision takes longer than float32 on this CPU",
    "a processor without instructions for it converts each number to float32 and back, in the backward too",
    "float32 on the CPU: autocast with `enabled=device == 'cuda'`, and no `.half()`; or bfloat16 without a "
    "GradScaler, if the processor supports it (`avx512_bf16`, `amx_bf16` in /proc/cpuinfo)",
    "compute",
)
SAME_ROWS: Final = Cause(
    "same-rows",
    "each row of a batch is computed several times",
    "rows are repeated before a part of the model that computes the same for equal rows, forward and backward",
    "repeat the output instead of the input, `encoder(x).repeat(k, 1)` or `.repeat_interleave(k, 0)`, and draw "
    "random numbers (a posterior, dropout) after that",
    "compute",
)
NOT_CARRIED: Final = Cause(
    "state-not-carried",
    "a recurrent net restarts at each new step of its sequence",
    "its state after the earlier steps is known but computed again, forward and backward",
    "carry its state: once `out, state = self.rnn(x)`, then only the new step, `out, state = self.rnn(x_new, state)`",
    "compute",
)
ORDER: Final = Cause(
    "product-order",
    "three matrices are multiplied in the expensive order",
    "the first product is large, and the second makes it small again",
    "the other order of the products, `A @ (B @ C)` in place of `(A @ B) @ C` or the other way round; "
    "`torch.linalg.multi_dot` chooses it; the same for attention without softmax, `q @ (k.mT @ v)`; results differ by "
    "rounding",
    "compute",
)
COLUMNS: Final = Cause(
    "few-columns",
    "scores of all classes are computed, and a few of them used",
    "the product with all weights, and its backward with a gradient of mostly zeros, go over every class",
    "only those that are used: `(hidden[:, None] * head.weight[at]).sum(-1) + head.bias[at]` with `at` of (rows, k), "
    "in place of `head(hidden).gather(1, at)`; candidates that all rows share: `F.linear(hidden, head.weight[at], "
    "head.bias[at])`",
    "compute",
)
ROWS: Final = Cause(
    "few-rows",
    "results of all rows, or times, are computed and a few of them used",
    "what is computed of the others is thrown away, and its backward is all zeros",
    "choose them before it, not after: `head(hidden[rows])` in place of `head(hidden)[rows]`, `conv(x[..., -n:])` in "
    "place of `conv(x)[..., -n:]` (its kernel takes as many more as it is long, less one)",
    "compute",
)
REPEATED: Final = Cause(
    "repeated-columns",
    "a repeated tensor is concatenated with others, and multiplied again in each row",
    "the same numbers are written out and multiplied for each row, forward and backward",
    "split the layer: one Linear of what repeats, before it is repeated, and one of the rest, added (they broadcast), "
    "in place of one of `torch.cat([x.repeat(...), y], -1)`; results differ by rounding",
    "compute",
)
DOUBLE: Final = Cause(
    "promoted-to-double",
    "double-precision numbers enter the step",
    "one float64 or complex128 operand makes everything computed from it double precision: twice the bytes, "
    "half the speed",
    "convert it where it enters: `torch.from_numpy(x).float()` or `.to(torch.complex64)`, "
    "`x.astype(numpy.float32)`; for tensors of Python numbers `dtype=torch.float32`",
    "compute",
)
SAID: Final = {
    DOUBLE: "its results have {} bits a number; single precision saves at least {} a step",
    ORDER: "{} million; the other order saves {} a step",
    DENORMALS: "an operation takes {} times as long as with zeros instead; the denormal numbers cost {} a step",
    HALF: "a product takes {} times as long as in float32, which saves {} a step",
    SAME_ROWS: "each row of a product occurs {} times; all but the first take {} a step",
    NOT_CARRIED: "{} calls a step, each with a longer sequence than the last; computing the old part again takes "
    "{} a step",
    COLUMNS: "{}% of what this makes is used; the rest takes {} a step",
    ROWS: "{}% of what this makes is used; the rest takes {} a step",
    REPEATED: "part of its columns is the same in {} rows; that takes {} a step",
    AGAIN: "{} times a step with the same input and weights; all but the first take {} a step",
    UNUSED: "no backward goes through {} operations of this call, and nothing else uses their results; they take {} a "
    "step",
    ZEROED: "only this product uses {}, and its factor was 0 in the recorded step; they take {} a step",
    GATED: "{} modules get the same rows; results multiplied by zero take {} a step",
    SPARSE: "{}% of a constant matrix are zeros; products and dropout with them take {} a step",
    SPARSE_MADE: "{}% of a matrix that the step makes are zeros; products with them take {} a step",
    TAP_BY_TAP: "a kernel of {} taps; FFT saves {} a step",
}
OF_FEW: Final = (COLUMNS, ROWS)
OF_ZEROS: Final = (SPARSE, SPARSE_MADE)
LEAST_OF: Final = {UNUSED: 0.05, ZEROED: 0.05, SPARSE: 0.1, SPARSE_MADE: 0.1, ROWS: 0.05}
"""Of what the machine leaves of the step, where it is not LEAST: what can be left out as it is is told sooner."""
Line = tuple[str, int | None]


class Repeated(NamedTuple):
    """A line at which more is made than is needed. times: how often, by how many modules, or another number for
    the evidence. part: of what it makes, what is not needed. call: the outermost call all of which this is true of."""

    line: Line
    times: int | str
    part: float
    call: Place
    cause: Cause = AGAIN


def of_lines(lines: Lines, backward: float = 1.0) -> Iterator[Repeated]:
    """As a profiled step has shown them; none of one that replays a CUDA graph, whose results no op is seen to make.
    backward: how many times as long as the forward it takes."""
    if any(name == REPLAY for name, *_ in lines.calls):
        return
    kinds = {
        AGAIN: lines.repeats,
        UNUSED: lines.unused,
        GATED: lines.gated,
        SPARSE: lines.sparse,
        SPARSE_MADE: lines.sparse_made,
        TAP_BY_TAP: lines.long_convolutions,
        DENORMALS: lines.denormals,
        HALF: lines.half,
        DOUBLE: lines.double,
        NOT_CARRIED: lines.recurrent,
        COLUMNS: lines.few_columns,
        ROWS: lines.few_rows,
        REPEATED: lines.repeated_columns,
    }
    for cause, rows in kinds.items():
        for file, line, _, count, part, call, at, function in rows:
            if max(file, call) < len(lines.files):
                place = place_in(lines.files, (call, at, function))
                if cause is HALF and lines.autocasts and lines.autocasts[0][0] < len(lines.files):
                    place = place_in(lines.files, lines.autocasts[0])
                if cause in OF_ZEROS and product_at(Place(file=lines.files[file], line=line)) is not None:
                    continue  # told by its statement, as one-hot or diagonal
                times = "less than 1" if cause in OF_FEW and not count else count
                # What is unused has no backward in the line's time, as the rest has.
                of_both = part / (1 + backward * (1 - part)) if cause is UNUSED else part
                yield Repeated((lines.files[file], line), times, of_both, place, cause)
    yield from _zeroed(lines)
    for file, line, _, times, part, frames in lines.same_rows:
        if frames and max(file, *(frame[0] for frame in frames)) < len(lines.files):
            where = repeating([place_in(lines.files, frame) for frame in frames])
            yield Repeated((lines.files[file], line), times, part, where, SAME_ROWS)
    for file, line, function, now, other, part in lines.orders:
        if file < len(lines.files):
            millions = f"{now / 1e6:,.1f} million multiplications a step forward, in the other order {other / 1e6:,.1f}"
            at_line = place_in(lines.files, (file, line, function))
            yield Repeated((lines.files[file], line), millions, part, at_line, ORDER)


def _zeroed(lines: Lines) -> Iterator[Repeated]:
    """Of each product with zero, with the line at which most is computed for it."""
    products: defaultdict[Place, list[tuple[Place, int, float]]] = defaultdict(list)
    for file, line, function, times, part, call, at, inside in lines.zeroed:
        if max(file, call) < len(lines.files):
            product, made = place_in(lines.files, (call, at, inside)), place_in(lines.files, (file, line, function))
            products[product].append((made, times, part))
    for product, those in products.items():
        most = those[0][0]
        said = f"{sum(times for _, times, _ in those)} operations, most of their work at line {most.line} in "
        said += f"{most.function}"
        for made, _, part in those:
            yield Repeated((made.file, made.line), said, part, product, ZEROED)


def not_needed(costs: Mapping[Line, float], of: Sequence[Repeated], step_ms: float, left: float) -> Iterator[Finding]:
    """By cause and function. costs: share of the step that each line takes, its backward with it. left: share of the
    step that the model could have."""
    functions: defaultdict[tuple[Cause, str, str | None], defaultdict[tuple[int | str, Place], float]] = defaultdict(
        lambda: defaultdict(float)
    )
    for one in of:
        calls = functions[one.cause, one.call.file, one.call.function]
        calls[one.times, one.call] += costs.get(one.line, 0.0) * one.part
    for (cause, *_), calls in functions.items():
        times, where = max(calls, key=lambda at: calls[at])
        if (took := min(1.0, sum(calls.values()))) >= LEAST_OF.get(cause, LEAST) * left:
            said = SAID[cause].format(times, ms(took * step_ms))
            said += ", estimated from the line's part of the step"
            yield cause.finding(took, where, said, took * step_ms)
