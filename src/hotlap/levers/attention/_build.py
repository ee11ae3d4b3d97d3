"""Writes the nodes of one fused attention into a graph, in the shape and type of the product that it replaces."""

import math
from typing import Any, Final

import torch

from .._base import Unfit
from ._find import Operand, Site, Step, same, shape_of

SURELY_NEVER: Final = -1e8
"""A fill that absorbs a score it is added to: float32 numbers lie 8 apart there."""
HALF: Final = (torch.bfloat16, torch.float16)


def by_math(*args: Any, **kwargs: Any) -> Any:
    """scaled_dot_product_attention in separate products, softmax and dropout, as it is written by hand."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)


def without_cudnn(*args: Any, **kwargs: Any) -> Any:
    """scaled_dot_product_attention by any kernel but cuDNN's. For lengths that vary: cuDNN's plans anew for each
    shape that it has not seen, 45 ms on an H100 (torch 2.11), now and then 500, where the kernel runs for 0.03."""
    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        return torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)


def _kernel(site: Site, dtype: Any, same_random: bool) -> Any:
    if same_random and site.dropout:
        return by_math
    varies = any(type(size) is not int for size in site.shape)
    if varies and dtype in HALF and site.final.meta["example_value"].is_cuda:
        return without_cudnn
    return torch.nn.functional.scaled_dot_product_attention


class Build:
    """Writes the nodes of one site."""

    def __init__(self, graph: Any, site: Site, dtype: Any, same_random: bool) -> None:
        self.graph, self.site, self.dtype = graph, site, dtype
        self.batch = site.shape[:-2]
        self.kernel = _kernel(site, dtype, same_random)
        self.uniform: Any = None
        self.nodes: list[Any] = []

    def call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """A call of a function."""
        return self._note(self.graph.call_function(function, args, kwargs))

    def method(self, name: str, node: Any, *args: Any, **kwargs: Any) -> Any:
        """A call of a tensor's method."""
        return self._note(self.graph.call_method(name, (node, *args), kwargs))

    def _note(self, node: Any) -> Any:
        self.nodes.append(node)
        if "stack_trace" in self.site.final.meta:  # so that profiles show the user's line
            node.meta["stack_trace"] = self.site.final.meta["stack_trace"]
        return node

    def undo(self) -> None:
        """Take out what was written."""
        for node in reversed(self.nodes):
            self.graph.erase_node(node)

    # the whole

    def attention(self, q: Operand, k: Operand, v: Operand, causal: bool, mask: Any) -> Any:
        """The result in the shape and type of the product that it replaces. mask: what `mask` wrote."""
        own = shape_of(self.site.product)[:-2]
        weights = self.site.weights_shape[:-2]
        taken = [self._operand(q, own), self._operand(k, own), self._operand(v, weights)]
        scale = math.prod(step.value for step in self.site.steps if step.kind == "scale")
        result = self.call(
            self.kernel, *taken, attn_mask=mask, dropout_p=self.site.dropout, is_causal=causal, scale=scale,
        )  # fmt: skip
        if self.uniform is not None:
            mean = self.method("mean", taken[2], -2, keepdim=True)
            result = self.call(torch.where, self.uniform, result, mean)
        width = self.site.v.shape[-1]
        if not same(self._four(self.batch), weights):
            result = self.method("reshape", result, *_sizes((*weights, self.site.shape[-2], width)))
        if self.site.out_order is not None:
            result = self.method("permute", result, *self.site.out_order)
        return result

    def _operand(self, operand: Operand, own: tuple[Any, ...]) -> Any:
        """As a tensor of four dimensions, the batch dimensions broadcast to those of its product first."""
        node, shape = operand.node, operand.shape
        example = node.meta["example_value"]
        if operand.order is not None:
            node, example = self.method("permute", node, *operand.order), example.permute(*operand.order)
        if operand.swap:
            node, example = self.method("transpose", node, -2, -1), example.transpose(-2, -1)
        if example.dtype != self.dtype:
            node = self.method("to", node, self.dtype)
        elif str(example.stride()[-1]) != "1":
            node = self.method("contiguous", node)  # the fast kernels want rows in one piece
        tail = shape[-2:]
        if not same(shape[:-2], own):
            node = self.method("expand", node, *_expanded(shape, (*own, *tail)))
        if not same(own, self._four(self.batch)):
            node = self.method("reshape", node, *_sizes((*self._four(self.batch), *tail)))
        return node

    @staticmethod
    def _four(batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """Batch dimensions as the kernels take them: two."""
        if len(batch) <= 2:
            return (1,) * (2 - len(batch)) + batch
        if any(type(size) is not int for size in batch[:-1]):
            raise Unfit("more than two batch dimensions of sizes that are not known")
        return (math.prod(batch[:-1]), batch[-1])

    # masks

    def mask(self) -> Any:
        """The mask to pass."""
        every = self.site.steps
        biased = [any(before.kind == "add" for before in every[:at]) for at in range(len(every))]
        steps = [step for step, scaled in zip(every, biased, strict=True) if step.kind != "scale" or scaled]
        fills = [step for step in steps if step.kind == "fill"]
        if len(fills) == len(steps) and len({step.value for step in fills}) == 1:
            return self._boolean(fills)
        return self._sum(steps, fills)

    def _boolean(self, fills: list[Step]) -> Any:
        """True where may be attended. Rows with nothing are let attend to all and get the mean of v afterwards."""
        keep = None
        for step in fills:
            mine = step.node if step.unless else self.call(torch.logical_not, step.node)
            keep = mine if keep is None else self.call(torch.logical_and, keep, mine)
        keep = self._mask_shape(keep, max(len(shape_of(step.node)) for step in fills))
        if math.isinf(fills[0].value):
            return keep
        self.uniform = self.method("any", keep, -1, keepdim=True)
        return self.call(torch.logical_or, keep, self.call(torch.logical_not, self.uniform))

    def _sum(self, steps: list[Step], fills: list[Step]) -> Any:
        """What the steps make of scores of zero."""
        if any(not math.isinf(step.value) and step.value > SURELY_NEVER for step in fills):
            raise Unfit("a bias together with a fill that does not absorb it")
        bias, rank = None, 0
        for step in steps:
            if step.kind == "scale":
                bias = self.method("mul", bias, step.value)
            elif step.kind == "view":
                if bias is not None:
                    bias = self.method("expand", bias, *_static(step.before))
                    bias, rank = self.method("reshape", bias, *_static(step.after)), len(step.after)
            else:
                bias, rank = self._term(bias, step), max(rank, len(shape_of(step.node)))
        bias = self._mask_shape(bias, rank)
        if self.dtype in HALF:
            bias = self.method("clamp", bias, torch.finfo(self.dtype).min)
        return self.method("to", bias, self.dtype)

    def _term(self, bias: Any, step: Step) -> Any:
        if step.kind == "fill":
            if bias is None:
                dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
                bias = self.call(torch.zeros_like, step.node, dtype=dtype)
            mask = self.call(torch.logical_not, step.node) if step.unless else step.node
            return self.call(torch.where, mask, step.value, bias)
        term = step.node if step.value > 0 else self.call(torch.neg, step.node)
        return term if bias is None else self.call(torch.add, bias, term)

    def _mask_shape(self, mask: Any, rank: int) -> Any:
        """Broadcastable to (batch, heads, L, S), with at least two dimensions."""
        if rank < 2:
            return self.method("reshape", mask, 1, -1)
        if len(self.batch) > 2 and rank > 3:
            mask = self.method("expand", mask, *_static(self.site.shape))
            return self.method("reshape", mask, *_static((*self._four(self.batch), *self.site.shape[-2:])))
        return mask


def _static(shape: tuple[Any, ...]) -> tuple[int, ...]:
    if any(type(size) is not int for size in shape):
        raise Unfit("reshaped to sizes that are not known")
    return shape


def _sizes(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """A shape for reshape: one size may be unknown."""
    unknown = [size for size in shape if type(size) is not int]
    if len(unknown) > 1:
        raise Unfit("reshaped to sizes that are not known")
    return tuple(size if type(size) is int else -1 for size in shape)


def _expanded(shape: tuple[Any, ...], wanted: tuple[Any, ...]) -> tuple[int, ...]:
    """A shape for expand: -1 where it stays."""
    padded = (None,) * (len(wanted) - len(shape)) + shape
    kept = [
        -1 if have is not None and str(have) == str(want) else want for have, want in zip(padded, wanted, strict=True)
    ]
    return _static(tuple(kept))
