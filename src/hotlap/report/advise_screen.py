"""What to try first, on one screen."""

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from ..records.advice import Advice, Suggestion
from ..records.diagnosis import bound_text
from ..records.durations import ms
from .console import Parts, Screen, at_place, beside, labelled, percent, plain, ratio

MOST: Final = 3


def advise_screen(advice: Advice, cwd: str = "", most: int = MOST) -> RenderableType:
    """The suggestions, what to try first at the front; the first `most` of them in full."""
    shown = beside(
        (Text(f"{number}.", "bold yellow"), Group(*_lines(suggestion, cwd), Text()))
        for number, suggestion in enumerate(advice.suggestions[:most], 1)
    )
    return Screen(Parts(_head(advice), "bold"), Text(), shown, labelled(_notes(advice, most)))


def _head(advice: Advice) -> Iterator[str]:
    yield "what to try first"
    if advice.bound is not None:
        yield bound_text(advice.bound)
    if advice.step_ms is not None:
        yield f"{ms(advice.step_ms)} a step"
    yield advice.device


def _lines(suggestion: Suggestion, cwd: str) -> Iterator[RenderableType]:
    yield plain(suggestion.title, "bold")
    won = f"at most {ratio(suggestion.at_most)} as fast" if suggestion.at_most is not None else ""
    yield Parts([suggestion.because, won, suggestion.kind])
    if suggestion.evidence:
        yield Parts([suggestion.evidence, at_place(suggestion.where, cwd)], "dim")
    for text in suggestion.do:
        yield plain(f"- {text}")
    if suggestion.levers:
        yield plain(f"levers: {', '.join(suggestion.levers)}")
    yield plain(f"verify: {suggestion.verify}", "dim")


def _notes(advice: Advice, most: int) -> Iterator[tuple[str, RenderableType]]:
    for later in advice.suggestions[most:]:
        yield "then", plain(f"{later.title} ({percent(later.share) if later.share is not None else 'share unknown'})")
    # The measures by where they are from: the run; a person, in place of the run or without one; the run, but within a
    # measure that a person gave.
    known = [name for name in advice.measures if name not in advice.given]
    left_out = [name for name in advice.measured if name not in advice.measures]
    for label, names in (("known", known), ("given", advice.given), ("left out", left_out)):
        if names:
            yield label, Parts([_measure(name, advice) for name in names])
    for text in advice.unknown:
        yield "note", plain(text)
    if advice.source:
        yield "from", plain(advice.source)


def _measure(name: str, advice: Advice) -> str:
    now, before = percent(advice.measures.get(name)), percent(advice.measured.get(name))
    if name not in advice.measures:
        return f"{name} {before}"
    return f"{name} {now} (the run: {before})" if name in advice.measured and before != now else f"{name} {now}"
