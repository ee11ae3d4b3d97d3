"""The script's own functions that make the loss, compiled. What is computed between the model's output and the backward
lies outside of the forward: op by op, forward and backward, it reads and writes what the model gave again and again.

Which functions they are is read in the source around the line that calls the backward; from the second step on they
have other code. So have modules of the script's own without parameters that are called, outside of other modules, with
what needs a gradient. One that draws random numbers, reads values, writes into what it is given, is given a model or
another object, returns more than one tensor that has a gradient, or that the compiler can't take whole, stays as it is.
So does each call beside others: without gradients, under a mode or a transform, or with a hook on the module.
"""

import inspect
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from . import _compile_cache
from ._asked_gradients import keep_what_is_saved
from ._autocast import backward_by_dtypes
from ._base import Applies, Context, Lever, Settings
from .compile import NO_COMPILER, compiler_there, no_compiler

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment

LEAST_OPERATIONS: Final = 4
"""Of less, little is left to fuse."""
SHARE: Final = 0.3
"""Of what lies between batches and the optimizer, at most: on a CPU a sixth of a small VAE's step; on an H200 0.4 ms of
a U-Net's 66, and of 14 when tuned."""
IMPL: Final = "_compiled_call_impl"
MOST_CHANGED: Final = 8
NO_PLAIN_CALL: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
NONE_FOUND: Final = "nothing of the script's own was seen to make the loss: no function, no module without parameters"


class CompileLoss(Lever):
    name = "compile-loss"
    meaning = "torch.compile of the script's own functions and modules that make the loss of the model's output"
    risk = "numeric"
    tolerance = 0.005
    stage = "compiler"
    compiles = True

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
        return SHARE * context.share_of("forward", "backward", "other")

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        return no_compiler(environment)

    def environment(self, settings: Settings) -> dict[str, str]:
        return _compile_cache.variables()

    def install(self, seams: "Seams", settings: Settings) -> None:
        backward_by_dtypes()
        losses = Losses(seams)
        seams.switch(lambda: losses.switched(True), lambda: losses.switched(False))
        seams.on_loss(losses.function)
        seams.on_criterion(losses.module)

    def source(self, settings: Settings) -> str:
        return "loss_function = torch.compile(loss_function)"


class Losses:
    """Those of one process."""

    def __init__(self, seams: "Seams") -> None:
        self.seams = seams
        self.changed = self.stay = 0
        self.inside = True
        """Else what was changed is called as it was written, though by way of what stands there."""

    def switched(self, inside: bool) -> None:
        """Put in again, or taken out: each calls what was compiled of it, or itself."""
        self.inside = inside

    def function(self, function: Any) -> None:
        """One of the script's own. It stays the object that it is, with other code."""
        from hotlap.agent.loss_code import operations

        from ._loss_function import LossFunction, trampoline

        code = function.__code__
        plain = not (code.co_freevars or code.co_flags & NO_PLAIN_CALL) and self.changed < MOST_CHANGED
        if not plain or operations(function) < LEAST_OPERATIONS:
            return
        keep_what_is_saved()
        own = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
        own.__kwdefaults__, own.__qualname__ = function.__kwdefaults__, function.__qualname__

        def stays(why: str, worked: bool) -> None:
            function.__code__ = code
            self._stays(why, worked)

        self.changed += 1
        function.__code__ = trampoline(code, LossFunction(own, own, stays, lambda: self.inside))

    def module(self, module: Any) -> None:
        """One of the script's own. What it is called by is replaced in the instance, where `module.compile()` puts it,
        which copies and pickles of it leave out."""
        from hotlap.agent.loss_code import forward_of, operations

        from ._loss_function import LossFunction

        plain = module.__dict__.get(IMPL) is None and "forward" not in module.__dict__
        if plain and self.changed < MOST_CHANGED and operations(forward_of(module)) >= LEAST_OPERATIONS:
            self.changed += 1
            keep_what_is_saved()
            suits = partial(self._suits, module)
            module.__dict__[IMPL] = LossFunction(module.forward, module._call_impl, self._stays, suits)

    def _suits(self, module: Any) -> bool:
        return self.inside and _hookless(module)

    def _stays(self, why: str, worked: bool) -> None:
        """One less of them. worked: it was compiled so far."""
        self.stay += 1
        if worked or self.stay < self.changed:
            self.seams.refuse(LEVER.name, why)
        else:
            self.seams.leave_out(LEVER.name, why)


def _hookless(module: Any) -> bool:
    """Whether a call of the module is one of its forward alone."""
    from ._effects import hooks_of, hooks_of_all

    return not any((*hooks_of(module), *hooks_of_all())) and "forward" not in module.__dict__


LEVER = CompileLoss()
