"""Not a lever: linear layers whose products run on padded copies of their weight, and give the columns that are real.

The padding is torch's own `pad`, before its own `linear`, so gradients of any order, checkpoints and transforms are
those of torch. Only the cut has a form of its own where nothing compiles it: that of a slice fills the whole gradient
with zeros before it copies, and would make writing into the logits copy them.
"""

import weakref
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn import functional

from hotlap.agent.facts import tf32_matmul
from hotlap.agent.heads import heads
from hotlap.agent.seams import Forward, Refused

from . import _transforms
from ._autocast import product_dtype
from ._large_head import LEAST_CLASSES
from .pad_vocabulary import ALIGNED

MULTIPLE: Final = 64
"""What the products are padded to: whole tiles of any kernel, and rows that begin on a cache line of 128 bytes."""
LEAST_ROWS: Final = 1024
"""With fewer, the padded copy of the weight costs as much as the products win."""
DEVICES: Final = ("cuda",)
HALF: Final = (torch.bfloat16, torch.float16)
PATIENCE: Final = 8
"""Outermost forwards in which some head must have been padded."""


class PaddedHeads:
    """The heads in one process. refuse: told why none of them is padded after all."""

    def __init__(self, refuse: Callable[[str], None]) -> None:
        self.refuse = refuse
        self.taken: list[PaddedForward] = []
        self.forwards = 0

    def take(self, root: Any) -> None:
        """Take hold of a model's heads. Raises Refused where there is none with an odd number of classes."""
        odd = [module for module in heads(root, LEAST_CLASSES) if module.out_features % ALIGNED and free(module)]
        if not odd:
            raise Refused(f"no linear layer outside of repeated blocks has {LEAST_CLASSES} outputs or more, and odd")
        self.taken += [PaddedForward(module, tf32_matmul()) for module in odd]

    def watch(self, _: Any, forward: Forward) -> Forward:
        """Around an outermost forward: say once where nothing is padded."""

        def with_padded_heads(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            self.forwards += 1
            if self.forwards == PATIENCE and not any(head.used for head in self.taken):
                self.give_up()
            return output

        return with_padded_heads

    def give_up(self) -> None:
        """The layers are as they were."""
        for head in self.taken:
            head.leave()
        self.refuse(f"no head multiplies {LEAST_ROWS} rows or more on tensor cores, with gradients")


class PaddedForward:
    """What stands in a head's `forward`. In a pickle or a copy it is the layer's own. used: something was padded."""

    def __init__(self, module: Any, tf32: bool) -> None:
        self.module: Callable[[], Any] = weakref.ref(module)
        self.tf32 = tf32
        self.used = False
        module.__dict__["forward"] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.module(), "forward")  # while it is made, a copy has only what its class has

    def __call__(self, input: Any) -> Any:
        module = self.module()
        dtype = product_dtype(input)
        if not self._may(module.weight, input, dtype):
            return type(module).forward(module, input)
        self.used = True
        return padded_linear(input, module.weight, module.bias, dtype)

    def _may(self, weight: Any, hidden: Any, dtype: torch.dtype) -> bool:
        """Whether the layer is called as usual, with enough rows, and runs on tensor cores."""
        if not torch.is_grad_enabled() or type(weight) is not torch.nn.Parameter or type(hidden) is not torch.Tensor:
            return False
        if hidden.device.type not in DEVICES or weight.device != hidden.device or hidden.dim() < 2:
            return False
        if dtype not in HALF and not (dtype == torch.float32 and self.tf32):
            return False
        own = weight.dtype == hidden.dtype or torch.is_autocast_enabled(hidden.device.type)
        return bool(own and hidden.shape[:-1].numel() >= LEAST_ROWS)

    def leave(self) -> None:
        """The layer is as it was."""
        module = self.module()
        if module is not None and module.__dict__.get("forward") is self:
            del module.__dict__["forward"]


def padded_linear(hidden: Any, weight: Any, bias: Any, dtype: torch.dtype) -> torch.Tensor:
    """`linear` of hidden (..., features) with weight (classes, features), computed in a dtype on padded classes."""
    classes = len(weight)
    wide, shift = with_zeros(weight, bias, dtype, -classes % MULTIPLE)
    logits = functional.linear(hidden.to(dtype), wide, shift)
    if torch.compiler.is_compiling() or not _plain_autograd():
        return logits[..., :classes]
    return _Cut.apply(logits, classes)


def with_zeros(weight: Any, bias: Any, dtype: torch.dtype, extra: int) -> tuple[Any, Any]:
    """Weight and bias in a dtype, with so many zeros behind them."""
    wide, shift = weight.to(dtype), None if bias is None else bias.to(dtype)
    if not extra:
        return wide, shift
    return functional.pad(wide, (0, 0, 0, extra)), None if shift is None else functional.pad(shift, (0, extra))


class _Cut(torch.autograd.Function):  # type: ignore[misc]
    """The first columns of logits (..., wide), which nothing else uses, as a tensor of its own in the same memory."""

    @staticmethod
    def forward(ctx: Any, logits: Any, classes: int) -> Any:
        ctx.extra = logits.shape[-1] - classes
        shape = (*logits.shape[:-1], classes)
        # No view for autograd, which refuses writes into views that a Function returns.
        return logits.new_empty(0).set_(logits.untyped_storage(), logits.storage_offset(), shape, logits.stride())

    @staticmethod
    def backward(ctx: Any, above: Any) -> tuple[Any, None]:
        if torch.is_grad_enabled():  # create_graph: the gradient is to be differentiated again
            return functional.pad(above, (0, ctx.extra)), None
        classes = above.shape[-1]
        wide = above.new_empty((*above.shape[:-1], classes + ctx.extra))
        wide[..., :classes].copy_(above)
        wide[..., classes:].zero_()
        return wide, None


def _plain_autograd() -> bool:
    """Whether no transform, forward-mode differentiation or trace looks on, for which the cut has no rule."""
    alone = not _transforms.inside() and torch._C._get_tracing_state() is None
    return alone and torch.autograd.forward_ad._current_level < 0


def free(module: Any) -> bool:
    """Whether neither the script nor another lever has put anything in its place."""
    return module._compiled_call_impl is None and "forward" not in module.__dict__
