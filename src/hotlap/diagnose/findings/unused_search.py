"""DistributedDataParallel looks for unused parameters in each step, and found none in those that it tells of."""

from hotlap.diagnose.source import call_of
from hotlap.records.diagnosis import Finding

from ._base import Measured
from .communication import WRAPPER


def find(measured: Measured) -> Finding | None:
    """Share 0: what the search costs was not measured."""
    facts = measured.facts
    root = next((one for one in facts.roots if one.exchange and one.exchange.searches), None) if facts else None
    if root is None or root.exchange is None or root.exchange.unused:
        return None
    return Finding(
        id="unused-search",
        bound="communication",
        share=0.0,
        title=f"{WRAPPER} looks for unused parameters in each step",
        where=call_of(facts, (WRAPPER, "DDP")) or measured.place_of(root),
        evidence="find_unused_parameters=True; in the sampled backwards (ten, then one in a hundred) none was unused",
        why="after each forward it walks the graph from the outputs to all parameters",
        instead=f"`{WRAPPER}(model)` without it raises an error if one ever is unused; use `static_graph=True` if the "
        "same ones are unused in each step",
    )
