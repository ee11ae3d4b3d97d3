"""Loops that put the whole sequence through the model for each new token: only the new token is computed, and keys and
values of those before it are kept.

`model(tokens)` and then `model(torch.cat([tokens, new], dim=1))` is how text is generated where nobody wrote a cache of
keys and values. What the forward does for the last token is worked out from two of its calls (`_prefix_cache`), and
computed both ways before it counts; longer sequences are tried by calls of their own. Taken are causal models of one
argument, the tokens (batch, length), and other arguments that are no tensors; a call whose tokens are not those of the
call before and one more is computed as a whole. On a GPU the token's work is one CUDA graph, and so is the whole where
sequences begin with that length again; the token that is likeliest is begun before the script asks for it, and not
used where it takes another. With `compile` the token's work is compiled when a second sequence begins.

Models that look at later tokens, that mix tokens in ways for which there is no rule (recurrent layers, convolutions,
experts, padding masks as an argument), that draw random numbers or that keep something themselves leave it alone.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from . import _compile_cache
from ._base import Applies, Context, Lever, Settings, not_inference, not_taken_over, unknown
from .compile import compiler_there, no_compiler

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward, Seams
    from hotlap.records.run import Environment

    from ._forward_graph import Capture
    from ._prefix_work import Fetch

ORDER: Final = 60
"""Outside of autocast (10) and inference mode (40), whose ops it takes over."""
SHARE: Final = 0.9
"""Of the forward: a token's own work remains."""
LEAST_SHAPES: Final = 3
"""Of inputs, as of a sequence that grows."""


class KvCache(Lever):
    name = "kv-cache"
    meaning = "of a sequence that grows by a token each call only that token is computed; keys and values are kept"
    risk = "numeric"
    tolerance = 0.01
    excludes = (
        "attention", "causal-mask-check", "chunked-cumsum", "compile", "compile-blocks", "constant-tensors",
        "flex-attention", "graph-forward", "grouped-experts", "logits-to-keep", "pad-vocabulary", "quantize-linear",
        "sdpa-backend",
    )  # fmt: skip
    stage = "compiler"
    compiles = True

    def applies(self, context: Context) -> Applies:
        if why := not_inference(context):
            return Applies(False, why)
        roots = context.facts.roots
        if not any(root.softmax or root.sdpa for root in roots):
            return Applies(False, "no attention was found in the code of the model")
        if not any(root.shapes >= LEAST_SHAPES for root in roots):
            return Applies(False, "its inputs do not grow from call to call")
        if why := not_taken_over(context):
            return Applies(False, why)
        return Applies(True, f"attention over inputs of {max(root.shapes for root in roots)} shapes or more")

    def share(self, context: Context) -> float:
        return SHARE * context.share_of("forward")

    def variants(self, context: Context) -> list[Settings]:
        compiled = [{"compile": True}] if context.cuda or compiler_there() else []
        return [*compiled, {"compile": False}]

    def check(self, settings: Mapping[str, Any]) -> str | None:
        value = settings.get("compile")
        wrong = None if isinstance(value, bool) else f"compile must be true or false, not {value!r}"
        return unknown(settings, ("compile",)) or wrong

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        return no_compiler(environment) if settings["compile"] else None

    def environment(self, settings: Settings) -> dict[str, str]:
        return _compile_cache.variables() if settings["compile"] else {}

    def install(self, seams: "Seams", settings: Settings) -> None:
        def wrap(module: Any, forward: "Forward") -> "Forward":
            return cached(module, forward, seams, self.name, settings["compile"])

        seams.wrap_forward(wrap, ORDER)

    def source(self, settings: Settings) -> str:
        return (
            "# in the attention, with the keys and values of the tokens before it:\n"
            "keys[:, :, place], values[:, :, place] = k, v\n"
            "y = F.scaled_dot_product_attention(q, keys[:, :, : place + 1], values[:, :, : place + 1])\n"
            "# in the loop, after the prompt:\n"
            "logits = model(tokens[:, -1:], place)"
        ) + ("  # compiled: model = torch.compile(model)" if settings.get("compile") else "")


