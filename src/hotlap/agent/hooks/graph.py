"""CUDA graphs that the script records itself.

While a stream is recorded, a question to the device (whether it has passed an event, say) ends the recording, and with
it the job; that holds for questions of other threads as well. And what runs then is no step. So the hooks are told, and
do nothing but to note what is in the graph. A replay runs none of the code that they watch. That of a graph which holds
an update is a step, as `Optimizer.step` is; so is that of one which holds a forward, in a process that trains nothing.

What is recorded inside of a forward, a backward or an update is muted too, but without an update in it its replays are
parts of those: levers, the compiler and `make_graphed_callables` record and replay there.
"""

import functools
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hotlap.records.phases import FORWARD

from ..guard import hook
from ..steps import BY_HAND, INFERENCE, Recorded

if TYPE_CHECKING:
    from ..core import Agent

BEGIN, END, REPLAY, REPLAYED = (
    hook("graph_begin"),
    hook("graph_end"),
    hook("graph_replay"),
    hook("graph_replayed"),
)


class Running(NamedTuple):
    """A recording of the thread that trains. graph: its id; outer: it is not inside of anything; claimed: this thread
    was not known to be the one; before: `Steps.recording` and `Steps.in_forward` as they were."""

    graph: int
    outer: bool
    claimed: bool
    before: tuple[Recorded | None, int]


def install(agent: "Agent") -> None:
    """Patch the methods of `torch.cuda.CUDAGraph`, which `torch.cuda.graph` calls too."""
    Graphs(agent).install(torch.cuda.CUDAGraph)


class Graphs:
    """known: those that were recorded where hooks could see it, and what is in them. open: those that are recorded now,
    in any thread. running: of these, that of the thread that trains."""

    def __init__(self, agent: "Agent") -> None:
        self.agent = agent
        self.known: dict[int, tuple[Callable[[], Any], Recorded]] = {}
        self.open: dict[int, Any] = {}
        self.running: Running | None = None
        guard = agent.guard
        self.begun, self.ended = guard.around(BEGIN, self._begin), guard.around(END, self._end)
        self.replays = guard.around(REPLAY, self._replays)
        self.replayed = guard.around(REPLAYED, agent.steps.replay_end)
        self.replayed_unsampled = guard.around(REPLAYED, self._replayed_unsampled)

    def install(self, kind: Any) -> None:
        """Wrap the methods of a class of graphs."""
        kind.capture_begin = self._capture_begin(kind.capture_begin)
        kind.capture_end = self._capture_end(kind.capture_end)
        kind.replay = self._around_replay(kind.replay)
        self.agent.recorder.may_ask = lambda: not self.open

    def _capture_begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self.begun(graph)
            try:
                return original(graph, *args, **kwargs)
            except BaseException:  # it is not recorded
                self.ended(id(graph), None)
                raise

        return capture_begin

    def _capture_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            done = None
            try:
                result = original(graph, *args, **kwargs)
                done = graph
                return result
            finally:
                self.ended(id(graph), done)

        return capture_end

    def _around_replay(self, original: Callable[..., Any]) -> Callable[..., Any]:
        guard = self.agent.guard

        @functools.wraps(original)
        def replay(graph: Any, *args: Any, **kwargs: Any) -> Any:
            replays = self.replays(graph) if self.known and get_ident() == guard.live else None
            if replays is None:
                return original(graph, *args, **kwargs)
            recorded, unsampled, expected = replays
            if unsampled:
                result = original(graph, *args, **kwargs)
                self.replayed_unsampled(recorded, expected)
                return result
            try:
                return original(graph, *args, **kwargs)
            finally:
                if get_ident() == guard.live:
                    self.replayed(recorded)

        return replay

    def _inside(self) -> bool:
        steps = self.agent.steps
        if steps.in_forward or steps.in_backward or steps.in_data:
            return True
        return (steps.step_depth > 0 or steps.unsampled > 0) and steps.on_stack() > 0

    # under the guard

    def _begin(self, graph: Any) -> None:
        # Where a script drops a graph that it did not end, it is over with that.
        self.open[id(graph)] = weakref.ref(graph, functools.partial(self._dropped, id(graph)))
        agent, guard, steps = self.agent, self.agent.guard, self.agent.steps
        claimed = guard.live is None
        if self.running is not None or not (get_ident() == guard.live or agent.mine()):
            return
        outer = not self._inside()
        if outer:
            agent.step_sampling.leave()
        self.running = Running(id(graph), outer, claimed, (steps.recording, steps.in_forward))
        steps.recording = Recorded()
        if outer:
            steps.in_forward = 1  # in a forward no hook does anything

    def _dropped(self, key: int, _: Any) -> None:
        if self.agent.guard.on:
            self.ended(key, None)

    def _end(self, key: int, done: Any) -> None:
        """done: the graph, where it was recorded to the end."""
        self.open.pop(key, None)
        running, agent, steps = self.running, self.agent, self.agent.steps
        if running is None or running.graph != key:
            return
        self.running = None
        recorded = steps.recording
        steps.recording, steps.in_forward = running.before
        assert recorded is not None, "it was begun"
        self.known = {at: known for at, known in self.known.items() if at != key and known[0]() is not None}
        if done is not None and recorded.phases and (running.outer or recorded.updates):
            self.known[key] = weakref.ref(done), recorded
        if running.claimed and not recorded.phases and not agent.begun and agent.guard.on:
            agent.guard.live = agent.thread = None  # whoever records something else may not be the one that trains

    def _replays(self, graph: Any) -> tuple[Recorded, bool, bool] | None:
        """What a replay that begins is of; whether its step is not looked at, and ends with it as was expected. None
        where it is a part of something else."""
        agent, steps, found = self.agent, self.agent.steps, self.known.get(id(graph))
        if found is None or found[0]() is not graph:
            return None
        recorded = found[1]
        if self._inside() and not recorded.updates:
            return None
        if steps.unsampled and steps.unsampled != BY_HAND:
            expected = steps.unsampled == recorded.key or (steps.unsampled == INFERENCE and FORWARD in recorded.phases)
            if expected or not steps.replay_ends_step(recorded):
                return recorded, True, expected
        if not agent.begun:
            agent.begin()
        if steps.unsampled:
            agent.step_sampling.leave()
        steps.replay_begin(recorded)
        return recorded, False, False

    def _replayed_unsampled(self, recorded: Recorded, expected: bool) -> None:
        self.agent.steps.replayed_unsampled(recorded)
        if expected:
            self.agent.step_sampling.lapped()
        elif recorded.evaluation:
            self.agent.step_sampling.evaluating()
