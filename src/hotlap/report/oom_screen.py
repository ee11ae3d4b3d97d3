"""Where memory ran out: what was asked for, what was live, and what leaves more."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from ..records.diagnosis import framed
from ..records.memory import MemoryUsage
from ..records.ran_out import MemoryChange, RanOut
from ..records.run import Run
from ..records.sizes import size_text
from .console import Parts, Screen, at_place, number, plain
from .memory_screen import holders, lines, parts_table
from .run_screen import in_environment

NOTABLE: Final = 1 << 30
"""Bytes in use on the device as the command began, from which they are told."""
HOST_REST: Final = "in no variable (activations, and torch and Python themselves)"


def oom_screen(told: RanOut, run: Run) -> RenderableType:
    """The screen; one line where the script went on."""
    if told.went_on:
        return Screen(
            plain(
                f"memory ran out{_of(told)}{at_place(framed(told.where), run.cwd, ' ')}, and the script went on",
                "yellow",
            )
        )
    return Screen(*_blocks(told, run))


def _blocks(told: RanOut, run: Run) -> Iterator[RenderableType]:
    yield Parts(_headline(told, run.cwd), "bold red")
    yield Parts(_memory(told), "dim")
    if told.usage is not None and told.usage.parts:
        yield from _live(told, told.usage, run.cwd)
    yield from _changes(told)
    yield plain("next: try levers until it fits", "dim")
    yield in_environment(run.environment, "hotlap", "tune", "--objective", "memory", *run.command)


def _headline(told: RanOut, cwd: str) -> Iterator[str]:
    if told.killed:
        sure = "" if told.certain else "probably "
        yield f"host memory ran out: the kernel {sure}killed a process of the command"
        yield f"after {number(told.step, 'step')}" if told.step else "before the first step"
        return
    yield f"memory ran out{_of(told)}{at_place(framed(told.where), cwd, ' ')}"
    if told.step and told.phase != "before the loop":
        yield f"in the {told.phase} of step {told.step}"
    else:
        yield told.phase
    if told.rank is not None and (told.rank or told.ranks > 1):
        yield f"rank {told.rank}" + (f", and {number(told.ranks - 1, 'other')}" if told.ranks > 1 else "")


def _of(told: RanOut) -> str:
    where = "host" if told.device == "cpu" else told.device
    more = f": {size_text(told.asked_bytes)} more were asked for" if told.asked_bytes is not None else ""
    return f" ({where}){more}"


def _memory(told: RanOut) -> Iterator[str]:
    """What there is, and who has it."""
    usage = told.usage
    if told.device == "cpu":
        if told.resident_bytes is not None:
            of = f" of {size_text(told.total_bytes)}" if told.total_bytes else ""
            yield f"{size_text(told.resident_bytes)}{of} resident at the most"
        return
    if usage is not None:
        whole = f" of {size_text(told.total_bytes)}" if told.total_bytes else ""
        yield f"{size_text(usage.peak_bytes)}{whole} allocated"
        unused = max(0, usage.reserved_bytes - usage.peak_bytes)
        yield f"{size_text(unused)} held free in pieces, the largest {size_text(usage.free_bytes)}"
    if told.free_bytes is not None:
        yield f"{size_text(told.free_bytes)} free on the device"
    if told.outside_bytes:
        yield f"{size_text(told.outside_bytes)} outside of torch (CUDA itself, other processes)"
    if told.before_bytes is not None and told.before_bytes >= NOTABLE:
        yield f"{size_text(told.before_bytes)} were in use before the command began"


def _live(told: RanOut, usage: MemoryUsage, cwd: str) -> Iterator[RenderableType]:
    named = partial(_named, told)
    yield parts_table(usage, "what was live", named)
    found = list(lines(usage, cwd, named))
    yield from found or holders(usage)


def _named(told: RanOut, category: str) -> str:
    if category == "activations" and not told.distinct:
        return "activations and temporaries"
    return HOST_REST if category == "unknown" and told.device == "cpu" else category


def _changes(told: RanOut) -> Iterator[RenderableType]:
    """The cheapest, each with what it gives and costs."""
    if not told.changes:
        yield plain("no change is known that gives much here; a smaller batch does", "yellow")
        return
    alone = any(one.enough for one in told.changes) or not told.lacks_bytes
    few = "together they may do" if told.together else "together they do not do"
    few = f"each gives only a part of the {size_text(told.lacks_bytes or 0)} that lacked; {few}"
    yield Text(f"what leaves more memory, the cheapest first{'' if alone else f' ({few})'}", "bold")
    for at, one in enumerate(told.changes, 1):
        yield plain(f"{at} {one.lever}: {one.what}" if one.lever else f"{at} {one.what}")
        yield Padding(Parts(_change(one), "dim"), (0, 0, 0, 2))


def _change(one: MemoryChange) -> Iterator[str]:
    yield f"gives {one.bound} {size_text(one.gives_bytes)}" if one.gives_bytes is not None else ""
    yield f"costs {one.costs}" if one.costs else ""
    yield one.risk
    yield one.code.splitlines()[0] if one.code else ""
