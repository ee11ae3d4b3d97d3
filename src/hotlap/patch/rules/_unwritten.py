"""The levers that no rule writes: why not, and which lines to look at to write them by hand."""

from collections.abc import Callable, Iterable

from hotlap.records.patch import Line
from hotlap.source.places import CannotTell, Places, Site

from ._base import CannotWrite, Edit

NO_RULE = "no rule of this hotlap writes it"


def unwritten(places: Places, name: str) -> Edit:
    """Raises CannotWrite: what is said of a lever without a rule."""
    why, look_at = REASONS.get(name, (NO_RULE, lambda _: ()))
    raise CannotWrite(why, look_at(places))


def _update(places: Places) -> list[Site]:
    """The backward, and what is done between it and the next."""
    loops = {scope.source for scope in places.loops}
    return [*places.backwards, *(site for site in places.calls_named("step", "zero_grad") if site.source in loops)]


def _batches(places: Places) -> list[Line | Site]:
    try:
        return [places.training_loader(), *_update(places)]
    except CannotTell as error:
        return [*error.lines, *_update(places)]


def _optimizers(places: Places) -> list[Site]:
    return places.optimizers or places.calls_named("step")[:3]


REASONS: dict[str, tuple[str, Callable[[Places], Iterable[Line | Site]]]] = {
    "accumulate": (
        "what a loop does once a batch (clipping, schedules, logs, means over the loader's length) would have to be "
        "told from what it does once an update, and the source does not say which is which",
        _batches,
    ),
    "graph-optimizer": (
        "a CUDA graph needs gradients that stay at their addresses, a learning rate on the device and steps before it "
        "is captured: no small diff, and every way of clearing gradients or changing the rate has to be looked at",
        _optimizers,
    ),
    "fewer-syncs": (
        "whether a value was computed before the backward and not written to since is known when it is read, which the "
        "lever looks at in each read; of a profiled run's waits `hotlap patch RUN` rewrites the lines that it can",
        # Where none reads a value, the backward, after which one may be read by other means.
        lambda places: places.calls_named("item", "cpu") or _update(places),
    ),
    "graph-training": (
        "torch.cuda.make_graphed_callables wants sample inputs of every shape, gradients that are cleared before each "
        "backward, and one backward for each forward, which the lever looks at in each call",
        lambda places: places.root_calls,
    ),
    "optimizer-offload": (
        "it takes two hooks of some 20 lines that keep what of the optimizer's state is where; checkpoints and "
        "whatever else reads the state between steps have to be looked at",
        _optimizers,
    ),
}
