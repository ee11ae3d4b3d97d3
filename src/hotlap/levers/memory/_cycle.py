"""A batch in parts, with one update after the last.

Everything that a standard loop does between the backward and the update is covered: `loss.backward()`, clipping by
`torch.nn.utils`, `optimizer.step`, `zero_grad` of optimizer or module, schedulers of torch. What goes around these
(several optimizers, closures, GradScaler) makes the lever stand aside, once and for all, and say so.
"""

import functools
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._batches import resize
from .._internals import internals

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams


class Cycle:
    """Counts the parts. An update is made with the last, and nothing is cleared before it."""

    def __init__(self, seams: "Seams", lever: str, parts: int) -> None:
        self.on = True
        self.parts = parts
        self.done = 0
        self.updates = 0
        self.split_any = False
        self._version: int | None = None
        self._seams, self._lever = seams, lever
        self._optimizer: int | None = None
        self._depth = 0
        self._scheduling = False
        self._paced_at: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    @property
    def factor(self) -> float:
        """What the gradient of the loss itself is, where it would be 1."""
        return 1 / self.parts if self.split_any else 1.0

    def split(self, loader: Any) -> None:
        """Make a loader's batches parts. Raises Refused."""
        self.split_any |= resize(loader, parts=self.parts)

    def _stand_aside(self, why: str) -> None:
        """Give up, and say why."""
        if self.on:
            self.on = False
            self._seams.refuse(self._lever, why)

    def _may_clip(self) -> bool:
        return not (self.on and self.split_any) or self.done == self.parts - 1

    def _restored(self, optimizer: Any) -> bool:
        """Make gradients what they would be without the lever, for the step that is about to be made."""
        for parameter in _parameters_of(optimizer) if self.split_any else ():
            if parameter.grad is not None:
                parameter.grad.mul_(self.parts)
        return True

    def _look_at_gradients(self, optimizer: Any) -> None:
        """A gradient that was not added to, but begun again, was cleared behind our back."""
        gradient = next((p.grad for p in _parameters_of(optimizer) if p.grad is not None), None)
        version = None if gradient is None else internals().version_of(gradient)
        if self.done and self._version is not None and (version is None or version <= self._version):
            self._stand_aside("the script clears gradients without zero_grad")
        self._version = version

    # putting it in

    def install(self) -> None:
        """Patch torch; before the agent's own hooks, so that these see what really happens."""
        import torch

        self._patch_backward()
        self._patch_optimizers()
        torch.nn.Module.zero_grad = self._clearing(torch.nn.Module.zero_grad)
        self._patch_clipping()
        for kind in vars(torch.optim.lr_scheduler).values():
            if isinstance(kind, type) and "step" in vars(kind):
                kind.step = self._paced(vars(kind)["step"])  # type: ignore[attr-defined]
        self._patch_scaler()

    def leave(self) -> None:
        """Do nothing from here on: it could not be put in whole."""
        self.on = False

    def _patch_backward(self) -> None:
        import torch

        owner, name = internals().ENGINE
        original = getattr(owner, name)

        @functools.wraps(original)
        def run(outputs: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
            # A backward inside a backward (a reentrant checkpoint) hands on gradients that are scaled already.
            outermost = not self._depth and kwargs.get("accumulate_grad") and not torch.compiler.is_compiling()
            if self.on and outermost:
                gradients = tuple(None if g is None else g * self.factor for g in gradients)
            self._depth += 1
            try:
                return original(outputs, gradients, *args, **kwargs)
            finally:
                self._depth -= 1

        setattr(owner, name, run)

    def _patch_optimizers(self) -> None:
        import torch

        original = torch.optim.Optimizer.__init__

        @functools.wraps(original)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            # In the instance, where a pickle or a copy of an optimizer takes nothing from.
            optimizer.step = types.MethodType(self._gate(type(optimizer).step), optimizer)
            optimizer.zero_grad = types.MethodType(self._clearing(type(optimizer).zero_grad), optimizer)

        torch.optim.Optimizer.__init__ = __init__

    def _gate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(optimizer: Any, closure: Any = None) -> Any:
            if self.on and not self._steps(optimizer, closure):
                return None
            self.updates += 1
            return original(optimizer) if closure is None else original(optimizer, closure)

        return step

    def _steps(self, optimizer: Any, closure: Any) -> bool:
        """Whether `optimizer.step()` is an update; asked at each, with the gradients in place."""
        first, self._optimizer = self._optimizer in {None, id(optimizer)}, id(optimizer)
        if closure is None and first:
            if not self.split_any:  # batches that were not split are updated with as they come
                return True
            self._look_at_gradients(optimizer)
            if not self.on:
                return self._restored(optimizer)
            self.done = (self.done + 1) % self.parts
            return self.done == 0
        why = "several optimizers take turns" if closure is None else "an optimizer is stepped with a closure"
        self._stand_aside(why)
        return self._restored(optimizer)

    def _clearing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> None:
            if not self.on or self.done == 0:
                original(owner, *args, **kwargs)

        return zero_grad

    def _patch_clipping(self) -> None:
        import torch

        module = torch.nn.utils.clip_grad
        by_norm, by_value = module.clip_grad_norm_, module.clip_grad_value_

        @functools.wraps(by_norm)
        def clip_grad_norm_(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
            return by_norm(parameters, max_norm if self._may_clip() else float("inf"), *args, **kwargs)

        @functools.wraps(by_value)
        def clip_grad_value_(parameters: Any, *args: Any, **kwargs: Any) -> None:
            if self._may_clip():
                by_value(parameters, *args, **kwargs)

        for owner in (module, torch.nn.utils):
            owner.clip_grad_norm_, owner.clip_grad_value_ = clip_grad_norm_, clip_grad_value_

    def _paced(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A scheduler's step, at most once for each update, whether it steps with every batch or every epoch."""

        @functools.wraps(original)
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.on or self._scheduling:  # a scheduler made of others
                return original(scheduler, *args, **kwargs)
            if self._paced_at.get(scheduler) == self.updates:
                return None
            self._paced_at[scheduler] = self.updates
            self._scheduling = True
            try:
                return original(scheduler, *args, **kwargs)
            finally:
                self._scheduling = False

        return step

    def _patch_scaler(self) -> None:
        import torch

        original = torch.amp.GradScaler.scale

        @functools.wraps(original)
        def scale(scaler: Any, outputs: Any) -> Any:
            if scaler.is_enabled():
                self._stand_aside("the script scales its loss with a GradScaler")
            return original(scaler, outputs)

        torch.amp.GradScaler.scale = scale


def _parameters_of(optimizer: Any) -> list[Any]:
    """All parameters of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
