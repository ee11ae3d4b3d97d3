"""The script's own functions that make the loss, compiled. What is computed between the model's output and the backward
lies outside of the forward: op by op, forward and backward, it reads and writes what the model gave again and again.

Which functions they are is read in the source around the line that calls the backward; they are replaced where the
caller finds them, from the second step on. So are modules of the script's own without parameters that are called,
outside of other modules, with what needs a gradient. One is first called as it was written: one that draws random
numbers, reads values, or writes into what it is given, stays as it is. So does one that the compiler can't take whole,
and one that is given a model.
"""

import functools
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from . import _compile_cache
from ._autocast import backward_by_dtypes
from ._base import Applies, Context, Lever, Settings
from .compile import NO_COMPILER, compiler_there, no_compiler

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment

LEAST_OPERATIONS: Final = 4
"""Of less, little is left to fuse."""
SHARE: Final = 0.05
"""Of what lies between batches and the optimizer, at most: on an H200, of a U-Net's 66 ms 0.4, of 14 when tuned."""
IMPL: Final = "_compiled_call_impl"
MOST_MODULES: Final = 8
NONE_FOUND: Final = "nothing of the script's own was seen to make the loss: no function, no module without parameters"


class CompileLoss(Lever):
    name = "compile-loss"
    meaning = "torch.compile of the script's own functions and modules that make the loss of the model's output"
    risk = "numeric"
    tolerance = 0.005

    def applies(self, context: Context) -> Applies:
        facts = context.facts
        if not facts.backwards:
            return Applies(False, "no backward was seen")
        if not facts.losses:
            return Applies(False, NONE_FOUND)
        most = max(facts.losses, key=lambda loss: loss.operations)
        if most.operations < LEAST_OPERATIONS:
            return Applies(False, f"{most.function} makes the loss with {most.operations} operations")
        if not context.cuda and not compiler_there():
            return Applies(False, NO_COMPILER)
        return Applies(True, f"{most.function} makes the loss with {most.operations} operations, one by one")

    def share(self, context: Context) -> float:
        return SHARE * context.share_left("forward", "backward", "other")

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        return no_compiler(environment)

    def environment(self, settings: Settings) -> dict[str, str]:
        return _compile_cache.variables()

    def install(self, seams: "Seams", settings: Settings) -> None:
        import torch
        from torch.compiler import is_dynamo_compiling

        from hotlap.agent.compiled import hide_from_compiler

        backward_by_dtypes()
        hide_from_compiler(__name__)
        run, losses = torch.autograd._engine_run_backward, Losses(seams)
        seams.on_criterion(losses.criterion)

        @functools.wraps(run)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if losses.lines.left > 0 and not is_dynamo_compiling():
                losses.look()
            return run(*args, **kwargs)

        torch.autograd._engine_run_backward = backward

    def source(self, settings: Settings) -> str:
        return "loss_function = torch.compile(loss_function)"


class Losses:
    """Those of one process."""

    def __init__(self, seams: "Seams") -> None:
        from hotlap.agent.lines import Places
        from hotlap.agent.loss_code import Lines

        self.seams = seams
        self.lines = Lines(Places().users)
        self.changed: dict[Callable[..., Any], Callable[..., Any]] = {}
        self.modules = self.stay = 0

    def look(self) -> None:
        """At the line that calls this backward."""
        from hotlap.agent.loss_code import operations

        for function, holder, name in self.lines.makers(sys._getframe(2)):
            if operations(function) >= LEAST_OPERATIONS:
                if function not in self.changed:
                    self.changed[function] = self.change(function, function)
                holder[name] = self.changed[function]
                self.seams.acts(LEVER.name)
        if self.lines.left == 0 and not self._count:
            self.seams.leave_out(LEVER.name, NONE_FOUND)

    def criterion(self, module: Any) -> None:
        """A module of the script's own that makes a loss. What it is called by is replaced in the instance, where
        `module.compile()` puts it, which copies and pickles of it leave out."""
        from hotlap.agent.loss_code import forward_of, operations

        own = module.__dict__.get(IMPL) is None and "forward" not in module.__dict__
        if own and self.modules < MOST_MODULES and operations(forward_of(module)) >= LEAST_OPERATIONS:
            self.modules += 1
            module.__dict__[IMPL] = self.change(module.forward, module._call_impl, partial(_hookless, module))

    @property
    def _count(self) -> int:
        return len(self.changed) + self.modules

    def change(
        self, function: Callable[..., Any], ordinary: Callable[..., Any], suits: Callable[[], bool] = lambda: True
    ) -> Callable[..., Any]:
        """A function that is compiled once it was seen to be one that can be; else it stays as it was. ordinary: how it
        is called otherwise, also where `suits` says no."""
        import torch
        from torch._dynamo.exc import TorchDynamoException

        compiled: Callable[..., Any] | None = None
        stays = worked = False

        @functools.wraps(function)
        def loss(*args: Any, **kwargs: Any) -> Any:
            nonlocal compiled, stays, worked
            if stays or not torch.is_grad_enabled() or torch.compiler.is_compiling():
                return ordinary(*args, **kwargs)
            if given_modules(args, kwargs) or not suits():
                return ordinary(*args, **kwargs)
            if compiled is None:
                made, why = seen(ordinary, args, kwargs)
                if why:
                    stays = True
                    self._stays(f"{function.__qualname__} {why}", False)
                else:
                    compiled = torch.compile(function, fullgraph=True)
                return made
            try:
                made = compiled(*with_values(args), **with_values(kwargs))
            except TorchDynamoException as error:  # before anything was computed
                stays = True
                self._stays(f"{function.__qualname__} can't be compiled: {_first_line(error)}", worked)
                return ordinary(*args, **kwargs)
            worked = True
            return made

        return loss

    def _stays(self, why: str, worked: bool) -> None:
        """One less of them. worked: it was compiled so far."""
        self.stay += 1
        if worked or self.stay < self._count:
            self.seams.refuse(LEVER.name, why)
        else:
            self.seams.leave_out(LEVER.name, why)


def _hookless(module: Any) -> bool:
    """Whether a call of the module is one of its forward alone."""
    from ._effects import hooks_of, hooks_of_all

    return not any((*hooks_of(module), *hooks_of_all())) and "forward" not in module.__dict__


def seen(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, str]:
    """What a function returns, and why it is to stay as it is, "" if it need not."""
    import torch

    from ._effects import watched

    made, effects = watched(torch.nn.Module(), function, args, kwargs)
    if effects.draws or effects.draws_on_host:
        return made, "draws random numbers"
    if effects.written or effects.leaves:
        return made, "writes into what it is given"
    return made, f"reads values ({effects.waits})" if effects.waits else ""


def given_modules(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a model is among the arguments: then the function does more than a loss does."""
    import torch

    return any(isinstance(item, torch.nn.Module) for item in (*args, *kwargs.values()))


def with_values(found: Any) -> Any:
    """The same with logits that were not computed yet as ordinary tensors."""
    lazy = sys.modules.get(f"{__package__}._lazy_logits")
    if lazy is None:
        return found
    from ._nested import each_tensor

    return each_tensor(found, lambda tensor: lazy.values(tensor) if isinstance(tensor, lazy.LazyLogits) else tensor)


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0][:200]


LEVER = CompileLoss()
