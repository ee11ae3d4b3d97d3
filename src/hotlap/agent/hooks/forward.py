"""The outermost forward: found by patching `nn.Module.__call__` for a while, then observed on the instance.

The class is patched only between outermost calls: during one the original is in place, so that submodules cost nothing
and torch.compile never traces anything of hotlap's. An outermost module with parameters gets a wrapper in its
instance's `_compiled_call_impl`, which never travels to a copy of the module, so that a copy never runs the original's
weights. After SETTLED steps without a new one the class is left alone, until another optimizer is made. After a call of
`eval` it is patched up to the next forward, and no longer: that may be of a part of a model (one that samples), or of
another, which is then an evaluation as well.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from sys import _getframe
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import is_grad_enabled
from torch.compiler import is_dynamo_compiling

from ..guard import hook
from ..habits import HABITS
from ..probe import leaves, mapped, nudge, random_state, redraw
from ..seams import Forward
from ..steps import BY_HAND, INFERENCE, Steps
from ..torch_internals import CALL, CALL_CODE, IMPL, function_modes, modes, tracing_state, usual_call

if TYPE_CHECKING:
    from ..interface import Agent

FIND, BEGIN, END = hook("forward_find"), hook("forward_begin"), hook("forward_end")
UNUSED = hook("unused_forwards")
SETTLED = 4
SETTLED_INFERENCE = 16
IN_VAIN = 64
"""So many steps after a look for an evaluation that told nothing new comes the next: to patch the class and put it back
costs 0.1 ms, and some scripts call `eval` of a frozen part in every step."""
WRAPPED_ANEW = 3
"""Steps in a row in which a new module of a class was called around the same parameters. From then on the class is one
of wrappers that are made anew in each step, as torchdiffeq's: what they wrap is looked for in their place."""
DESCRIBED = 16
"""Forwards of a module that are described after the first."""
LOOKS = 3
"""Forwards with gradients of which is looked at what ran."""


def install(agent: "Agent") -> None:
    """Begin looking for outermost modules."""
    agent.finder.look()
    agent.seams.rewrap = agent.finder.rewrap
    _patch_eval(agent)


def _patch_eval(agent: "Agent") -> None:
    guard, finder, original = agent.guard, agent.finder, torch.nn.Module.eval

    @functools.wraps(original)
    def eval(self: Any) -> Any:
        if is_dynamo_compiling():
            return original(self)
        if get_ident() == guard.live:
            if finder.hidden:
                guard.call(FIND, finder.see, True)
            guard.call(FIND, finder.expect_evaluation)
        return original(self)

    torch.nn.Module.eval = eval


