"""The model is evaluated in each step."""

from hotlap.diagnose.source import call_of
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms

from ._base import Measured
from .evaluation import WITHOUT_GRADIENTS

LEAST = 0.2
REPLACES = ("host-code",)


def find(measured: Measured) -> Finding | None:
    """Share: the `other` phase, which holds forwards without gradients, at most."""
    facts, share = measured.facts, measured.share("other")
    if facts is None or not measured.evaluates_itself or share < LEAST:
        return None
    took = measured.took_ms("other")
    return Finding(
        id="evaluation-each-step",
        bound="unknown",
        share=share,
        cost_ms=took,
        title="the model is evaluated in each step",
        where=call_of(facts, ("eval",)) or call_of(facts, WITHOUT_GRADIENTS),
        evidence="most steps contain forwards in eval mode; with these, code outside of data, model and optimizer "
        f"takes {ms(took)} of a step",
        why="the model is not trained meanwhile",
        instead="evaluate every n steps or once an epoch, under torch.inference_mode() and in larger batches",
        named=True,
    )
