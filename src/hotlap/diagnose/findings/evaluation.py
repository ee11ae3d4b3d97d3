"""Evaluations take a notable part of the run."""

import ast
from collections.abc import Iterator

from hotlap.diagnose.source import call_of, calls_in, name_of, statements_at
from hotlap.records.diagnosis import Finding, Place

from ._base import Measured

LEAST = 0.2
MOST_OF_THE_RUN = 0.5


def find(measured: Measured) -> Finding | None:
    """Share 0: it is of the run, not of the steps that the others are shares of."""
    if measured.evaluating < LEAST or measured.facts is None:
        return None
    begins = call_of(measured.facts, ("eval",))
    grows = next(_growing(begins), None) if begins is not None else None
    copied = "; what all batches gave is kept, and copied anew for each" if grows is not None else ""
    return Finding(
        id="evaluation",
        bound="unknown",
        share=0.0,
        title=f"evaluations take {measured.evaluating:.0%} of the time{copied}",
        where=grows or begins,
        evidence="steps in which one ran are left out of all other numbers",
        why="`x = torch.cat([x, y])` in a loop copies all that came before each time, and holds it to the end"
        if grows is not None
        else "the model is not trained meanwhile",
        instead="keep sums over batches (`right += (logits.argmax(-1) == y).sum()`), not what all of them gave; "
        "evaluate less often, or fewer batches, under torch.inference_mode() and in larger batches",
        named=grows is not None or measured.evaluating >= MOST_OF_THE_RUN,
    )


def _growing(begins: Place) -> Iterator[Place]:
    """Where, in the function that holds this line, a name is joined with more of its kind in a loop."""
    function = next((one for one in statements_at(begins) if isinstance(one, ast.FunctionDef)), None)
    loops = [one for one in ast.walk(function) if isinstance(one, (ast.For, ast.While))] if function else []
    for assignment in (node for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Assign)):
        targets = {one.id for one in assignment.targets if isinstance(one, ast.Name)}
        for call in calls_in(assignment.value):
            held = {node.id for argument in call.args for node in ast.walk(argument) if isinstance(node, ast.Name)}
            if name_of(call).split(".")[-1] in {"cat", "concat", "concatenate", "vstack", "append"} and targets & held:
                yield Place(file=begins.file, line=call.lineno, function=function.name if function else None)
