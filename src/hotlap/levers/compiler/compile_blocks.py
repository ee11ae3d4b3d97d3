"""Regional compilation: each repeated block is compiled instead of the whole forward, and all share one compilation.

Which forwards without gradients run compiled, and in which dtypes a backward computes: see compile.
"""

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from .._base import Applies, Around, Context, Settings, one_of
from .._internals import internals
from ._losses import switched_losses
from .compile import LEVER as WHOLE
from .compile import Compiling

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward, Seams

SHAPES: Final = ("automatic", "dynamic")
OF_WHOLE: Final = 0.9
SPARE_RECOMPILES: Final = 8
MOST_KINDS: Final = 8
"""Each takes some seconds, one after another: a diffusion U-Net's blocks took 100 s, the whole 84 (H200, 16 cores)."""


class CompileBlocks(Compiling):
    """`block.compile()` for each repeated block."""

    name = "compile-blocks"
    meaning = "torch.compile of each repeated block, once for all of them: it starts sooner than the whole model would"
    settings = {"shapes": one_of(*SHAPES), **Compiling.settings}
    excludes = ("compile", "attention")
    costs_s = 30.0
    memory_order = 40

    def applies(self, context: Context) -> Applies:
        roots = context.facts.roots
        blocks = max((root.blocks for root in roots), default=0)
        whole = WHOLE.applies(context)
        if not whole.yes:
            return whole
        if not blocks:
            return Applies(False, "no block of the model is repeated")
        kinds = max(root.block_kinds for root in roots)
        if kinds > MOST_KINDS:
            return Applies(
                False, f"blocks of {kinds} kinds are compiled one after another; compiling the whole model is quicker"
            )
        if any(root.wrapper == "DataParallel" for root in roots):
            return Applies(False, "DataParallel copies the modules, and the copies would run the compiled originals")
        return Applies(True, f"{blocks} repeated blocks run eagerly")

    def variants(self, context: Context) -> list[Settings]:
        if context.varied:
            return [{"shapes": "dynamic"}, {"shapes": "automatic"}]
        return [{"shapes": "automatic"}]

    def share(self, context: Context) -> float:
        return OF_WHOLE * WHOLE.share(context)

    def install(self, seams: "Seams", settings: Settings) -> None:
        super().install(seams, settings)
        dynamic = True if settings["shapes"] == "dynamic" else None
        now = Now()
        with_losses, without_losses = switched_losses()

        def change(root: Any) -> None:
            compile_blocks(root, dynamic, now)
            with_losses()  # not where the lever refuses

        def undo(root: Any) -> None:
            now.leave(root)
            without_losses()

        seams.on_root(change, undo)
        seams.wrap_forward(now.wrap, Around.COMPILED)

    def source(self, settings: Settings) -> str:
        dynamic = "dynamic=True" if settings["shapes"] == "dynamic" else ""
        return f"for block in model.blocks:  # wherever the repeated blocks are\n    block.compile({dynamic})"


class Now:
    """Whether blocks run compiled, decided once for all of a model at each of its forwards. as_written: not with
    gradients either, as these are differentiated again. worked: one did."""

    def __init__(self) -> None:
        self.compiled = True
        self.as_written = False
        self.worked = False
        self.blocks: weakref.WeakSet[Any] = weakref.WeakSet()
        """Those that are called by what was compiled."""

    def leave(self, root: Any) -> None:
        """The blocks of a model run as they were written. What was compiled is kept with their code, and found there
        when they are compiled again."""
        for block in self.blocks & weakref.WeakSet(root.modules()):
            self.blocks.discard(block)
            block.__dict__.pop(internals().IMPL, None)

    def wrap(self, module: Any, forward: "Forward") -> "Forward":
        import torch

        from ._worth_compiling import Worth

        worth = Worth()

        def decided(*args: Any, **kwargs: Any) -> Any:
            self.compiled = worth(args, kwargs)
            self.as_written = torch.is_grad_enabled() and not self.compiled
            return forward(*args, **kwargs)

        return decided


def compile_blocks(root: Any, dynamic: bool | None, now: Now) -> None:
    """Compile the repeated blocks of a model in place. Raises Refused where copies of modules would share them."""
    import torch

    from hotlap.agent.facts.blocks import form_of, repeated
    from hotlap.agent.seams import Refused

    from ._graph import prepare
    from ._traceable import traceable

    if any(isinstance(module, torch.nn.DataParallel) for module in root.modules()):
        raise Refused("DataParallel copies the modules, and the copies would run the compiled originals")
    inner = internals()
    blocks = [block for block in repeated(root) if getattr(block, inner.IMPL) is None]
    if not blocks:
        raise Refused("the model has no repeated blocks, or the script already compiles them")
    prepare(root)
    # All blocks share the limit of one code object, after which torch.compile runs eagerly without a word.
    config, kinds = inner.dynamo_config(), len({form_of(block) for block in blocks})
    config.recompile_limit = max(config.recompile_limit, kinds + SPARE_RECOMPILES)
    for block in blocks:  # as `block.compile()` does, which passes over layers of torch's own
        call = getattr(block, inner.CALL)
        compiled = torch.compile(traceable(block, call, shared=True), dynamic=dynamic)
        setattr(block, inner.IMPL, _where_worth(now, compiled, call))
        now.blocks.add(block)


def _where_worth(now: Now, compiled: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    from ._graph import go_on_without

    def call(*args: Any, **kwargs: Any) -> Any:
        import torch

        # With gradients also where a checkpoint computes the block again, after another forward.
        if now.as_written or not (now.compiled or torch.is_grad_enabled()):
            return plain(*args, **kwargs)
        output = compiled(*args, **kwargs)
        if not now.worked and not torch.compiler.is_compiling():
            now.worked = True
            go_on_without()
        return output

    return call


LEVER = CompileBlocks()
