"""Evaluations take a notable part of the run."""

from hotlap.diagnose.source import call_of, growing
from hotlap.records.diagnosis import MUCH, Finding

from ._base import Measured

TITLE = "evaluations of the model"
LEAST = 0.2
WITHOUT_GRADIENTS = ("inference_mode", "set_grad_enabled")
"""Not `no_grad`, under which averages of weights and metrics are made as often."""
LESS = "evaluate less often, or fewer batches"
SUMS = "keep sums over batches (`right += (logits.argmax(-1) == y).sum()`), not all outputs; "


def find(measured: Measured) -> Finding | None:
    """Share 0: it is of the loop, not of the steps that the others are shares of; the verdict has all of the loop."""
    if measured.evaluating < LEAST or measured.facts is None:
        return None
    begins = call_of(measured.facts, ("eval",)) or call_of(measured.facts, WITHOUT_GRADIENTS)
    grows = next(growing(begins.file, begins.line), None) if begins is not None else None
    copied = "; the outputs of all batches are kept, and copied again for each batch" if grows is not None else ""
    return Finding(
        id="evaluation",
        bound="unknown",
        share=0.0,
        title=TITLE + copied,
        where=grows or begins,
        evidence=f"steps with an evaluation take {measured.evaluating:.0%} of the time after warm-up; step times and "
        "phases leave them out",
        why="`x = torch.cat([x, y])` in a loop copies everything before it each time and keeps it to the end"
        if grows is not None
        else "the model is not trained meanwhile",
        instead=(SUMS if grows is not None else "") + f"{LESS}, under torch.inference_mode() and in larger batches",
        named=grows is not None or measured.evaluating >= MUCH,
    )
