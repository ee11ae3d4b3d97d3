"""Python outside data, model and optimizer: logging, metrics, batches made by hand, waiting for a value."""

from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms

from ._base import Measured

LEAST = 0.10
MOSTLY = 0.7
WITHOUT_A_PROFILE = "which lines it is takes a profile to tell"
COLLECTS = "; `gc.collect(); gc.freeze()` after the first steps, so that the collector has less to go through"
OF_FUNCTIONS = "of functions, not modules, only the backward is seen"
OF_MODULES = "a module called without gradients, as inside an autograd.Function, is not seen as one"


def find(measured: Measured) -> Finding | None:
    """Share: the `other` phase, where it is not small."""
    share = measured.share("other")
    if share < LEAST or (measured.facts is not None and measured.facts.replayed) or _is_collector(measured):
        return None  # see own_graph.py, garbage_collection.py
    own = measured.loader is None
    bare = not measured.phases.forward and bool(measured.phases.backward)
    return Finding(
        id="host-code",
        bound="unknown",
        share=share,
        title="code of the loop outside data, model and optimizer",
        evidence=f"{ms(measured.phases.other or 0)} of host time a step"
        + (f", {ms(measured.gpu_phases.other or 0)} on the device's clock" if measured.gpu_phases else "")
        + ("; the loop has no DataLoader, so making its batches is in here" if own else ""),
        why=f"{_unseen(measured) if bare else 'the model stands still meanwhile'}; {WITHOUT_A_PROFILE}",
        instead="log every n steps, compute metrics only in these and on the device, make batches ahead"
        + (COLLECTS if _collects(measured) else ""),
    )


def _unseen(measured: Measured) -> str:
    """What else is in here, where only backwards are seen of the model."""
    held = "the forward is" if measured.phases.optimizer else "the forward and the update are"
    modules = measured.facts is not None and measured.facts.forwards
    return f"{held} in here: {OF_MODULES if modules else OF_FUNCTIONS}"


def _is_collector(measured: Measured) -> bool:
    """Whether Python's collector is most of it."""
    host = measured.facts.host if measured.facts else None
    return host is not None and host.gc_ms > MOSTLY * (measured.phases.other or 0.0)


def _collects(measured: Measured) -> bool:
    """Whether Python's cyclic collector takes a notable part of the step."""
    host = measured.facts.host if measured.facts else None
    return host is not None and host.gc_ms >= 0.02 * measured.step_ms
