"""What differs between two runs, on one screen."""

from collections.abc import Iterator
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from ..records.compare import RunDiff
from ..records.diagnosis import Diagnosis
from .console import Parts, Screen, Tabled, columns, labelled, plain
from .memory_screen import difference_block
from .run_screen import headline

NOT_SET: Final = "not set"


def compare_screen(found: RunDiff) -> RenderableType:
    """Both runs' step times, and a row for each thing that differs."""
    return Screen(
        labelled([("before", _step(found.before, found.before_step)), ("after", _step(found.after, found.after_step))]),
        plain("one run each, so the difference may have other causes; only hotlap tune proves a gain", "dim"),
        Text(),
        *(() if found.memory is None else (*difference_block(found.memory), Text())),
        *_differences(found),
        labelled(("unknown", plain(text)) for text in found.unknown),
    )


def _step(folder: str, diagnosis: Diagnosis | None) -> RenderableType:
    return Parts([folder, *(headline(diagnosis) if diagnosis is not None else ["nothing was measured"])])


def _differences(found: RunDiff) -> Iterator[RenderableType]:
    if not found.differs:
        yield plain(
            "no difference in what both recorded: machine, driver, versions, variables, source, command, levers"
        )
        return
    table = columns("differs", "before", "after", wide=("differs", "before", "after"))
    for one in found.differs:
        table.add_row(plain(one.what), *(plain(NOT_SET if text is None else text) for text in (one.before, one.after)))
    yield Tabled(table)
