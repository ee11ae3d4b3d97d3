"""What fits, on one screen."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..records.durations import ms, three
from ..records.fit import Fit, FitCard, FitRun, FitValue, Range, Shape, Verdict
from .console import Parts, Screen, Tabled, columns, labelled, minutes, number, plain

FITS: Final[dict[Verdict, tuple[str, str]]] = {
    "yes": ("fits", "green"),
    "no": ("too large", "red"),
    "maybe": ("may fit", "yellow"),
    "tensors": ("tensors fit", "yellow"),
}
UNITS: Final = (("GiB", 30), ("MiB", 20), ("KiB", 10))
SHAPES: Final[dict[Shape, str]] = {
    "linear": "the peak grows along a line",
    "bent": "the peak grows along a line from some value on",
    "quadratic": "the peak grows with the square",
    "flat": "the peak stays the same",
}
NARROW: Final = 0.01
"""Half of a range's width, as a share, below which the range is not shown beside its number."""


def fit_screen(found: Fit, folder: Path) -> RenderableType:
    """The runs, what is predicted from them, and the largest that fits each device."""
    return Screen(
        Parts(_headline(found), "bold"),
        Parts(_basis(found), "dim"),
        Text(),
        Tabled(_table(found)),
        Text(),
        labelled(_largest(found)),
        labelled(_notes(found, folder)),
    )


def _headline(found: Fit) -> Iterator[str]:
    if found.device_card is not None:
        yield from _of_card(found.device_card, found)


def _basis(found: Fit) -> Iterator[str]:
    measured = sum(one.measured for one in found.values)
    yield f"{number(len(found.runs), 'run')}, {measured} measured, in {minutes(found.wall_s)}"
    yield SHAPES.get(found.shape, "")
    if not found.complete:
        yield f"incomplete: {found.why_incomplete}"


def _table(found: Fit) -> Table:
    cards = [card for card in (found.device_card, *found.cards) if card is not None]
    names = [card.name for card in cards]
    reserved = any(one.reserved for one in found.values)
    kept = "reserved" if found.device == "cuda" else "process"
    table = columns(
        found.option, "", "peak of tensors", *((kept,) if reserved else ()), "a step", *names, right=(found.option,)
    )
    failed = {one.value: one for one in found.runs if one.outcome != "measured"}
    for at, one in enumerate(found.values):
        table.add_row(
            str(one.value), _how(one, failed.get(one.value)), range_text(one.peak, size),
            *((range_text(one.reserved, size),) if reserved else ()), range_text(one.step_ms, ms),
            *(_verdict(card, at) for card in cards),
        )  # fmt: skip
    return table


def _how(one: FitValue, failed: FitRun | None) -> Text:
    if one.measured:
        return Text("measured")
    if failed is not None:
        return Text("ran out of memory" if failed.outcome == "memory" else "the run failed", "red")
    return Text("predicted", "dim")


def _verdict(card: FitCard, at: int) -> Text:
    return Text(*FITS[card.fits[at]]) if at < len(card.fits) else Text()


def _largest(found: Fit) -> Iterator[tuple[str, RenderableType]]:
    for card in (found.device_card, *found.cards):
        if card is not None:
            memory = f"{size(card.usable_bytes)} of {size(card.memory_bytes)} for tensors"
            yield card.name, Parts([*_of_card(card, found), memory])


def _of_card(card: FitCard, found: Fit) -> Iterator[str]:
    """What fits into a card: the largest value that does, and from where on none does."""
    option = found.option
    most = f"above {card.at_most} too large" if card.at_most is not None else ""
    if card.largest and not most:
        most = "more is not predicted" if card.largest >= found.predicted_to else "how much more does is not known"
    if card.largest:
        yield f"{option} {card.largest}: {'its tensors fit' if card.tensors_only else 'fits'}"
        yield most if card.at_most != card.largest else "no more does"
    else:
        yield f"{option}: {most or 'what fits is not known'}"


def _notes(found: Fit, folder: Path) -> Iterator[tuple[str, RenderableType]]:
    for run in found.runs:
        if run.outcome not in ("measured", "memory"):
            yield "failed", plain(f"{found.option} {run.value}: {run.why}", "yellow")
    for text in found.notes:
        yield "note", plain(text)
    yield "records", plain(folder)


def size(amount: float) -> str:
    """Bytes as people read them: 1.25 GiB, 310 MiB."""
    for unit, power in UNITS:
        if amount >= 2**power:
            return f"{three(amount / 2**power)} {unit}"
    return f"{amount:.0f} B"


def range_text(found: Range | None, told: Callable[[float], str]) -> str:
    """A number with its range, the range alone where no number is likely, or `at least`."""
    if found is None:
        return "-"
    if found.high is None:
        return f"at least {told(found.low)}"
    if found.likely is None:
        return _joined((told(found.low), told(found.high)), "{}–{}")
    if found.high - found.low <= 2 * NARROW * found.likely:
        return told(found.likely)
    return _joined((told(found.likely), told(found.low), told(found.high)), "{} ({}–{})")


def _joined(numbers: Sequence[str], form: str) -> str:
    """Numbers with their unit, which is said once where it is the same."""
    amounts, units = zip(*(one.split(" ") for one in numbers), strict=True)
    return f"{form.format(*amounts)} {units[0]}" if len(set(units)) == 1 else form.format(*numbers)
