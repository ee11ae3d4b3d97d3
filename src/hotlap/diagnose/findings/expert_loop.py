"""The host waits for the rows of one expert after another."""

import ast

from hotlap.diagnose.source import calls_in, function_at, name_at
from hotlap.records.diagnosis import Finding, Place

from ._base import Measured

UNTOLD = "; what the waits cost is in the phases, and was not measured"
LOOKS = ("nonzero", "argwhere", "any", "where")
"""Calls that find an expert's rows; `where` with one argument only."""


def find(measured: Measured) -> Finding | None:
    """Share 0: the phases hold the waits, which take a trace to tell."""
    root = measured.root
    if root is None or root.expert_loop is None or not measured.cuda or not measured.drained:
        return None
    where = _loop(*root.expert_loop)
    if where is None:
        return None
    return Finding(
        id="expert-loop",
        bound="launch",
        share=0.0,
        title=f"a loop over the experts of {root.name} waits for the rows of each",
        where=where,
        evidence=f"the device has nothing queued when the host ends a step{UNTOLD}",
        why="only the device knows how many rows an expert gets, so the host waits for each; such shapes can't be "
        "compiled or captured as a whole",
        instead="compute all experts as one product: sort the tokens by expert (`chosen.flatten().argsort()`), stack "
        "the experts' weights, and call torch.nn.functional.grouped_mm (`torch._grouped_mm` in older torch)",
        named=True,
    )


def _loop(file: str, line: int, function: str) -> Place | None:
    """The call in a loop of the function that holds this line."""
    at = Place(file=file, line=line)
    forward = function_at(at)
    loops = [one for one in ast.walk(forward) if isinstance(one, ast.For)] if forward else []
    for call in (call for loop in loops for call in calls_in(loop)):
        name = name_at(call.func)
        if name in LOOKS and (name != "where" or len(call.args) == 1):
            return Place(file=file, line=call.lineno, function=function)
    return None
