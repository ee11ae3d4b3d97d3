"""Memory at the peak of some steps: by category, by line, and what holds it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hotlap.records.diagnosis import framed, installed_text
from hotlap.records.memory import MemoryDiff, MemoryDifference, MemoryUsage, When
from hotlap.records.sizes import size_text

from .console import Parts, ShareBar, Tabled, at_place, columns, number, place_text, plain

OF: Final[Mapping[When, str]] = {
    "start": " before the loop",
    "first": " of the first steps",
    "steady": "",
    "oom": " up to where it ran out",
    "snapshot": " of the snapshot's history",
}
Named = Callable[[str], str]
MOST_LINES: Final = 5
LEAST: Final = 0.02
"""Of the peak, from which a category, a line or a variable is shown."""


def memory_block(usage: MemoryUsage, cwd: str, when: When = "steady") -> Iterator[RenderableType]:
    """The peak of a window."""
    at = f", in the {usage.phase} of step {usage.step}" if usage.phase else ""
    yield plain(f"memory: {size_text(usage.peak_bytes)} at the peak{OF[when]}{at}", "bold")
    yield Parts(_basis(usage), "dim")
    yield parts_table(usage, "category")
    yield from _headed("lines that allocated it", lines(usage, cwd))
    if len(usage.modules) > 1:
        yield Text("modules", "bold")
    for module in usage.modules[: MOST_LINES if len(usage.modules) > 1 else 0]:
        largest = ", ".join(f"{part.category} {size_text(part.bytes)}" for part in module.parts[:2])
        yield plain(f"{size_text(module.bytes):>9}  {module.name}{f': {largest}' if largest else ''}")
    yield from _headed("variables that hold some of it", holders(usage))


def _headed(title: str, rows: Iterable[RenderableType]) -> Iterator[RenderableType]:
    """Rows under a title, where there are any."""
    for at, row in enumerate(rows):
        if at == 0:
            yield Text(title, "bold")
        yield row


def parts_table(usage: MemoryUsage, title: str, named: Named = str) -> Table:
    """The categories of the peak. named: what a category is called."""
    table = columns(title, "bytes", "share", "", right=("bytes", "share"), wide=(title, ""))
    for part in usage.parts:
        share = part.bytes / max(1, usage.peak_bytes)
        if share >= LEAST:
            table.add_row(named(part.category), size_text(part.bytes), f"{share:.0%}", ShareBar(share, style="magenta"))
    return table


def lines(usage: MemoryUsage, cwd: str, named: Named = str) -> Iterator[RenderableType]:
    """The lines that allocated most of the peak."""
    for line in usage.lines[:MOST_LINES]:
        if line.bytes >= LEAST * usage.peak_bytes:
            known = f", as {', '.join(line.names)}" if line.names else ""
            inside = f", inside of it {installed_text(line.inside)}" if line.inside else ""
            where = at_place(framed(line.where), cwd, " ")
            yield plain(f"{size_text(line.bytes):>9}  {named(line.category)}{known}{where}{inside}")


def holders(usage: MemoryUsage) -> Iterator[RenderableType]:
    """The variables that hold most of the peak."""
    for one in usage.holders[:MOST_LINES]:
        if one.bytes >= LEAST * usage.peak_bytes:
            tensors = f", {one.blocks} tensors" if one.blocks > 1 else ""
            yield plain(f"{size_text(one.bytes):>9}  {one.name}{tensors}")


def _basis(usage: MemoryUsage) -> Iterator[str]:
    """What the numbers are of."""
    yield usage.device
    yield f"{size_text(usage.between_bytes)} at the end"
    if usage.source == "operations":
        yield "results of torch's operations; what one takes inside is not seen"
        return
    yield f"the allocator holds {size_text(usage.reserved_bytes)}"
    if usage.mallocs:
        yield f"{number(usage.mallocs, 'call')} of cudaMalloc in it"
    if usage.used_bytes and usage.total_bytes:
        outside = usage.used_bytes - usage.reserved_bytes
        yield f"{size_text(usage.used_bytes)} of {size_text(usage.total_bytes)} in use on the device"
        if outside > 0:
            yield f"{size_text(outside)} of it outside of the allocator (contexts, NCCL, other processes)"


def difference_block(found: MemoryDiff) -> Iterator[RenderableType]:
    """What made the difference between two peaks."""
    more = found.after_bytes - found.before_bytes
    exact = f"{abs(more):,} bytes {'more' if more > 0 else 'less'}" if more else "the same to the byte"
    yield plain(
        f"memory at the peak: {size_text(found.before_bytes)} before, {size_text(found.after_bytes)} after, {exact}",
        "bold",
    )
    for title, changes in (("category", found.categories), ("line", found.lines[:MOST_LINES])):
        if changes:
            yield Tabled(_changes(title, changes))


def _changes(title: str, changes: Sequence[MemoryDifference]) -> Table:
    table = columns(title, "before", "after", "change", right=("before", "after", "change"), wide=(title,))
    for one in changes:
        named = one.category if one.where is None else f"{place_text(framed(one.where))}, {one.category}"
        sign = "+" if one.more > 0 else "−"
        sizes = size_text(one.before_bytes), size_text(one.after_bytes), f"{sign}{size_text(abs(one.more))}"
        table.add_row(plain(named), *sizes)
    return table
