"""The ops and inputs of `slow_ops.py`, each with the candidates that could take its place."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

Call: TypeAlias = Callable[[], Any]
Row: TypeAlias = dict[str, Any]


@dataclass
class Case:
    """An op on an input. least: bytes that any way to compute it has to move. forms: the library's first. exact: the
    result in float64, for errors; None: none are asked for."""

    op: str
    of: str
    least: int
    forms: dict[str, Call]
    exact: Call | None = None


@dataclass
class Machine:
    """Where it runs. tiny: sizes that a CPU can try."""

    device: str
    tiny: bool
    errors: list[Row] = field(default_factory=list)

    def size(self, n: int) -> int:
        return max(4, n >> 10) if self.tiny else n

    def randn(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=dtype)

    def integers(self, high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, device=self.device)

    def elapsed(self, call: Call, times: int) -> float:
        """ms of a call, the mean of several."""
        if self.device == "cpu":
            start = time.perf_counter()
            for _ in range(times):
                call()
            return (time.perf_counter() - start) * 1e3 / times
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(times):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / times


def nbytes(*tensors: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def name(*tensors: Tensor) -> str:
    shapes = (f"({', '.join(map(str, t.shape))})" for t in tensors)
    return f"{' '.join(shapes)} {str(tensors[0].dtype).removeprefix('torch.')}"


# cumsum


def cumsums(m: Machine) -> Iterator[Case]:
    """Over few long columns, as the positions of tokens with their experts."""
    for long, few in ((1 << 12, 1024), (1 << 16, 8), (1 << 16, 1024), (1 << 20, 8)):
        x = m.randn(m.size(long), few)
        forms = {"library": partial(torch.cumsum, x, 0), "last dimension": partial(in_rows, x)}
        yield Case("cumsum", f"{name(x)} dim 0", 2 * nbytes(x), forms)


def in_rows(x: Tensor) -> Tensor:
    return x.t().contiguous().cumsum(1).t()


# gradients of gathers


def scatters(m: Machine) -> Iterator[Case]:
    n, width, words = m.size(1 << 16), 768, m.size(50257)
    for rows, distinct, dtype in (
        (words, words, torch.float32),
        (words, 16, torch.float32),
        (16, 16, torch.float32),
        (words, words, torch.bfloat16),
    ):
        ids, grad = m.integers(distinct, n), m.randn(n, width, dtype=dtype)
        yield gathered("embedding_dense_backward", grad, ids, rows, f", {distinct} ids")
    for rows in (1000, 8):
        grad, ids = m.randn(m.size(1 << 20), 64), m.integers(rows, m.size(1 << 20))
        yield gathered("index_put accumulate", grad, ids, rows)
        yield gathered("index_add", grad, ids, rows)
    for bins in (8, 1000, 1 << 20):
        x, ids = m.randn(m.size(1 << 24)), m.integers(bins, m.size(1 << 24))
        forms = {"library": partial(added, x, ids, bins), "bincount": partial(counted, x, ids, bins)}
        exact = partial(added, x.double(), ids, bins)
        yield Case("scatter_add", f"{name(x)} into {bins}", nbytes(x, ids) + 4 * bins, forms, exact)


def added(x: Tensor, ids: Tensor, bins: int) -> Tensor:
    sums = x.new_zeros(bins, *x.shape[1:])
    return sums.index_add_(0, ids, x) if x.ndim > 1 else sums.scatter_add_(0, ids, x)


def counted(x: Tensor, ids: Tensor, bins: int) -> Tensor:
    return torch.bincount(ids, x, bins).to(x.dtype)


def put(x: Tensor, ids: Tensor, rows: int) -> Tensor:
    return x.new_zeros(rows, x.shape[1]).index_put_((ids,), x, accumulate=True)


def multiplied(x: Tensor, ids: Tensor, rows: int) -> Tensor:
    return F.one_hot(ids, rows).to(x.dtype).t() @ x


def gathered(op: str, grad: Tensor, ids: Tensor, rows: int, note: str = "") -> Case:
    """The gradient of `weight[ids]`, by each way that torch has: the one that `op` names is the library's."""
    ways: dict[str, Call] = {
        "embedding_dense_backward": partial(torch.ops.aten.embedding_dense_backward, grad, ids, rows, -1, False),
        "index_put accumulate": partial(put, grad, ids, rows),
        "index_add": partial(added, grad, ids, rows),
    }
    if rows <= 64:
        ways["one-hot product"] = partial(multiplied, grad, ids, rows)
    least = nbytes(grad, ids) + rows * grad.shape[1] * grad.element_size()
    of = f"{name(grad)} into {rows} rows{note}"
    return Case(op, of, least, {"library": ways.pop(op), **ways}, partial(added, grad.double(), ids, rows))


# losses, norms and the rest