class Finder:
    """Finds the outermost modules, and wraps each once.

    looking: the class is patched. evaluation: only up to the next forward, to tell whether it is of an evaluation.
    in_vain: the step of the last such look that told nothing. hidden: those of the roots that have no wrapper now.
    """

    def __init__(self, agent: "Agent") -> None:
        self.agent = agent
        self.original = torch.nn.Module.__call__
        self.last_new = 0
        self.in_vain = -IN_VAIN
        self.looking = self.evaluation = False
        self.roots: list[Root] = []
        self.hidden: list[Root] = []
        self.wrappers: set[type] = set()
        """Classes of wrappers that are made anew in each step."""
        self._anew: dict[type, tuple[Callable[[], Any], int, int]] = {}
        """By class of a root: its first parameter, the step, and in how many steps before there was another one."""
        self.patched = self._make_patched()

    def look(self, evaluation: bool = False) -> None:
        """Patch the class."""
        self.looking, self.evaluation = True, evaluation
        self._swap(self.original, self.patched)

    def look_again(self) -> None:
        """An optimizer was made: there may be another model."""
        self.last_new = self._step()
        if not self.looking or self.evaluation:
            self.look()

    def expect_evaluation(self) -> None:
        """A module of a loop that trains was put in eval mode."""
        steps = self.agent.steps
        inside = steps.in_forward or steps.in_backward or steps.in_data
        if inside or steps.infers:
            return
        self.agent.peaks.begins()
        if self.looking:
            return
        if self._step() - self.in_vain >= IN_VAIN:
            self.look(evaluation=True)

    def step_ended(self, steps: int) -> None:
        """Stop looking where enough steps brought no new module."""
        limit = SETTLED if self.agent.steps.backwards else SETTLED_INFERENCE
        if steps - self.last_new > limit:
            self.leave()

    def ready(self) -> bool:
        """Before unsampled steps: whether no module is looked for any more."""
        return not self.looking or self.evaluation

    def leave(self) -> None:
        """Put the class back as it was."""
        self.looking = False
        self._swap(self.patched, self.original)

    @staticmethod
    def _swap(old: Any, new: Any) -> bool:
        """Exchange the class's `__call__`, and what torch.compile takes for the usual one (it then looks at neither).

        Not where a script has put its own in its place.
        """
        if torch.nn.Module.__call__ is not old:
            return False
        torch.nn.Module.__call__ = new
        usual_call(old, new)
        return True

    def _make_patched(self) -> Callable[..., Any]:
        finder, original, agent = self, self.original, self.agent

        @functools.wraps(original)
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(self, *args, **kwargs)
            if not agent.guard.on:
                finder.leave()
            swapped = False
            try:
                if finder.looking and agent.mine():
                    agent.guard.call(FIND, finder.found, self)
                    swapped = type(self) not in finder.wrappers and finder._swap(finder.patched, original)
                elif finder.looking and agent.steps.in_backward:  # on a device the backward has threads of its own
                    agent.script.recomputed += 1
                return original(self, *args, **kwargs)
            finally:
                if swapped and finder.looking and agent.guard.on:
                    finder._swap(original, finder.patched)

        return __call__

    def found(self, module: Any) -> None:
        """A call: wrap the module if it is an outermost one (of the loop, not of a checkpoint or a data set)."""
        steps = self.agent.steps
        _note_recorded(steps, module)
        if steps.in_backward:
            self.agent.script.recomputed += 1
        if steps.in_forward or steps.in_backward or steps.in_data:
            return
        if self.evaluation:
            self._evaluation(module)
            return
        if steps.unsampled or isinstance(module.__dict__.get(IMPL), Observed) or not hasattr(module, "training"):
            return  # the last is one that TorchScript has frozen
        first = next(iter(module.parameters()), None)
        if first is None or type(module) in self.wrappers or self._wraps_anew(type(module), first):
            return
        self.last_new = self.agent.recorder.index
        root = Root(self.agent, module)
        root.install()
        self.roots.append(root)

    def _wraps_anew(self, kind: type, first: Any) -> bool:
        """Whether modules of a class come to be taken for wrappers. first: the first parameter of one that is new."""
        step = self._step()
        before, at, steps = self._anew.get(kind, (lambda: None, step, 0))
        steps = steps + (step > at) if before() is first and step - at <= 1 else 0
        self._anew[kind] = weakref.ref(first), step, steps
        if steps < WRAPPED_ANEW:
            return False
        self.wrappers.add(kind)
        for root in [root for root in self.roots if root.kind is kind]:
            self.agent.script.roots.pop(root.key, None)
        return True

    def see(self, seen: bool) -> None:
        """Take the wrappers out of the models, in steps of a training that are not looked at, or put them back."""
        if not seen:
            self.roots = [root for root in self.roots if root.module() is not None]
            self.hidden = [root for root in self.roots if root.hide()]
        elif self.hidden:
            for root in self.hidden:
                root.show()
            self.hidden = []

    def rewrap(self) -> None:
        """Other levers are in: wrap the forwards of the modules that are known anew."""
        for root in self.roots:
            module = root.module()
            if module is not None and root.levers_in:
                root.forward = self.agent.seams.wrapped(module, root.before)
                root.own = not root.compiled and root.forward is root.before

    def _evaluation(self, module: Any) -> None:
        """A call after `eval`. The module is not wrapped: it may be a part of one that trains, and is then called in
        every step. One that is wrapped tells of itself."""
        graded, known = is_grad_enabled(), isinstance(module.__dict__.get(IMPL), Observed)
        if getattr(module, "training", False) and not graded:  # TorchScript's frozen modules have none
            return
        if graded and not known and next(iter(module.parameters()), None) is None:
            return
        self.leave()
        self.agent.peaks.evaluates(graded)
        if graded or known:
            self.in_vain = self._step()
        elif self.agent.steps.unsampled:
            self.agent.step_sampling.evaluating()
        else:
            self.agent.steps.evaluating()

    def _step(self) -> int:
        """The number of the step that is going on."""
        return self.agent.recorder.index + len(self.agent.step_sampling.ends)


