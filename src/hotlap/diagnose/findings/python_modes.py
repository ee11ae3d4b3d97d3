"""Modes in Python that torch tells of each operation are on in the loop."""

from hotlap.diagnose.source import call_of
from hotlap.records.diagnosis import Finding

from ._base import LEAST_COST, Measured

ID = "python-modes"
MODULE_MS = 0.02
"""What a module costs more at least in a step, forward and backward: a handful of operations at 5 µs each."""
KNOWN = {"FlopCounterMode": "25 µs", "DebugMode": "40 µs"}
"""What an operation was measured to take longer, on one core at 2 to 3 GHz."""


def find(measured: Measured) -> Finding | None:
    """Share 0: the phases hold what they cost; a trace tells how much it is at most (`profiled._with_ops`). Of modes
    that see functions alone, which may cost next to nothing, it is no cause."""
    facts, root = measured.facts, measured.root
    dispatch = facts.dispatch_modes if facts else ()
    found = dispatch or (facts.function_modes if facts else ())
    if not found or root is None or not measured.host_matters:
        return None
    if root.modules * MODULE_MS < LEAST_COST * measured.step_ms:
        return None
    name, sees = found[0], "operation of forward and backward" if dispatch else "call of a torch function"
    return Finding(
        id=ID,
        bound="launch",
        share=0.0,
        title=f"each operation goes through {' and '.join(found)}, in Python",
        where=call_of(facts, found) or measured.place_at(root.called) or measured.place_of(root),
        evidence=f"{name} was on in half of the model's forwards or more",
        why=f"torch calls the mode for each {sees}, which adds {KNOWN.get(name, '5 µs or more')} however small it is",
        instead="if it only counts or records, use it in one step, as the next ones are the same: `with "
        f"{name}(...) if step == 0 else contextlib.nullcontext():`",
        named=bool(dispatch),
    )
