"""What the agent sees of the script, as later decisions need it: loaders, outermost modules, optimizers, the process.

It is told by rooms: the files of this folder, found by listing. A room has functions of these names; all that there are
of a name are called, and what they return is added to the facts.

* `describe_loader(loader)` as it is first iterated, `describe_batch(batch)` of some that it delivers.
* `describe_model(model)` as an outermost module is first called. Of some forwards after that `handed(model, leaves)`,
  of what they are given; in training `numbers(model, leaves)` as well, which may read that, and fail; `returned(model,
  output)`, until no fact of it is False. `look_at_model(model, script)` before facts are written.
* `describe_optimizer(optimizer, parameters)` at its first step, `look_at_optimizer(optimizer, facts)` as above.
* `describe_process(script)` as facts are written.
"""

import importlib
import operator
import pkgutil
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..habits import Habits, switches
from ..lines import Places
from ..loaders import Making, hung
from ..updates import parameters_of

if TYPE_CHECKING:
    from ..interface import Agent

Facts = dict[str, Any]
LOOKED_AT_BATCHES = 4
"""Batches of a loader that are described."""


def tell(facts: Facts, what: str, *of: Any) -> Facts:
    """Add what the functions of this name return."""
    for room in ROOMS:
        if hasattr(room, what):
            facts |= getattr(room, what)(*of)
    return facts


class Model(NamedTuple):
    """An outermost module, None once it is gone. device: of its first parameter; backwards: that there were before it;
    kept: what rooms remember of it."""

    module: Callable[[], Any]
    device: str
    backwards: int
    facts: Facts
    kept: dict[str, Any]