def cached(module: Any, forward: "Forward", seams: "Seams", name: str, compile: bool = False) -> "Forward":
    """A forward of a module on one device that is computed from caches where it can be. Raises Refused."""
    from hotlap.agent.seams import Refused

    from ._graph import scalars_on_host
    from ._prefix_cache import CachedForward
    from ._prefix_compiled import compiled
    from ._prefix_work import fetch

    devices = {p.device for p in module.parameters()}
    if len(devices) != 1:
        raise Refused("the model is not on one device")
    device = devices.pop()
    if compile:
        scalars_on_host(module)

    def gave_up(why: str, used: bool) -> None:
        (seams.refuse if used else seams.leave_out)(name, why)

    return CachedForward(
        module,
        forward,
        where=lambda: _where(device),
        unsteady=seams.unsteady,
        gave_up=gave_up,
        capture=_capture(device) if device.type == "cuda" else None,
        fetcher=lambda: _fetch(device) if device.type == "cuda" else fetch,
        aside=(lambda: _Aside(device)) if device.type == "cuda" else None,
        room=lambda size: _room(size, device),
        compiler=compiled if compile else None,
        uncompiled=lambda why: seams.refuse(name, why),
    )


def _where(device: Any) -> Any:
    """What a plan depends on beside the model and the tokens; None while the script captures a graph itself."""
    import torch

    from .graph_forward import where

    if device.type == "cuda":
        return where(device)
    kind = device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return torch.is_inference_mode_enabled(), autocast


def _capture(device: Any) -> "Capture":
    """Of recordings that share a pool of memory: what one of them makes is copied before the next is replayed."""
    from .graph_optimizer import capture, pools

    pool = pools(device)
    return lambda work: capture(work, device, *pool())


class _Aside:
    """See `Aside`, of a GPU. It is made and used on one stream."""

    def __init__(self, device: Any) -> None:
        import torch

        self._torch, self._device = torch, device
        self._current, self._stream = torch.cuda.current_stream(device), torch.cuda.Stream(device)
        self._done, self._sent = torch.cuda.Event(), torch.cuda.Event()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        from .graph_optimizer import capture

        return capture(work, self._device, aside=self._stream)  # so nothing else has its workspace of cuBLAS

    def begin(self, work: Callable[[], None], after: bool) -> None:
        if after:
            self._stream.wait_stream(self._current)
        cuda, device = self._torch.cuda, self._torch.cuda.current_device()
        try:
            cuda.set_stream(self._stream)  # and its device; `cuda.stream` would take longer than the launch
            work()
        finally:
            self._done.record(self._stream)
            cuda.set_stream(self._current)
            if device != self._device.index:
                cuda.set_device(device)

    def join(self) -> None:
        self._current.wait_event(self._done)

    def host(self, *shape: int, dtype: Any) -> Any:
        return self._torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)

    def sent(self) -> Callable[[], None]:
        self._sent.record(self._current)
        return self._sent.synchronize  # type: ignore[no-any-return]

    def wait(self) -> None:
        self._done.synchronize()


def _room(size: int, device: Any) -> bool:
    from .graph_optimizer import room

    return room(size, device)


def _fetch(device: Any) -> "Fetch":
    """From a GPU, which goes on with what is issued meanwhile."""
    import torch

    with torch.inference_mode(False):
        there = torch.empty((), dtype=torch.bool, device="cpu", pin_memory=True)
    done = torch.cuda.Event()

    def fetch(value: Any) -> Callable[[], bool]:
        there.copy_(value, non_blocking=True)
        done.record(torch.cuda.current_stream(device))

        def wait() -> bool:
            done.synchronize()
            return bool(there)

        return wait

    return fetch


LEVER = KvCache()