class _CrossEntropy(torch.autograd.Function):
    """Mean cross-entropy whose backward makes the gradient from the kept log-softmax in pieces that fit the L2."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        logs = F.log_softmax(logits, -1)
        ctx.save_for_backward(logs, labels)
        return F.nll_loss(logs, labels)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logs, labels = ctx.saved_tensors
        out, scale = torch.empty_like(logs), grad / len(labels)
        piece = max(1, (16 << 20) // (logs.shape[1] * logs.element_size()))
        parts = (t.split(piece) for t in (logs, labels, out))
        for log, label, part in zip(*parts, strict=True):
            torch.exp(log, out=part)
            part.mul_(scale)
            part.scatter_add_(1, label[:, None], -scale.expand(len(label), 1))
        return out, None


def losses(m: Machine) -> Iterator[Case]:
    for rows, exact in ((8192, False), (512, True)):
        logits, labels = m.randn(m.size(rows), 50257).requires_grad_(), m.integers(50257, m.size(rows))
        forms = {
            "library": partial(back_from, F.cross_entropy, logits, labels),
            "gradient in pieces": partial(back_from, _CrossEntropy.apply, logits, labels),
        }
        double = partial(back_from, F.cross_entropy, logits.detach().double().requires_grad_(), labels)
        yield Case("cross_entropy+backward", name(logits), 2 * nbytes(logits), forms, double if exact else None)


def back_from(call: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The gradient, with the output itself as the one given: it costs nothing."""
    out = call(x, *args, **kwargs)
    return torch.autograd.grad(out, x, out.detach() if out.ndim else None)[0]


def norms(m: Machine) -> Iterator[Case]:
    for width in (32, 64, 768):
        x = m.randn(m.size((1 << 26) // width), width).requires_grad_()
        weights = torch.ones(2, width, device=m.device, requires_grad=True).unbind()
        yield Case("layer_norm+backward", name(x), 5 * nbytes(x), {"library": partial(normed, x, *weights)})
    x = m.randn(m.size(1 << 17) // 8, 64, 8, 8).requires_grad_()
    yield Case("group_norm+backward", name(x), 5 * nbytes(x), {"library": partial(back_from, F.group_norm, x, 8)})


def normed(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    out = F.layer_norm(x, weight.shape, weight, bias)
    return torch.autograd.grad(out, (x, weight, bias), x.detach())


def scans_of_others(m: Machine) -> Iterator[Case]:
    x = m.randn(8, m.size(1 << 20)).abs_().add_(0.5)
    for op in (torch.cumprod, torch.logcumsumexp, torch.cummax):
        extra = 8 * x.numel() if op is torch.cummax else 0
        yield Case(op.__name__, name(x), 2 * nbytes(x) + extra, {"library": partial(op, x, 1)})
    by_column = x.t().contiguous()
    yield Case(
        "logcumsumexp",
        f"{name(by_column)} dim 0",
        2 * nbytes(x),
        {"library": partial(torch.logcumsumexp, by_column, 0)},
    )


def picks(m: Machine) -> Iterator[Case]:
    """Ops that sort, choose or compact."""
    flat, rows, logits = m.randn(m.size(1 << 24)), m.randn(m.size(1 << 12), 4096), m.randn(64, 50257)
    mask, least = flat > 0, nbytes(flat)
    for x in (flat, rows, logits):
        yield Case("sort", name(x), 2 * nbytes(x) + 8 * x.numel(), {"library": partial(torch.sort, x, -1)})
    for x, k in ((flat, 1000), (logits, 50), (rows, 64)):
        yield Case("topk", f"{name(x)} k {k}", nbytes(x), {"library": partial(torch.topk, x, k)})
    yield Case("median", name(flat), least, {"library": partial(torch.median, flat)})
    yield Case(
        "nonzero", f"{name(mask)} half set", nbytes(mask) + 4 * flat.numel(), {"library": partial(torch.nonzero, mask)}
    )
    of_mask = {"library": partial(torch.masked_select, flat, mask)}
    yield Case("masked_select", f"{name(flat)} half set", nbytes(mask) + least + least // 2, of_mask)
    yield Case(
        "randperm", f"{len(flat)}", 8 * len(flat), {"library": partial(torch.randperm, len(flat), device=m.device)}
    )
    soft = logits.softmax(-1)
    yield Case("multinomial", f"{name(soft)} 1 each", nbytes(soft), {"library": partial(torch.multinomial, soft, 1)})


def of_space(m: Machine) -> Iterator[Case]:
    """Backwards that add into neighbours, and distances."""
    x = m.randn(m.size(32 << 10) if m.tiny else 32, 64, 64, 64).requires_grad_()
    double = partial(F.interpolate, scale_factor=2, mode="bilinear")
    yield Case("interpolate bilinear+backward", name(x), 10 * nbytes(x), {"library": partial(back_from, double, x)})
    kernel = m.randn(64, 1, 3, 3)
    depthwise = partial(F.conv2d, weight=kernel, padding=1, groups=64)
    yield Case("depthwise conv2d+backward", name(x), 4 * nbytes(x), {"library": partial(back_from, depthwise, x)})
    pool = partial(F.max_pool2d, kernel_size=3, stride=2, padding=1)
    yield Case("max_pool2d+backward", name(x), 2 * nbytes(x) + nbytes(x) // 2, {"library": partial(back_from, pool, x)})
    a, b = (m.randn(m.size(1 << 12), 64) for _ in range(2))
    for p in (1.0, 2.0):
        least = 2 * nbytes(a, b) + 8 * len(a) * len(b)
        call = partial(back_from, torch.cdist, a.requires_grad_(), b, p)
        yield Case("cdist+backward", f"{name(a, b)} p {p}", least, {"library": call})


GROUPS: Final[dict[str, Callable[[Machine], Iterator[Case]]]] = {
    "index": scatters, "loss": losses, "norm": norms, "scan": scans_of_others, "pick": picks, "space": of_space,
    "cumsum": cumsums,
}  # fmt: skip
"""The longest last: it is what a limit cuts."""
