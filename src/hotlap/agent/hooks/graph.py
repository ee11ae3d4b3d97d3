"""CUDA graphs that the script records itself.

While a stream is recorded, a question to the device (whether it has passed an event, say) ends the recording, and with
it the job; and what runs then is no step. So the hooks are told, and do nothing but to note what is in the graph.
A replay runs none of the code that they watch. That of a graph which holds an update is a step, as `Optimizer.step` is;
so is that of one which holds a forward, in a process that trains nothing.

What is recorded inside of a forward, a backward or an update is not the script's: levers, the compiler and
`make_graphed_callables` replay it there too.
"""

import functools
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from ..guard import hook
from ..steps import INFERENCE
from ..timeline import FORWARD

if TYPE_CHECKING:
    from ..core import Agent

BEGIN, END, REPLAY, REPLAYED = (
    hook("graph_begin"),
    hook("graph_end"),
    hook("graph_replay"),
    hook("graph_replayed"),
)
Held = frozenset[int]
"""The phases of which a graph holds something."""


def install(agent: "Agent") -> None:
    """Patch the methods of `torch.cuda.CUDAGraph`, which `torch.cuda.graph` calls too."""
    Graphs(agent).install(torch.cuda.CUDAGraph)


class Graphs:
    """Those that were recorded where hooks could see it. running: the one that is being recorded."""

    def __init__(self, agent: "Agent") -> None:
        self.agent = agent
        self.known: dict[int, tuple[Callable[[], Any], Held]] = {}
        self.running: Any = None
        guard = agent.guard
        self.begun, self.ended = guard.around(BEGIN, self._begin), guard.around(END, self._end)
        self.replays, self.replayed = guard.around(REPLAY, self._replay), guard.around(REPLAYED, self._replayed)

    def install(self, kind: Any) -> None:
        kind.capture_begin = self._capture_begin(kind.capture_begin)
        kind.capture_end = self._capture_end(kind.capture_end)
        kind.replay = self._around_replay(kind.replay)

    def _capture_begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            if not (get_ident() == self.agent.guard.live or self.agent.mine()) or self._inside():
                return original(graph, *args, **kwargs)
            self.begun(graph)
            try:
                return original(graph, *args, **kwargs)
            except BaseException:
                self.ended(graph, False)
                raise

        return capture_begin

    def _capture_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def capture_end(graph: Any) -> Any:
            done = False
            try:
                result = original(graph)
                done = True
                return result
            finally:
                if graph is self.running:
                    self.ended(graph, done)

        return capture_end

    def _around_replay(self, original: Callable[..., Any]) -> Callable[..., Any]:
        steps, guard, thin = self.agent.steps, self.agent.guard, self.agent.thin

        @functools.wraps(original)
        def replay(graph: Any) -> Any:
            held = self._held(graph) if self.known and get_ident() == guard.live else None
            if held is None or self._inside():
                return original(graph)
            if steps.thin:
                expected = steps.thin == id(graph) or (steps.thin == INFERENCE and FORWARD in held)
                if expected or not steps.replay_ends_step(held):
                    result = original(graph)
                    if expected:
                        thin.lapped()
                    return result
            self.replays(held)
            try:
                return original(graph)
            finally:
                if get_ident() == guard.live:
                    self.replayed(graph, held)

        return replay

    def _held(self, graph: Any) -> Held | None:
        found = self.known.get(id(graph))
        return found[1] if found is not None and found[0]() is graph else None

    def _inside(self) -> bool:
        steps = self.agent.steps
        return bool(steps.in_forward or steps.in_backward or steps.step_depth or (steps.thin > 0 and steps.on_stack()))

    # under the guard

    def _begin(self, graph: Any) -> None:
        self.agent.thin.leave()
        self.running = graph
        self.agent.steps.recording_begin()

    def _end(self, graph: Any, done: bool) -> None:
        self.running = None
        held = self.agent.steps.recording_end()
        self.known = {key: known for key, known in self.known.items() if known[0]() not in {None, graph}}
        if done and held:
            self.known[id(graph)] = weakref.ref(graph), held

    def _replay(self, held: Held) -> None:
        if not self.agent.begun:
            self.agent.begin()
        if self.agent.steps.thin:
            self.agent.thin.leave()
        self.agent.steps.replay_begin(held)

    def _replayed(self, graph: Any, held: Held) -> None:
        self.agent.steps.replay_end(id(graph), held)