def _call(root: "Root", *args: Any, **kwargs: Any) -> Any:
    """A call of an outermost module."""
    caller, module = _getframe(1), root.module()
    if caller.f_code is CALL_CODE and (owner := caller.f_locals["self"]) is not module:
        return getattr(owner, CALL)(*args, **kwargs)  # it took over the whole `__dict__`, as DataParallel's copies do
    steps = root.steps
    if not steps.unsampled or steps.in_forward or steps.in_backward or steps.in_data or get_ident() != root.guard.live:
        return root.seen(args, kwargs)
    if steps.unsampled == BY_HAND and steps.manual_open and is_grad_enabled():
        root.agent.step_sampling.event()
        if not steps.unsampled:
            return root.seen(args, kwargs)
    if steps.evaluates and module.training and is_grad_enabled():
        root.agent.peaks.trains()
    steps.forwards += 1
    steps.in_forward = 1
    try:
        return getattr(module, CALL)(*args, **kwargs) if root.own else root.forward(*args, **kwargs)
    finally:
        steps.in_forward = 0
        if steps.unsampled == INFERENCE or not module.training or root.graded is not None:
            root.unsampled()


class Observed(functools.partial[Any]):
    """What stands in a module's `_compiled_call_impl`: a partial one of `_call`, which is called faster than an
    object that has a `__call__`. A pickle or a deep copy of it is None."""

    @property
    def root(self) -> "Root":
        """The observer that it calls."""
        found: Root = self.args[0]
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


class Watched:
    """What `_call` looks at, in few cache lines."""

    __slots__ = ("forward", "graded", "guard", "module", "own", "steps")


