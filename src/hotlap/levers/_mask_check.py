"""Not a lever: what stands in place of the look that torch's encoder and decoder take at their mask.

`nn.TransformerEncoder` and `nn.TransformerDecoder` compare it with the causal one in each forward
(`torch.nn.modules.transformer._detect_is_causal_mask`). Where it is equal, their layers leave it away and ask for
causal attention; else they apply it. So "no" is right for every mask, and "yes" has to be true.

A mask that was looked at is known until something writes to it, which its version, address and shape tell; writes that
autograd does not count (`mask.data.fill_()`) are not seen. Where masks are new all the time, they are no longer looked
at, which is decided between outermost forwards, so that what a checkpoint computes again is what the forward was. Code
that is compiled or recorded outlives the values of a mask: to it the answer is no.
"""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

NAME: Final = "_detect_is_causal_mask"
PARTS: Final = ("TransformerEncoder", "TransformerDecoder")
HOST: Final = "cpu"
"""The device for whose values nothing waits."""
FREE: Final = 4
"""Looks that are made in any case."""
EVERY: Final = 8
"""Answers without a look after which one more may be made."""

Check = Callable[[Any, bool | None, int | None], bool]


class _Thread(threading.local):
    as_given = False


_thread = _Thread()


@contextlib.contextmanager
def as_given() -> Iterator[None]:
    """Masks are applied, whatever they are: what runs inside is kept for other values of them."""
    before, _thread.as_given = _thread.as_given, True
    try:
        yield
    finally:
        _thread.as_given = before


class Known(NamedTuple):
    """A mask that was looked at. mask: tells it from a later one at its place in memory."""

    mask: "weakref.ref[Any]"
    state: tuple[Any, ...]
    answer: bool


class Masks:
    """The answers in one process. slow: called at the first looks."""

    def __init__(self, original: Check, slow: Callable[[], None]) -> None:
        self.looks = self.answers = 0
        self.form: tuple[Any, Any] | None = None
        """Device and dtype of the model whose forward runs, if one does."""
        self._original, self._slow = original, slow
        self._looking = True
        self._known: dict[int, Known] = {}

    def begin(self, form: tuple[Any, Any]) -> None:
        """An outermost forward begins."""
        self.form = form
        self._looking = self.looks < FREE + self.answers // EVERY

    def answer(self, mask: Any, length: int) -> bool:
        """Whether a mask of length by length may be left away, in a call of Python's."""
        import torch

        from ._effects import checkpointing

        if _thread.as_given or checkpointing():
            return False
        if type(mask) not in (torch.Tensor, torch.nn.Parameter) or mask.is_inference() or _traced(mask):
            return self._original(mask, None, length)
        state = mask._version, mask.data_ptr(), mask.shape, mask.stride()
        known = self._known.get(id(mask))
        if known is not None and known.mask() is mask and known.state == state:
            self.answers += 1
            return known.answer
        return self._looking and self._look(mask, length, state)

    def _look(self, mask: Any, length: int, state: tuple[Any, ...]) -> bool:
        if self.looks < FREE:
            self._slow()
        self.looks += 1
        found = self._original(mask, None, length)
        self._known = {key: one for key, one in self._known.items() if one.mask() is not None}
        self._known[id(mask)] = Known(weakref.ref(mask), state, found)
        return found


def _traced(mask: Any) -> bool:
    """Whether it stands for others, as in `torch.vmap` and `torch.jit.trace`."""
    import torch

    inner = torch._C
    return inner._get_tracing_state() is not None or inner._functorch.is_functorch_wrapped_tensor(mask)


def replaced(masks: Masks, original: Check) -> Check:
    """The function that stands in place of torch's, which the compiler can trace."""
    import torch

    def check(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        if is_causal is not None or mask is None:
            return is_causal is True
        form = masks.form
        # A mask that is left away may be of any device and dtype, and gets no gradient; one that is applied may not.
        if form is None or mask.device != form[0] or mask.device.type == HOST or mask.requires_grad:
            return original(mask, is_causal, size)
        if mask.dtype != form[1] and mask.dtype != torch.bool:
            return original(mask, is_causal, size)
        length = mask.size(-2) if size is None else size
        if mask.dim() != 2 or mask.size(0) != length or mask.size(1) != length:
            return False
        return False if torch.compiler.is_compiling() else masks.answer(mask, length)

    check.__prepare_scriptable__ = lambda: original  # type: ignore[attr-defined]  # for torch.jit.script
    return check


def parts_of(module: Any) -> list[Any]:
    """Encoders and decoders of torch's in a model, which look at a mask."""
    import torch

    kinds = tuple(getattr(torch.nn, name) for name in PARTS)
    return [part for part in module.modules() if isinstance(part, kinds)]


def unfit(parts: list[Any]) -> str:
    """Why their masks can't be applied without a look, "" if they can."""
    import torch

    layers = [layer for part in parts for layer in part.layers]
    plain = (torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer)
    if any(type(layer) not in plain or type(layer.self_attn) is not torch.nn.MultiheadAttention for layer in layers):
        return "its layers are of a class of their own, which may not apply a mask"
    forms = {(p.device, p.dtype) for part in parts for p in part.parameters()}
    if len(forms) != 1:
        return "the parameters of its encoders and decoders are of several devices or dtypes"
    return "the model is not on a CUDA device" if next(iter(forms))[0].type == HOST else ""
