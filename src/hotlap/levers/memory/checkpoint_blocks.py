"""Activation checkpointing of repeated blocks: their activations are dropped and computed again in the backward.

The class's `forward` is wrapped, since torch.compile looks past `_compiled_call_impl` of the modules inside a model,
and only instances that carry a mark are checkpointed. The mark is None in pickles and deep copies.
"""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from .._base import Applies, Context, Lever, Settings, integer
from .._internals import internals

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams

MARK: Final = "_hotlap_checkpoint"
MOST_BLOCKS: Final = 1024


class CheckpointBlocks(Lever):
    """`torch.utils.checkpoint.checkpoint` around each repeated block."""

    name = "checkpoint-blocks"
    meaning = "activations of repeated blocks are recomputed in the backward instead of kept"
    causes = {"memory": 4}
    risk = "exact"
    settings = {"every": integer(1, MOST_BLOCKS)}
    saves_memory = True
    memory_order = 70
    frees = {"activations": 0.8}
    takes = "the forward of these blocks a second time, up to a third of the step"

    def applies(self, context: Context) -> Applies:
        roots = [root for root in context.facts.roots if root.training]
        blocks = max((root.blocks for root in roots), default=0)
        if not roots:
            return Applies(False, "no module's forward was seen in training")
        if not blocks:
            return Applies(False, "no block of the model is repeated")
        names = " and ".join(sorted({root.block for root in roots if root.blocks}))
        return Applies(True, f"{blocks} blocks of {names} keep their activations for the backward")

    def variants(self, context: Context) -> list[Settings]:
        blocks = max((root.blocks for root in context.facts.roots), default=0)
        return [{"every": every} for every in (4, 2, 1) if blocks >= 2 * every or every == 1]

    def install(self, seams: "Seams", settings: Settings) -> None:
        refuse = functools.partial(seams.refuse, self.name)
        seams.on_root(lambda root: checkpoint_blocks(root, settings["every"], refuse), leave)

    def source(self, settings: Settings) -> str:
        some = "" if settings["every"] == 1 else f"  # in every {settings['every']}th block, and block(x) in the others"
        return f"x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False){some}"


class _Mark:
    """In a block that is checkpointed. A pickle or a deep copy of it is None."""

    def __init__(self, refuse: Callable[[str], None], statistics: bool, parts: list[Any]) -> None:
        self.refuse = refuse
        self.statistics = statistics
        self.parts = parts
        self.checked = False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def checkpoint_blocks(root: Any, every: int, refuse: Callable[[str], None]) -> None:
    """Checkpoint every k-th repeated block of a model. refuse: told why a block turned out not to be fit for it.

    Raises Refused where that can be seen beforehand.
    """
    from hotlap.agent.facts.blocks import repeated
    from hotlap.agent.seams import Refused

    blocks = repeated(root)[::every]
    if not blocks:
        raise Refused("the model has no repeated blocks")
    for block in blocks:
        if why := _unsound(block):
            raise Refused(why)
    for block in blocks:
        _wrap(type(block))
        parts = [part for part in block.modules() if part is not block]
        block.__dict__[MARK] = _Mark(refuse, any(map(_has_statistics, block.modules())), parts)


def leave(root: Any) -> None:
    """Have no block of a model checkpointed."""
    for block in root.modules():
        block.__dict__.pop(MARK, None)


def _has_statistics(module: Any) -> bool:
    return isinstance(module, internals().BatchNorm) and module.track_running_stats


def _unsound(block: Any) -> str | None:
    """Why a block must not be computed twice, as far as its parts show it."""
    for part in block.modules():
        if part is not block and internals().is_hooked(part):
            return f"a {type(part).__name__} has forward hooks, which would run again in the backward"
        if "SpectralNorm" in type(part).__name__:
            return f"a {type(block).__name__} has spectral normalisation, which changes with each forward"
    return None


def _wrap(kind: Any) -> None:
    """Let a class's forward look for the mark; once for each class."""
    original = kind.forward
    if hasattr(original, MARK):
        return

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        import torch
        from torch.utils.checkpoint import checkpoint

        mark = self.__dict__.get(MARK)
        if mark is None or not torch.is_grad_enabled():
            return original(self, *args, **kwargs)

        def block(*args: Any, **kwargs: Any) -> Any:
            return original(self, *args, **kwargs)

        if torch.compiler.is_compiling():
            return checkpoint(block, *args, use_reentrant=False, **kwargs)
        if internals().interpreter() is not None:  # transforms take none of the hooks that it is made of
            return original(self, *args, **kwargs)
        return _checkpointed(self, mark, block, args, kwargs)

    setattr(forward, MARK, True)
    kind.forward = forward


def _checkpointed(module: Any, mark: _Mark, block: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A block's forward. The first shows whether it changes its own state: then it is left alone from there on."""
    from torch.utils.checkpoint import checkpoint

    # Of a script that looks inside, or changes what it finds there, for a while.
    if any(map(internals().is_hooked, mark.parts)):
        return block(*args, **kwargs)
    if mark.checked and not (mark.statistics and module.training):
        return checkpoint(block, *args, use_reentrant=False, **kwargs)
    before = None if mark.checked else _state(module)
    output = checkpoint(
        block, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), _BuffersKept(module)), **kwargs
    )
    if before is not None:
        mark.checked = True
        changed = [name for name, state in _state(module).items() if before.get(name) != state]
        if changed:
            module.__dict__.pop(MARK)
            mark.refuse(f"{type(module).__name__} changes its own {changed[0].strip('.')} in each forward")
    return output


def _state(module: Any) -> dict[str, Any]:
    """What a forward may change, by name: versions of parameters and buffers, but not running statistics (which are
    kept); attributes, but not tensors that it leaves there to be read."""
    import torch

    inner, state = internals(), dict[str, Any]()
    for name, part in module.named_modules():
        if _has_statistics(part):
            continue
        for key, value in (*inner.own_parameters(part).items(), *inner.own_buffers(part).items()):
            state[f"{name}.{key}"] = None if value is None else (id(value), inner.version_of(value))
        for key, value in part.__dict__.items():
            if isinstance(value, (int, float, str)):
                state[f"{name}.{key}"] = value
            elif not isinstance(value, torch.Tensor):
                state[f"{name}.{key}"] = (id(value), len(value) if isinstance(value, (list, dict, set)) else 0)
    return state


class _BuffersKept:
    """Running statistics go to copies: the forward has counted this batch already. Entered for each backward of it."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.kept: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def __enter__(self) -> None:
        every = map(internals().own_buffers, self.module.modules())
        self.kept = [(buffers, dict(buffers)) for buffers in every if buffers]
        for buffers, values in self.kept:
            buffers.update({name: None if value is None else value.clone() for name, value in values.items()})

    def __exit__(self, *_: object) -> None:
        for buffers, values in self.kept:
            buffers.update(values)
        self.kept = []


LEVER = CheckpointBlocks()