class Root(Watched):
    """The observer of one outermost module. own: its forward is its own, around which no lever has put anything."""

    def __init__(self, agent: "Agent", module: Any) -> None:
        self.agent, self.guard, self.steps = agent, agent.guard, agent.steps
        self.begun, self.ended = agent.guard.around(BEGIN, self.begin), agent.guard.around(END, self.end)
        self.unsampled = agent.guard.around(END, self.ended_unsampled)
        self.module: Callable[[], Any] = weakref.ref(module)
        self.key, self.kind = id(module), type(module)
        self.compiled = False
        self.levers_in = False
        self.described = self.looks = 0
        self.forward: Forward = self._own_forward(module)
        self.before: Forward = self.forward
        self.device = "cpu"
        self.random: Any = None
        self.graded: int | None = None
        self.observed = Observed(_call, self)

    def _own_forward(self, module: Any) -> Forward:
        existing = module.__dict__.get(IMPL)
        self.compiled = existing is not None
        self.own = not self.compiled
        if existing is not None:
            return existing  # type: ignore[no-any-return]
        reference = self.module

        def forward(*args: Any, **kwargs: Any) -> Any:
            return getattr(reference(), CALL)(*args, **kwargs)

        return forward

    def install(self) -> None:
        """Put the wrapper in the instance."""
        # Into the instance itself: wrappers such as Lightning Fabric's pass attributes on to the module they wrap.
        self.module().__dict__[IMPL] = self.observed

    def show(self) -> None:
        """Put it back, unless the script has compiled the module meanwhile."""
        module = self.module()
        if module is not None:
            module.__dict__.setdefault(IMPL, self.observed)

    def hide(self) -> bool:
        """Take the wrapper out again, if the module is as it was. Returns whether it did."""
        module = self.module()
        if not self.own or module.__dict__.get(IMPL) is not self.observed:
            return False
        del module.__dict__[IMPL]
        return True

    @contextlib.contextmanager
    def bare(self) -> Iterator[None]:
        """Its forward as it was before levers, if some are in."""
        within, put_in = self.forward, self.levers_in
        try:
            if put_in:
                self.forward = self.before
            yield
        finally:
            if put_in:
                self.forward = within

    def seen(self, args: Any, kwargs: Any) -> Any:
        """A call that is looked at, or one inside of something else."""
        steps, guard = self.steps, self.guard
        inside = steps.in_forward or steps.in_backward or steps.in_data
        if steps.recording is not None and get_ident() == guard.live:
            guard.call(FIND, _note_recorded, steps, self.module())
        if inside or not (get_ident() == guard.live or self.agent.mine()) or tracing_state() is not None:
            return self.forward(*args, **kwargs)
        training = is_grad_enabled()
        self.begun(training, args, kwargs)
        if steps.unsampled:  # from here on
            return _call(self, *args, **kwargs)
        output = None
        try:
            output = self.forward(*args, **kwargs)
            return output
        finally:
            if get_ident() == guard.live:
                self.ended(training, args, kwargs, output)

    def begin(self, training: bool, args: Any, kwargs: Any) -> None:
        """Before the forward. training: gradients are enabled; args, kwargs: what it is called with."""
        steps = self.steps
        evaluating = not self.module().training
        if self.described < DESCRIBED or not self.levers_in or not training:
            self._describe(training, args, kwargs)
        if self.agent.probe.active and training and steps.backwards == 0:
            self.random = random_state()
        if training:
            habits = self.agent.script.habits
            habits.forwards += 1
            if modes() or function_modes():
                self.guard.spare(HABITS, habits.give_up, habits.within)
        rows = None if steps.loader_rows or not training else _rows(args, kwargs)
        if steps.backwards and (evaluating or not training):
            self.agent.peaks.evaluates(training)
        elif steps.evaluates:
            self.agent.peaks.trains()
        steps.forward_begin(self.key, training, evaluating, rows)
        if not training and steps.backwards:
            self.agent.besides.begin(self.key, self.module())
        unused = self.agent.unused
        if unused.looking and training and steps.backwards and not (evaluating or self.compiled or steps.recording):
            unused.begin()

    def _describe(self, training: bool, args: Any, kwargs: Any) -> None:
        """What need not be known of each forward."""
        module, agent = self.module(), self.agent
        if not agent.begun:
            agent.begin()
        inference = not training and not agent.steps.optimizers_built
        if not self.levers_in and (training or inference):
            self._first(module, training)
        elif self.described < DESCRIBED and (training or inference):
            self.described += 1
            found = list(leaves([*args, *kwargs.values()]))
            agent.script.forward("handed", module, found)
            if training and agent.script.habits.looking:
                agent.guard.spare(HABITS, agent.script.habits.give_up, agent.script.forward, "numbers", module, found)

    def _first(self, module: Any, training: bool) -> None:
        self.levers_in = True
        parameter = next(iter(module.parameters()))
        self.device = parameter.device.type
        session = self.agent.session
        self.agent.script.root(module, training, self.compiled)
        if session.nudge:
            nudge(module, session.nudge)
        if session.redraw is not None:
            redraw(session.redraw)
        self.forward = self.agent.seams.root(module, self.before)
        self.own = self.own and self.forward is self.before
        self.looks = LOOKS if self.own else 0  # what runs within a lever is the lever's

    def ended_unsampled(self) -> None:
        """A forward ended in an unsampled step: of an inference, or of a model that is being evaluated. That one with
        gradients was such, after `graded` backwards, shows when it trains and there was no other."""
        steps, step_sampling = self.steps, self.agent.step_sampling
        if not steps.unsampled or get_ident() != self.guard.live or tracing_state() is not None:
            return
        if is_grad_enabled():
            before, self.graded = self.graded, None
            if steps.unsampled != INFERENCE and not self.module().training:
                self.graded = steps.backwards
                self.agent.peaks.evaluates(True)
            elif before == steps.backwards:
                step_sampling.evaluating()
        elif steps.unsampled == INFERENCE:
            step_sampling.lapped()
        else:
            step_sampling.evaluating()

    def end(self, training: bool, args: Any, kwargs: Any, output: Any) -> None:
        """After it. output: what it returned."""
        steps, unused = self.steps, self.agent.unused
        if not training and steps.backwards:
            self.agent.besides.end(self.key)
        if unused.begun:
            self.guard.spare(UNUSED, unused.give_up, unused.end, self.module(), _rows(args, kwargs), output)
        if self.agent.probe.active and not training and not steps.optimizers_built:
            self.agent.probe.output(output)
        if self.random is not None:
            self.agent.probe.random_draws(self.random, random_state())
            self.random = None
        if self.looks and training:
            told = self.agent.script.forward("returned", self.module(), output)
            self.looks = self.looks - 1 if False in told.values() else 0
        if training and not steps.outside_rows:  # a text that grows by a token is handed over whole each time
            handed = [*args, *kwargs.values()]
            steps.timeline.segment.tokens += self.agent.tokens.of(self.key, self.module(), handed, output)
        steps.forward_end(training, None if training or steps.loader_rows else _rows(args, kwargs))


def _note_recorded(steps: Steps, module: Any) -> None:
    """A forward while the script records a CUDA graph is part of that."""
    if steps.recording is not None and not steps.in_data:
        steps.recording.forward(evaluation=not is_grad_enabled() and not getattr(module, "training", False))


def _rows(args: Any, kwargs: Any) -> int | None:
    """The first dimension of the first tensor handed to the module. A row of real numbers is one, without a batch; but
    where matrices come with it, such as what was made at those times, they tell. Under `torch.vmap` nothing does."""
    tensors = leaves(args[:2] or list(kwargs.values())[:4])
    first = next(tensors, None)
    if first is None or not first.dim() or mapped(first):
        return None
    if first.dim() > 1 or not first.is_floating_point():
        return int(first.size(0))
    return next((int(tensor.size(0)) for tensor in tensors if tensor.dim() > 1), 1)
