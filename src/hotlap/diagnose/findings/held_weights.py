"""A variable holds what looks like a second copy of the weights while the model trains."""

from hotlap.records.diagnosis import Finding
from hotlap.records.sizes import size_text

from ._base import Measured

LEAST = 0.05
"""Of the peak."""


def find(measured: Measured) -> Finding | None:
    """Share 0: it costs memory."""
    usage = measured.usage
    # A module's are a target's, a teacher's or an average's, which the training needs.
    copies = [one for one in usage.holders if one.weights and "[" in one.name] if usage is not None else []
    most = max(copies, key=lambda one: one.bytes, default=None)
    if usage is None or most is None or most.bytes < LEAST * usage.peak_bytes:
        return None
    return Finding(
        id="held-weights",
        bound="memory",
        share=0.0,
        title=f"`{most.name}` holds {size_text(most.bytes)} while the model trains: a second copy of the weights",
        evidence=f"{most.blocks} tensors with the sizes of the model's parameters; the peak is "
        f"{size_text(usage.peak_bytes)}",
        instead="load with `map_location='cpu'` and `del` it once the model has it (`load_state_dict(state, "
        "assign=True)` copies nothing); keep an average or a teacher that is needed at times on the CPU",
    )
