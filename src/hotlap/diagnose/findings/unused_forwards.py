"""A model is called with gradients, and no backward goes through what it makes of them."""

from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.run import UnusedFacts

from ._base import Measured, counted

ID = "unused-forwards"
LEAST, SOME = 0.1, 5
"""Of the step, and calls of a line that were looked at, from which they are told."""


def find(measured: Measured) -> Finding | None:
    """Share: on the CPU, what these forwards take, which `compute` is without."""
    took, lines = unused_ms(measured), _lines(measured)
    if not took:
        return None
    most, rows = lines[0], measured.facts.unused if measured.facts else ()
    used = sum(one.calls - one.unused_calls for one in rows), sum(one.rows - one.unused_rows for one in rows)
    return Finding(
        id=ID,
        bound="compute",
        share=measured.of_step(took),
        cost_ms=took,
        title=f"{most.name} computes with gradients, but no backward follows",
        where=measured.place_at(most.place),
        evidence=f"{_calls(most.unused_calls, most.unused_rows, most.steps)} from this line without a backward; "
        f"{_calls(*used, most.steps)} of all models with one; those without take {ms(took)} of the "
        f"{ms(measured.phases.forward or 0.0)} of forwards",
        why="each call builds a graph and keeps what a backward would need",
        instead="to act, to log, or for a target: call it under `torch.no_grad()`, for many rows at once; if nothing "
        "uses the result, remove it",
        named=True,
    )


def unused_ms(measured: Measured) -> float:
    """Ms a step of such forwards, where that is much; 0 on a device, whose time for them is not known."""
    rows = measured.facts.unused if measured.facts else ()
    unused, all_ = sum(one.unused_took_ms for one in _lines(measured)), sum(one.took_ms for one in rows)
    took = (measured.phases.forward or 0.0) * unused / all_ if all_ else 0.0
    on_host = measured.facts is not None and measured.facts.device == "cpu"
    return took if on_host and took >= LEAST * measured.step_ms else 0.0


def _lines(measured: Measured) -> list[UnusedFacts]:
    """Lines with such forwards, most time first."""
    rows = measured.facts.unused if measured.facts else ()
    return sorted((one for one in rows if one.unused_calls >= SOME), key=lambda one: -one.unused_took_ms)


def _calls(calls: int, rows: int, steps: int) -> str:
    """Calls a step and rows of each."""
    each = calls / max(1, steps)
    said = counted(round(each), "call") if each >= 1 or not calls else f"{each:.1f} calls"
    return f"{said} a step" + (f" (of {counted(round(rows / calls), 'row')})" if calls and rows else "")
