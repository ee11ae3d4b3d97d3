"""Not a lever: cross-entropy of a linear layer's output, which is made for some rows at a time and never as a whole.

Each part's logits, loss and gradient are computed one after another, by torch's own `linear` and `cross_entropy`, so
every option of the loss means what it means there. Gradients are taken in the forward, where the part's logits are at
hand, of the plain sum, and multiplied by what comes from above in the backward.
(`F.linear_cross_entropy` of torch 2.13 does the same. It is not used: with bfloat16 inputs its loss is bfloat16 and
added up in it, under autocast it raises on weights in float32, and label smoothing makes it compute the whole.)
An odd number of classes is padded for the products, as the lever `pad-vocabulary` does; nobody sees these logits.
"""

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn import functional

from ._padded_head import extra_classes, with_zeros

CHUNK_ELEMENTS: Final = 1 << 26
LEAST_CHUNKS: Final = 8
LEAST_ROWS: Final = 64
Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


@dataclass(frozen=True)
class Loss:
    """What `F.cross_entropy` was asked for. half: dtype of the product; result: dtype of the loss."""

    weight: torch.Tensor | None
    ignore_index: int
    reduction: str
    label_smoothing: float
    half: torch.dtype
    result: torch.dtype


def chunk_rows(rows: int, classes: int) -> int:
    """Rows of logits to hold at a time: a power of two of them, in an eighth of all or in CHUNK_ELEMENTS numbers."""
    most = max(1, CHUNK_ELEMENTS // classes)
    share = max(LEAST_ROWS, -(-rows // LEAST_CHUNKS))
    return min(1 << (most.bit_length() - 1), 1 << (share - 1).bit_length())


def chunked_cross_entropy(hidden: Any, weight: Any, bias: Any, target: Any, loss: Loss) -> torch.Tensor:
    """The loss of hidden (rows, features) through a head (classes, features) at target (rows,), mean or sum."""
    grad = torch.is_grad_enabled()
    needs = tuple(grad and tensor is not None and tensor.requires_grad for tensor in (hidden, weight, bias))
    return _Chunked.apply(hidden, weight, bias, target, loss, needs)


class _Chunked(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, hidden: Any, weight: Any, bias: Any, target: Any, loss: Loss, needs: tuple[bool, bool, bool]
    ) -> torch.Tensor:
        total, gradients = _in_chunks(hidden, weight, bias, target, loss, needs)
        divisor = _divisor(target, loss, total.dtype)
        ctx.save_for_backward(hidden, weight, bias, target, divisor)
        ctx.loss, ctx.needs, ctx.gradients = loss, needs, gradients
        return (total / divisor).to(loss.result)

    @staticmethod
    def backward(ctx: Any, above: torch.Tensor) -> tuple[Any, ...]:
        hidden, weight, bias, target, divisor = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: the gradient is to be differentiated again
            return *_differentiable(hidden, weight, bias, target, ctx.loss, ctx.needs, above), None, None, None
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:  # a second backward: the first one's became the parameters' own
            gradients = _in_chunks(hidden, weight, bias, target, ctx.loss, ctx.needs)[1]
        # Where every target is ignored the mean is NaN, but torch's gradients are 0.
        factor = torch.where(divisor == 0, 0.0, above.to(divisor.dtype) / divisor)
        kinds = (hidden, weight, bias)
        scaled = [g if g is None else g.mul_(factor).to(kind.dtype) for g, kind in zip(gradients, kinds, strict=True)]
        return *scaled, None, None, None


def _divisor(target: torch.Tensor, loss: Loss, dtype: torch.dtype) -> torch.Tensor:
    """What `mean` divides the sum by: the rows that are not ignored, or the weights of their classes."""
    if loss.reduction == "sum":
        return torch.ones((), dtype=dtype, device=target.device)
    kept = target != loss.ignore_index
    if loss.weight is None:
        return kept.sum().to(dtype)
    return (loss.weight.to(dtype)[torch.where(kept, target, 0)] * kept).sum()


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype to add up in: float32 for halves."""
    return torch.promote_types(dtype, torch.float32)


def _in_chunks(
    hidden: Any, weight: Any, bias: Any, target: Any, loss: Loss, needs: tuple[bool, bool, bool]
) -> tuple[torch.Tensor, Gradients]:
    """The summed loss, and its gradients as far as they are needed, those of half precision in float32."""
    half, wide = loss.half, _wide(hidden.dtype)
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        extra = extra_classes(weight, half)
        head, shift = with_zeros(weight, bias, half, extra)
        sums: list[Any] = [
            torch.empty_like(hidden, dtype=wide) if needs[0] else None,
            torch.zeros_like(weight, dtype=_wide(weight.dtype)) if needs[1] else None,
            torch.zeros_like(bias, dtype=_wide(bias.dtype)) if needs[2] else None,
        ]
        total = torch.zeros((), dtype=wide, device=hidden.device)
        rows = chunk_rows(len(hidden), len(head))
        for at in range(0, len(hidden), rows):
            into = [None if sums[0] is None else sums[0][at : at + rows], *sums[1:]]
            total += _add_chunk(
                hidden[at : at + rows].to(half), head, shift, len(weight), target[at : at + rows], loss, into
            )
    return total, (sums[0], sums[1], sums[2])


def _add_chunk(part: Any, head: Any, shift: Any, classes: int, target: Any, loss: Loss, into: list[Any]) -> Any:
    """The summed loss of some rows. head, shift: weight and bias, with zeros behind the classes; into: gradients by
    these rows, weight and bias, as far as they are needed."""
    needed = any(sums is not None for sums in into)
    one, gradient = _one_chunk(functional.linear(part, head, shift), classes, target, loss, needed)
    if into[0] is not None:
        into[0].copy_(gradient @ head)
    if into[1] is not None:
        _add_product(into[1], gradient, part)
    if into[2] is not None:
        into[2] += gradient.sum(0, dtype=into[2].dtype)[:classes]
    return one


def _one_chunk(logits: Any, classes: int, target: Any, loss: Loss, needed: bool) -> tuple[Any, Any]:
    """The summed loss of some rows, and its gradient by their logits, of which the first are the classes'."""
    logits.requires_grad_(needed)
    with torch.set_grad_enabled(needed):
        one = functional.cross_entropy(
            logits[:, :classes].to(_wide(logits.dtype)),
            target,
            None if loss.weight is None else loss.weight.to(_wide(logits.dtype)),
            ignore_index=loss.ignore_index,
            reduction="sum",
            label_smoothing=loss.label_smoothing,
        )
    return one.detach(), torch.autograd.grad(one, logits)[0] if needed else None


def _add_product(total: torch.Tensor, gradient: torch.Tensor, part: torch.Tensor) -> None:
    if total.dtype == part.dtype:
        total.addmm_(gradient[:, : len(total)].t(), part)
    else:
        total += (gradient.t() @ part)[: len(total)]


def _differentiable(
    hidden: Any, weight: Any, bias: Any, target: Any, loss: Loss, needs: tuple[bool, bool, bool], above: Any
) -> list[Any]:
    """The gradients with a graph of their own: of the whole, as it is computed without the lever."""
    half = loss.half
    with torch.autocast(hidden.device.type, enabled=False):
        logits = functional.linear(hidden.to(half), weight.to(half), None if bias is None else bias.to(half))
        whole = functional.cross_entropy(
            logits.to(_wide(half)), target, loss.weight, ignore_index=loss.ignore_index, reduction=loss.reduction,
            label_smoothing=loss.label_smoothing,
        )  # fmt: skip
        wanted = [tensor for tensor, need in zip((hidden, weight, bias), needs, strict=True) if need]
        found = iter(torch.autograd.grad(whole, wanted, above.to(whole.dtype), create_graph=True))
    return [next(found) if need else None for need in needs]
