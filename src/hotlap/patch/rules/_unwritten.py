"""The levers that no rule writes: why not, and which lines to look at to write them by hand."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hotlap.records.patch import Line
from hotlap.source.places import Places

from ._base import CannotWrite, calls_named

NO_RULE = "no rule of this hotlap writes it"


@dataclass(frozen=True)
class Unwritten:
    """Why a lever is left to the user. look_at: finds the lines."""

    why: str
    look_at: Callable[[Places], Iterable[Line]]


def unwritten(places: Places, name: str) -> CannotWrite:
    """What is said of a lever without a rule."""
    found = REASONS.get(name)
    return CannotWrite(NO_RULE) if found is None else CannotWrite(found.why, tuple(found.look_at(places)))


def _update(places: Places) -> list[Line]:
    """The backward, and what is done between it and the next."""
    loops = {scope.source for scope in places.loops}
    calls = [(s, c) for s, c in calls_named(places, "step", "zero_grad") if s in loops]
    return [*(site.place for site in places.backwards), *(source.place(call) for source, call in calls)]


def _batches(places: Places) -> list[Line]:
    loader = places.training_loader()
    return [*(loader.lines if isinstance(loader, CannotWrite) else (loader.place,)), *_update(places)]


def _optimizers(places: Places) -> list[Line]:
    steps = [source.place(call) for source, call in calls_named(places, "step")[:3]]
    return [site.place for site in places.optimizers] or steps


def _reads(places: Places) -> list[Line]:
    """Calls that read a value; else the backward, after which one may be read by other means."""
    return [source.place(call) for source, call in calls_named(places, "item", "cpu")] or _update(places)


def _models(places: Places) -> list[Line]:
    return [site.place for site in places.root_calls]


REASONS: dict[str, Unwritten] = {
    "accumulate": Unwritten(
        "what a loop does once a batch (clipping, schedules, logs, means over the loader's length) would have to be "
        "told from what it does once an update, and the source does not say which is which",
        _batches,
    ),
    "graph-optimizer": Unwritten(
        "a CUDA graph needs gradients that stay at their addresses, a learning rate on the device and steps before it "
        "is captured: no small diff, and every way of clearing gradients or changing the rate has to be looked at",
        _optimizers,
    ),
    "fewer-syncs": Unwritten(
        "whether a value was computed before the backward and not written to since is known when it is read, which the "
        "lever looks at in each read; of a profiled run's waits `hotlap patch RUN` rewrites the lines that it can",
        _reads,
    ),
    "graph-forward": Unwritten(
        "a CUDA graph needs buffers for its inputs, a recording for each shape and a watch for what a replay leaves "
        "out: no small diff",
        _models,
    ),
    "graph-training": Unwritten(
        "torch.cuda.make_graphed_callables wants sample inputs of every shape, gradients that are cleared before each "
        "backward, and one backward for each forward, which the lever looks at in each call",
        _models,
    ),
    "optimizer-offload": Unwritten(
        "it takes two hooks of some 20 lines that keep what of the optimizer's state is where; checkpoints and "
        "whatever else reads the state between steps have to be looked at",
        _optimizers,
    ),
}
