"""Not a lever that is tuned: random numbers are drawn as the bare command draws them, for a run that judges parity.

Some levers draw other dropout masks from the same seed, which is no fault and looks like one. Masks are drawn in the
order in which a tensor lies in memory, so channels_last gives others; on CUDA how many elements a thread takes, and
which attention kernel runs, depend on the dtype, so autocast gives others; and compiled code has a generator of its
own. Levers that do so take the setting `same_random`. By its module's name this also stands for them where a source
has their changes written in (`patch`): no recipe can hold it.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ._base import MARK, Lever, Settings
from ._internals import internals

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams

NAME: Final = __name__.rpartition(".")[2]
SETTING: Final = "same_random"
LAYOUT: Final = ("channels-last",)
DTYPE: Final = ("bf16-autocast",)
"""Levers after whose change a tensor lies otherwise, or is of another dtype; all others have code compiled."""
DRAWING: Final = ("dropout", "alpha_dropout", "rand_like", "randn_like")
"""Functions of torch and of torch.nn.functional that draw a number for each element of their first argument, in the
order and dtype that it has. `dropout2d` and its like, `bernoulli` and `rrelu` draw for a contiguous tensor of their
own. Not covered: methods in place (`empty_like(x).bernoulli_()`), and `rand_like` in code that is compiled as well."""


class SameRandom(Lever):
    """Draw as without the levers that the setting `levers` names."""

    name = NAME
    meaning = "random numbers are drawn as without some levers"

    def install(self, seams: "Seams", settings: Settings) -> None:
        for name in settings.get("levers", ()):
            draw_as_without(name)


class DrawsOtherwise(Lever):
    """A lever with which other random numbers are drawn, but for its setting `same_random`."""

    settings = {SETTING: MARK}

    def install(self, seams: "Seams", settings: Settings) -> None:
        if settings.get(SETTING):
            draw_as_without(self.name)

    def for_parity(self, settings: Settings) -> Settings | None:
        return {**settings, SETTING: True}


def draw_as_without(lever: str) -> None:
    """From now on, in this process, draw the random numbers that are drawn without a lever that is named."""
    if lever in LAYOUT:
        _replace(_contiguous)
    elif lever in DTYPE:
        _replace(_single)
        _replace_attention()
    else:
        internals().inductor_config().fallback_random = True  # Inductor leaves random numbers to eager kernels


Plain = Callable[[Any], Any]
"""A copy of a tensor as it would be without the lever; None where it is so already."""


def _contiguous(tensor: Any) -> Any:
    import torch

    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return tensor.contiguous() if last and not tensor.is_contiguous() else None


def _single(tensor: Any) -> Any:
    import torch

    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else None


def _replace(plain: Plain) -> None:
    """Let the functions that draw for each element draw for what `plain` makes of their argument."""
    import torch

    for module in (torch, torch.nn.functional):
        for name in DRAWING:
            if hasattr(module, name):
                setattr(module, name, drawing(getattr(module, name), plain))


def drawing(function: Callable[..., Any], plain: Plain) -> Callable[..., Any]:
    """A function that draws for what `plain` makes of its first argument; its result lies in memory as that argument,
    in its dtype unless another one was asked for. What works in place still does."""

    @functools.wraps(function)
    def draws(input: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        copy = plain(input) if isinstance(input, torch.Tensor) else None
        if copy is None:
            return function(input, *args, **kwargs)
        drawn = function(copy, *args, **kwargs)
        if drawn is copy:
            return input.copy_(drawn)
        if kwargs.get("dtype") is None:
            drawn = drawn.to(input.dtype)
        last = input.dim() == 4 and input.is_contiguous(memory_format=torch.channels_last)
        return drawn.contiguous(memory_format=torch.channels_last) if last else drawn

    return draws


def _replace_attention() -> None:
    """Attention with dropout by the kernel of float32, whose mask is another one than that of a half precision."""
    import torch

    function = torch.nn.functional.scaled_dot_product_attention

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *args: Any, **kwargs: Any
    ) -> Any:
        device = query.device.type
        half = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
        if not dropout_p or half not in (torch.bfloat16, torch.float16):
            return function(query, key, value, attn_mask, dropout_p, *args, **kwargs)
        mask = attn_mask if attn_mask is None or attn_mask.dtype == torch.bool else attn_mask.float()
        single = (query.float(), key.float(), value.float(), mask)
        with torch.autocast(device, enabled=False):
            return function(*single, dropout_p, *args, **kwargs).to(half)

    torch.nn.functional.scaled_dot_product_attention = attention


LEVER = SameRandom()
