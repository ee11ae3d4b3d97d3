"""The whole sequence goes through the model for each new token."""

from hotlap.diagnose.source import call_of
from hotlap.records.diagnosis import Finding

from ._base import Measured

REPLACES = ("steps-grow",)
OFTEN, LEAST = 0.6, 4
"""Share of the first forwards that got one token more than the one before, and lengths that they came in. Batches of
sorted texts grow by one now and then."""


def find(measured: Measured) -> Finding | None:
    """Share 0: the phases hold what it costs, which takes a run with a cache to tell."""
    facts, root = measured.facts, measured.root
    if facts is None or root is None or facts.mode != "inference" or root.grows < OFTEN or root.shapes < LEAST:
        return None
    return Finding(
        id="whole-sequence",
        bound="compute",
        share=0.0,
        title=f"the whole sequence goes through {root.name} for each new token",
        where=call_of(facts, ("generate",)) or measured.place_of(root),
        evidence=f"{root.grows:.0%} of its first forwards got one token more than the one before; the cost is in the "
        "phases and was not measured",
        why="earlier tokens are computed again, so each new token takes longer than the last",
        instead="keep keys and values and pass only the new token: with transformers `use_cache=True`, or "
        '`cache_implementation="static"` if it is compiled; for a recurrent model, keep its state',
        named=True,
    )
