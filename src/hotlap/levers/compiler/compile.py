"""torch.compile around the outermost forward, in place: type, state_dict keys and copies stay as they are.

In a command that trains, a forward without gradients is compiled where the sizes of its inputs lie between those of
forwards with gradients, which costs one more compilation, of a forward alone; or from the 1000th call alike on. Others
run as they were written: text that is sampled now and then grows by a token a call. Commands that only infer are
compiled from the first call on.

A backward computes in the dtypes of its forward, whatever autocast the script has around the call. Where the script's
files name `retain_graph`, what a forward saves is not written over by its backward. A backward that was compiled can't
be differentiated again: where they ask for gradients of parameters with `create_graph`, nothing is compiled; where for
those of inputs, forwards of inputs that need a gradient run as they were written.

CUDA graphs are left to graph-training, which records what this makes, with less to look at in a call: on H200s models
with 11, 76 and 198 parameters were 1.2, 1.4 and 1.6 times as fast as with `reduce-overhead`.

Taken out, nothing of it runs; what it has set of the compiler's own ways stays, and concerns only what is compiled.

The mode `max-autotune-no-cudagraphs` is for recipes that are written by hand; the search does not try it. It compiles
and times some 20 kernels for each shape of a product or convolution, which takes minutes. What it may win is on top of
what `default` wins, so it would be one more trial once that is in; in the usual ten minutes the budget can end it, and
the search with it, before leave-one-out.
"""

import shutil
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from .. import _same_random
from .._base import Applies, Around, Context, Settings, one_of
from .._internals import internals
from .._process_settings import hold_attribute
from . import _compile_cache
from ._losses import switched_losses

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward, Seams
    from hotlap.records.run import Environment, Facts


MODES: Final = ("default", "dynamic", "max-autotune-no-cudagraphs")
"""torch.compile's own, and one for inputs of many shapes. The last is for recipes: see above."""
COMPILERS: Final = ("g++", "clang++", "c++")
NO_COMPILER: Final = "no C++ compiler was found, which torch.compile needs on the CPU"
LAUNCH_SHARE: Final = 0.9
COMPUTE_SHARE: Final = 0.6
TRAINS: Final = "backward"
"""What a forward calls that holds a training loop, whose steps the compiler would trace into."""


class Compiling(_same_random.DrawsOtherwise):
    """A lever that has torch.compile compile the model, or parts of it."""

    risk = "numeric"
    tolerance = 0.005
    stage = "compiler"
    compiles = True
    switchable = True
    signs = ("CompiledFunction", "_dynamo", "_inductor", "BackendCompilerFailed", "Triton", "triton")

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        return None if environment.gpus or compiler_there() else NO_COMPILER

    def environment(self, settings: Settings) -> dict[str, str]:
        return _compile_cache.variables()

    def inert(self, facts: "Facts") -> str:
        """As where each forward is of an input whose gradient the script differentiates again."""
        return "" if any(one.graphs for one in facts.compiled) else "no forward could be compiled"


class Compile(Compiling):
    """`torch.compile` of the whole model, in place."""

    name = "compile"
    meaning = "torch.compile of the outermost forward and of a large cross-entropy, and so of their backward"
    causes = {"launches": 0, "arithmetic": 2, "kernels": 0, "bytes": 0, "on-cpu": 5}
    settings = {"mode": one_of(*MODES), **Compiling.settings}
    costs_s = 60.0
    memory_order = 30

    def applies(self, context: Context) -> Applies:
        facts = context.facts
        if not facts.roots:
            return Applies(False, "no module's forward was seen")
        if all(root.compiled for root in facts.roots):
            return Applies(False, "the script already compiles the model")
        if any(root.sparse for root in facts.roots):
            return Applies(False, "the model has sparse embeddings, whose gradients torch.compile does not support")
        if not context.cuda and not compiler_there():
            return Applies(False, NO_COMPILER)
        return Applies(True, f"{sum(root.modules for root in facts.roots)} modules run eagerly")

    def settled(self, facts: "Facts", active: Collection[str]) -> bool:
        return any(root.sparse for root in facts.roots) or (facts.model is not None and facts.model.compiled)

    def variants(self, context: Context) -> list[Settings]:
        if context.varied:
            return [{"mode": "dynamic"}, {"mode": "default"}]
        return [{"mode": "default"}]

    def share(self, context: Context) -> float:
        if context.diagnosis.bound == "launch":
            return LAUNCH_SHARE * context.share_of("forward", "backward")
        return COMPUTE_SHARE * context.share_of("forward", "backward")

    def install(self, seams: "Seams", settings: Settings) -> None:
        super().install(seams, settings)
        mode = settings["mode"]
        if mode == "dynamic":  # what torch.compile(dynamic=True) does
            hold_attribute(seams, internals().dynamo_config(), "assume_static_by_default", False)
            mode = "default"
        seams.switch(*switched_losses())
        seams.wrap_forward(lambda module, forward: _compiled(module, forward, mode), Around.COMPILED)

    def source(self, settings: Settings) -> str:
        mode = settings["mode"]
        how = {"default": "", "dynamic": "dynamic=True"}.get(mode, f'mode="{mode}"')
        model = f"model.compile({how})"
        return f"{model}\ncross_entropy = torch.compile(F.cross_entropy)  # where it takes many logits"


def compiler_there() -> bool:
    """Whether torch.compile finds what it needs on the CPU."""
    return any(shutil.which(name) for name in COMPILERS)


def _compiled(module: Any, forward: "Forward", mode: str) -> "Forward":
    import torch

    from hotlap.agent.seams import Refused

    from ._graph import Compiled, prepare
    from ._traceable import traceable
    from ._worth_compiling import Worth

    if isinstance(module, torch.jit.ScriptModule):
        raise Refused("torch.compile does not compile TorchScript modules")
    if TRAINS in getattr(getattr(type(module).forward, "__code__", None), "co_names", ()):
        raise Refused(f"the forward of {type(module).__name__} calls backward itself")
    prepare(module)
    compiled = Compiled(traceable(module, forward), mode)
    worth = Worth()

    def where_worth(*args: Any, **kwargs: Any) -> Any:
        return compiled(*args, **kwargs) if worth(args, kwargs) else forward(*args, **kwargs)

    where_worth.compiled = compiled  # type: ignore[attr-defined]  # for levers outside of it
    return where_worth


LEVER = Compile()
