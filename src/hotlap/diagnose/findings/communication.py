"""On the CPU: DistributedDataParallel's backward waits for the other ranks' gradients."""

from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.run import RootFacts

from ._base import Measured

LEAST = 0.05
WRAPPER = "DistributedDataParallel"
INSTEAD = (
    "exchange less often (accumulate gradients under no_sync), or less data: sparse embedding gradients, a "
    "communication hook that sends bfloat16"
)
TO_TELL = "to see the cost, time the same steps under no_sync(), which exchanges nothing"


def find(measured: Measured) -> Finding | None:
    """Share: of the backward what DistributedDataParallel itself measured; where it did not, all of the backward, of
    which is then not known what limits it. On CUDA the exchange is kernels, which a trace shows."""
    share, exposed = exchange_share(measured), exposed_part(measured)
    root = _root(measured)
    if share < LEAST or root is None or measured.facts is None:
        return None
    backward_ms, among = measured.phases.backward or 0.0, f"between {measured.facts.world} ranks"
    if exposed is None:
        return Finding(
            id="backward",
            bound="unknown",
            share=share,
            title=f"the backward of {root.name}, with the exchange of gradients {among}",
            where=measured.place_of(root),
            evidence=f"backward {ms(backward_ms)}; how much of it is exchange was not measured",
            why="the backward ends when the gradients of all ranks have arrived, so it computes and waits",
            instead=f"{TO_TELL}; then {INSTEAD}",
        )
    told = root.exchange
    hidden = told.hidden_ms / told.exchange_ms if told and told.exchange_ms else 0.0
    return Finding(
        id="communication",
        bound="communication",
        share=share,
        title=f"exchanging gradients {among} in the backward",
        where=measured.place_of(root),
        evidence=f"{ms(exposed * backward_ms)} of a backward of {ms(backward_ms)}, by {WRAPPER}'s own timing of the "
        f"first ten and then one in a hundred; {hidden:.0%} of the exchange is hidden",
        why="the backward ends when the gradients of all ranks have arrived; waiting for a late rank is included",
        instead=f"{INSTEAD}; {TO_TELL}",
    )


def exchange_share(measured: Measured) -> float:
    """The share of the step that `find` claims of the backward, so that `compute` does not."""
    exposed = exposed_part(measured)
    share = measured.share("backward") * (1.0 if exposed is None else exposed)
    return share if share >= LEAST else 0.0


def exchange_part(measured: Measured, name: str) -> float:
    """Of a phase, the share (0 to 1) that `find` claims."""
    return exchange_share(measured) / measured.share(name) if name == "backward" and exchange_share(measured) else 0.0


def _root(measured: Measured) -> RootFacts | None:
    """The module that exchanges gradients, where one does, which need not be the largest."""
    roots = measured.facts.roots if measured.facts is not None else ()
    return next((root for root in roots if root.exchange is not None or root.wrapper == WRAPPER), measured.root)


def exposed_part(measured: Measured) -> float | None:
    """Of the backward, what is exchange that no computing hides: 0 where none can be, None where it is not known."""
    facts, root = measured.facts, _root(measured)
    if measured.cuda or facts is None or facts.world < 2 or facts.device != "cpu" or root is None:
        return 0.0
    told = root.exchange
    if told is None or told.exchange_ms is None or told.compute_ms is None:
        return 0.0 if told is None and root.wrapper != WRAPPER else None
    alone = max(0.0, told.exchange_ms - told.hidden_ms)
    whole = told.backwards * told.compute_ms + alone
    return alone / whole if whole else 0.0
