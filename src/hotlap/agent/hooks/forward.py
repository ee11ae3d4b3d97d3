"""The outermost forward: found by patching `nn.Module.__call__` for a while, then observed on the instance.

The class is patched only between outermost calls: during one the original is in place, so that submodules cost nothing
and torch.compile never traces anything of hotlap's. An outermost module with parameters gets a wrapper in its
instance's `_compiled_call_impl` (which torch drops when the module is copied or pickled, so that a copy never runs the
original's weights). After SETTLED steps without a new one the class is left alone.
"""

import functools
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..guard import hook
from ..probe import leaves, nudge, random_state, redraw
from ..seams import Forward

if TYPE_CHECKING:
    from ..core import Agent

FIND, BEGIN, END = hook("forward_find"), hook("forward_begin"), hook("forward_end")
SETTLED = 4
SETTLED_INFERENCE = 16


def install(agent: "Agent") -> None:
    """Begin looking for outermost modules."""
    Finder(agent).look()


class Finder:
    """Finds the outermost modules, and wraps each once."""

    def __init__(self, agent: "Agent") -> None:
        self.agent = agent
        self.original = torch.nn.Module.__call__
        self.wrapped: weakref.WeakSet[Any] = weakref.WeakSet()
        self.last_new = 0
        self.calls_since = 0
        self.looking = False
        self.patched = self._make_patched()
        skip_frame(self.patched)

    def look(self) -> None:
        """Patch the class."""
        self.looking = True
        torch.nn.Module.__call__ = self.patched

    def leave(self) -> None:
        """Put the class back as it was."""
        self.looking = False
        torch.nn.Module.__call__ = self.original

    def _make_patched(self) -> Callable[..., Any]:
        finder, original, agent = self, self.original, self.agent

        @functools.wraps(original)
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not finder.looking or not agent.mine():
                return original(self, *args, **kwargs)
            agent.guard.call(FIND, finder.found, self)
            torch.nn.Module.__call__ = original
            _tell_dynamo(finder.patched, original)
            try:
                return original(self, *args, **kwargs)
            finally:
                if finder.looking and agent.guard.on:
                    torch.nn.Module.__call__ = finder.patched

        return __call__

    def found(self, module: Any) -> None:
        """An outermost call: wrap the module, or stop looking."""
        self.calls_since += 1
        steps = self.agent.recorder.index
        limit = SETTLED if self.agent.steps.backwards else SETTLED_INFERENCE
        if steps - self.last_new > limit and self.calls_since > limit:
            self.leave()
            return
        if module in self.wrapped or next(module.parameters(), None) is None:
            return
        self.wrapped.add(module)
        self.last_new, self.calls_since = steps, 0
        Root(self.agent, module).install()


class Root:
    """The observer of one outermost module."""

    def __init__(self, agent: "Agent", module: Any) -> None:
        self.agent = agent
        self.module: Callable[[], Any] = weakref.ref(module)
        self.key = id(module)
        self.compiled = False
        self.levers_in = False
        self.described = 0
        self.forward: Forward = self._own_forward(module)
        self.device = "cpu"
        self.random: Any = None

    def _own_forward(self, module: Any) -> Forward:
        existing = module.__dict__.get("_compiled_call_impl")
        self.compiled = existing is not None
        if existing is not None:
            return existing  # type: ignore[no-any-return]
        reference = self.module

        def forward(*args: Any, **kwargs: Any) -> Any:
            return reference()._call_impl(*args, **kwargs)

        skip_frame(forward)
        return forward

    def install(self) -> None:
        """Put the wrapper in the instance."""
        root, agent = self, self.agent

        def call(*args: Any, **kwargs: Any) -> Any:
            if not agent.mine() or agent.steps.in_forward or agent.steps.in_backward:
                return root.forward(*args, **kwargs)
            training = torch.is_grad_enabled()
            agent.guard.call(BEGIN, root.begin, training, args, kwargs)
            output = None
            try:
                output = root.forward(*args, **kwargs)
                return output
            finally:
                if agent.guard.on:
                    agent.guard.call(END, root.end, training, args, kwargs, output)

        skip_frame(call)
        self.module()._compiled_call_impl = call

    def begin(self, training: bool, args: Any, kwargs: Any) -> None:
        module = self.module()
        agent = self.agent
        agent.begin()
        inference = not training and not agent.steps.optimizers_built
        if not self.levers_in and (training or inference):
            self._first(module, training)
        elif self.described < 3:
            self.described += 1
            agent.script.inside_autocast(module, self.device)
        if agent.probe.active and training and agent.steps.backwards == 0:
            self.random = random_state()
        evaluating = not training and not module.training
        agent.steps.forward_begin(self.key, training, evaluating, _rows(args, kwargs))

    def _first(self, module: Any, training: bool) -> None:
        self.levers_in = True
        parameter = next(module.parameters())
        self.device = parameter.device.type
        session = self.agent.session
        self.agent.script.root(module, training, self.compiled)
        if session.nudge:
            nudge(module, session.nudge)
        if session.redraw is not None:
            redraw(session.redraw)
        self.forward = self.agent.seams.root(module, self.forward)

    def end(self, training: bool, args: Any, kwargs: Any, output: Any) -> None:
        if self.agent.probe.active and not training and not self.agent.steps.optimizers_built:
            self.agent.probe.output(output)
        if self.random is not None:
            self.agent.probe.random_draws(self.random, random_state())
            self.random = None
        self.agent.steps.forward_end(training, _rows(args, kwargs) if not training else None)


def _rows(args: Any, kwargs: Any) -> int | None:
    """The first dimension of the first tensor handed to the module."""
    first = next(leaves(args[:2] or list(kwargs.values())[:4]), None)
    return int(first.shape[0]) if first is not None and first.dim() else None


def skip_frame(function: Any) -> None:
    """Tell torch.compile's frame evaluation to pass over this function (and still look at what it calls)."""
    try:
        from torch._C._dynamo.eval_frame import skip_code  # type: ignore[attr-defined,unused-ignore]
    except ImportError:
        return
    skip_code(function.__code__)


def _tell_dynamo(patched: Any, original: Any) -> None:
    """torch.compile remembers `Module.__call__` when it is imported; it must not remember ours."""
    module = sys.modules.get("torch._dynamo.variables.nn_module")
    if module is not None and getattr(module, "unpatched_nn_module_call", None) is patched:
        module.unpatched_nn_module_call = original  # type: ignore[attr-defined]
