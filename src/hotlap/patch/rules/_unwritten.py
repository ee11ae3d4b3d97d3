"""The levers that no rule writes: which lines to look at to write them by hand. Why not, they say themselves."""

from collections.abc import Callable, Iterable

from hotlap.levers import all_levers
from hotlap.levers._base import Places as Looked
from hotlap.records.patch import Line
from hotlap.source.places import CannotTell, Places, Site

from ._base import CannotWrite, Edit

NO_RULE = "no rule of this hotlap writes it"


def unwritten(places: Places, name: str) -> Edit:
    """Raises CannotWrite: what is said of a lever without a rule."""
    left = all_levers()[name].unwritten
    raise CannotWrite(left.why if left else NO_RULE, LOOKS[left.look_at](places) if left else ())


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


LOOKS: dict[Looked, Callable[[Places], Iterable[Line | Site]]] = {
    "batches": _batches,
    "optimizers": _optimizers,
    # Where none reads a value, the backward, after which one may be read by other means.
    "reads": lambda places: places.calls_named("item", "cpu") or _update(places),
    "calls": lambda places: places.root_calls,
}
