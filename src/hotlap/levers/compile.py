"""torch.compile around the outermost forward, in place: type, state_dict keys and copies stay as they are."""

import functools
import shutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from . import _compile_cache
from ._base import Applies, Context, Lever, Settings, unknown
from .allocator import EXPANDABLE

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward, Seams
    from hotlap.records.run import Environment

ORDER: Final = 20
MODES: Final = ("default", "dynamic", "reduce-overhead", "max-autotune-no-cudagraphs")
"""torch.compile's own, and one for inputs of many shapes."""
COMPILERS: Final = ("g++", "clang++", "c++")
LAUNCH_SHARE: Final = 0.9
COMPUTE_SHARE: Final = 0.6
LARGE: Final = 1 << 20


class Compile(Lever):
    name = "compile"
    meaning = "torch.compile of the outermost forward and of a large cross-entropy, and so of their backward"
    risk = "numeric"
    tolerance = 0.005

    def applies(self, context: Context) -> Applies:
        facts = context.facts
        if not facts.roots:
            return Applies(False, "no module's forward was seen")
        if all(root.compiled for root in facts.roots):
            return Applies(False, "the script compiles the model itself")
        if any(root.sparse for root in facts.roots):
            return Applies(False, "the model has sparse embeddings, whose gradients torch.compile does not make")
        if not context.cuda and not any(shutil.which(name) for name in COMPILERS):
            return Applies(False, "no C++ compiler was found, which torch.compile needs on the CPU")
        return Applies(True, f"{sum(root.modules for root in facts.roots)} modules run eagerly")

    def variants(self, context: Context) -> list[Settings]:
        if context.varied:
            return [{"mode": "dynamic"}, {"mode": "default"}]
        expandable = EXPANDABLE in context.active.get("allocator", {}).values()  # with CUDA graphs it has hung
        if context.cuda and context.diagnosis.bound == "launch" and not expandable:
            return [{"mode": "reduce-overhead"}, {"mode": "default"}]
        return [{"mode": "default"}]

    def share(self, context: Context) -> float:
        if context.diagnosis.bound == "launch":
            return LAUNCH_SHARE * context.share_of("forward", "backward")
        return COMPUTE_SHARE * context.share_of("forward", "backward")

    def check(self, settings: Mapping[str, Any]) -> str | None:
        wrong = unknown(settings, ("mode", "same_random"))
        if wrong is None and settings.get("mode") not in MODES:
            return f"mode must be one of {', '.join(MODES)}, not {settings.get('mode')!r}"
        return wrong

    def scenario(self, settings: Settings) -> str | None:
        return "no_launch_cost" if settings.get("mode") == "reduce-overhead" else None

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        if environment.gpus or any(shutil.which(name) for name in COMPILERS):
            return None
        return "no C++ compiler was found, which torch.compile needs on the CPU"

    def environment(self, settings: Settings) -> dict[str, str]:
        return _compile_cache.variables()

    def for_parity(self, settings: Settings) -> Settings | None:
        return {**settings, "same_random": True}

    def install(self, seams: "Seams", settings: Settings) -> None:
        if settings.get("same_random"):
            import torch._inductor.config

            torch._inductor.config.fallback_random = True
        mode = settings["mode"]
        if mode == "dynamic":  # what torch.compile(dynamic=True) does
            import torch._dynamo.config

            torch._dynamo.config.assume_static_by_default, mode = False, "default"
        compile_losses(_large)
        seams.wrap_forward(lambda module, forward: _compiled(module, forward, mode), ORDER)

    def source(self, settings: Settings) -> str:
        mode = settings["mode"]
        how = {"default": "", "dynamic": "dynamic=True"}.get(mode, f'mode="{mode}"')
        model = f"model.compile({how})"
        return f"{model}\ncross_entropy = torch.compile(F.cross_entropy)  # where it takes many logits"


def _compiled(module: Any, forward: "Forward", mode: str) -> "Forward":
    from ._graph import Compiled
    from ._traceable import traceable

    compiled = Compiled(traceable(module, forward), mode)
    if mode != "reduce-overhead":
        return compiled

    def with_own_outputs(*args: Any, **kwargs: Any) -> Any:
        import torch

        # The graph's outputs are overwritten by its next replay; scripts keep them (running losses, metrics).
        torch.compiler.cudagraph_mark_step_begin()
        return _clone(compiled(*args, **kwargs))

    with_own_outputs.compiled = compiled  # type: ignore[attr-defined]
    return with_own_outputs


def _large(logits: Any) -> bool:
    """A cross-entropy over many logits on the device is several passes over them in eager mode, one or two compiled."""
    return bool(logits.is_cuda and logits.numel() >= LARGE)


def compile_losses(worth: Callable[[Any], bool]) -> None:
    """Compile `F.cross_entropy` where its logits are worth it."""
    import torch

    functional = torch.nn.functional
    original = functional.cross_entropy
    compiled = torch.compile(original)

    @functools.wraps(original)
    def cross_entropy(input: Any, *args: Any, **kwargs: Any) -> Any:
        # The compiler's own passes call this again, by its name in torch, with tensors of types of their own.
        if torch.compiler.is_compiling() or type(input) is not torch.Tensor or not worth(input):
            return original(input, *args, **kwargs)
        return compiled(input, *args, **kwargs)

    functional.cross_entropy = cross_entropy


def _clone(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[_clone(item) for item in value])
    if isinstance(value, (list, tuple)):
        return type(value)([_clone(item) for item in value])
    if isinstance(value, dict):
        for key, item in list(value.items()):
            value[key] = _clone(item)
    return value


LEVER = Compile()