class Script:
    """Collected by the hooks, written as facts.json. As it is: ended: the loop has; on_cuda: CUDA is used, and may be
    asked; optimized: ids of what optimizers hold."""

    def __init__(self, agent: "Agent") -> None:
        self.agent = agent
        self.loaders: dict[Any, Facts] = {}
        self.roots: dict[int, Model] = {}
        self.optimizers: dict[int, Facts] = {}
        self.made: dict[int, tuple[str, int, str] | None] = {}
        self.making = Making()
        self.device, self.on_cuda, self.ended, self.optimized = "cpu", False, False, set[int]()
        self.scaling: tuple[int, Any] | None = None
        self._places = Places()
        self.recomputed = self.kept_graphs = self.looked_backwards = 0
        self.habits = Habits()
        self.hung: Facts | None = None

    # loaders

    def loader(self, loader: Any, training: bool) -> Facts:
        """Describe a loader that is about to be iterated."""
        self.making.followed = True
        dataset, workers = type(getattr(loader, "dataset", None)), integer(getattr(loader, "num_workers", 0)) or 0
        # Not by identity: a loop may make its loader anew each epoch, at the address of another that is gone.
        key = (dataset, workers, integer(getattr(loader, "batch_size", None)), training)
        known = self.loaders.get(key)
        if known is None:
            known = self.loaders[key] = defaultdict(int)  # what is 0 or unknown need not be told
            tell(known, "describe_loader", loader)
            known["training"] = training
        known["iterators"] += 1
        if known["iterators"] == 2:
            known["loop"] = self._places.caller()
        return known

    def in_flight(self, inference: bool) -> int:
        """Batches that the loop's loaders make ahead. inference: it only infers."""
        mine = [loader for loader in self.loaders.values() if loader["training"] or inference]
        return max((loader["workers"] * (loader["prefetch"] or 2) for loader in mine), default=0)

    def batch(self, facts: Facts, batch: Any) -> None:
        """Describe what a loader delivered, the first few times."""
        facts["batches"] += 1
        if facts["batches"] <= LOOKED_AT_BATCHES:
            tell(facts, "describe_batch", batch)

    def started(self, facts: Facts, took_ns: int) -> None:
        """A loader has started worker processes that end with its epoch, in took_ns."""
        if facts["starts"]:
            facts["restarting_ms"] += took_ns / 1e6
            facts["loop"] = self._places.caller()
        facts["starts"] += 1

    @staticmethod
    def refilled(facts: Facts, took_ns: int) -> None:
        """Their first batch came, after took_ns."""
        if facts["starts"] > 1:
            facts["refilling_ms"] += took_ns / 1e6

    def gave_up(self, iterator: Any) -> None:
        """No batch came of it."""
        asked_ns, iterator._hotlap_asked = iterator._hotlap_asked, None
        if asked_ns is not None:
            self.hung = hung(iterator, asked_ns, self._places) or self.hung

    # losses

    def scaled(self, scaled: Any, loss: Any) -> None:
        """Remember the loss behind a scaled one, until its backward."""
        self.scaling = (id(scaled), loss.detach())

    def unscaled(self, tensor: Any) -> Any:
        """The loss as the script computed it, before a GradScaler. Worth asking where `scaling` is something."""
        known, self.scaling = self.scaling, None
        return known[1] if known is not None and known[0] == id(tensor) else tensor

    # modules

    def root(self, module: Any, training: bool, compiled: bool) -> None:
        """Describe an outermost module. compiled: the script called `module.compile()` itself."""
        device = next((str(one.device.type) for one in module.parameters()), "cpu")
        if device not in {"cpu", "meta"}:  # on meta nothing is computed
            self.device = device
        facts: Facts = defaultdict(int, training=training, compiled=compiled, called=self._places.caller())
        model = Model(weakref.ref(module), device, self.agent.steps.backwards, facts, {})
        self.roots[id(module)] = model
        tell(facts, "describe_model", model)

    def forward(self, what: str, module: Any, of: Any) -> Facts:
        """What rooms tell of one of its first forwards."""
        told: Facts = {}
        if (model := self.roots.get(id(module))) is not None:
            model.facts.update(tell(told, what, model, of))
        return told

    # optimizers

    def optimizer_made(self, optimizer: Any) -> None:
        """It was, by the user's code that led here."""
        self.made[id(optimizer)] = self._places.caller()

    def optimizer(self, optimizer: Any) -> None:
        """Describe an optimizer at its first step, when its gradients exist."""
        if id(optimizer) in self.optimizers:
            return
        parameters = [p for g in optimizer.param_groups for p in g["params"] if isinstance(p, torch.Tensor)]
        facts = {"made": self.made.get(id(optimizer)), "stepped": self._places.caller()}
        self.optimizers[id(optimizer)] = tell(facts, "describe_optimizer", optimizer, parameters)
        self.habits.switches |= {*switches()}
        if any(p.is_cuda for p in parameters):
            self.device = "cuda"

    # the whole

    def facts(self, mode: str, stopped: bool) -> Facts:
        """The document of facts.json."""
        agent, self.ended = self.agent, stopped or self.agent.done
        for loader in self.loaders.values():
            if loader["workers"] and (loader["training"] or agent.steps.infers):
                self.making.look_at_workers(loader)
        if agent.losses.slots:  # of losses on the device: whoever computes with plain functions has no module
            self.device = "cuda"
        self.on_cuda = self.device == "cuda" and torch.cuda.is_initialized()
        self.optimized = {id(one) for one in parameters_of(agent.steps.optimizers)}
        if threading.get_ident() == agent.thread:
            for model in self.roots.values():
                if model.module() is not None:
                    tell(model.facts, "look_at_model", model, self)
            for one in list(agent.steps.optimizers):
                if (facts := self.optimizers.get(id(one))) is not None:
                    tell(facts, "look_at_optimizer", one, facts)
        return {
            "mode": mode,
            "stopped": stopped,
            **tell({}, "describe_process", self),
            "loaders": list(self.loaders.values()),
            "roots": [model.facts for model in self.roots.values()],
            "optimizers": list(self.optimizers.values()),
        }


def place_of(kind: type, method: str) -> Facts:
    """File, line and name of a method of the user's; where it is a library's, of the user's line that led here."""
    places = Places()
    code = getattr(getattr(kind, method, None), "__code__", None)
    own = None if code is None else (code.co_filename, code.co_firstlineno, f"{kind.__qualname__}.{method}")
    if own is None or not places.users(own[0]):
        own = places.caller() or own
    return {} if own is None else dict(zip(("file", "line", "function"), own, strict=True))


def integer(value: Any) -> int | None:
    """A number that the script has given, as Python's own, which numpy's are not; None where it is no whole one."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def size(parameters: Sequence[Any]) -> int:
    """Their number of elements; none of lazy ones."""
    return sum(int(one.numel()) for one in parameters if not torch.nn.parameter.is_lazy(one))


def may_wait() -> bool:
    """Whether the host may wait for the device here: not while a graph is recorded, nor where the script forbids it."""
    return torch.cuda.get_sync_debug_mode() == 0 and not torch.cuda.is_current_stream_capturing()


ROOMS = [importlib.import_module(f"{__name__}.{room.name}") for room in pkgutil.iter_modules(__path__)]
