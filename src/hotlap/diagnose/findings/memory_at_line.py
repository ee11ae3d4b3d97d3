"""One line allocates much of the peak."""

from hotlap.records.diagnosis import Finding, framed
from hotlap.records.memory import OPTIMIZER
from hotlap.records.sizes import size_text

from ._base import Measured

LEAST, LEAST_BYTES = 0.3, 2**24
"""Of the peak, and bytes."""
INSTEAD = {
    "activations": "a call that does not keep it: `F.scaled_dot_product_attention` for scores and masks, an index for "
    "one-hot rows, `expand` for copies; bf16; or make it again in the backward (`torch.utils.checkpoint`)",
    "temporaries": "compute it in parts, in place (`out=`, `add_`), or by one fused call; a narrower type",
    "outputs": "keep only what the loss needs; compute the loss in parts of the rows",
}


def find(measured: Measured) -> Finding | None:
    """Share 0: it costs memory."""
    usage = measured.usage
    lines = [one for one in usage.lines if one.category in INSTEAD] if usage is not None else []
    most = max(lines, key=lambda one: one.bytes, default=None)
    if usage is None or most is None or most.bytes < max(LEAST_BYTES, LEAST * usage.peak_bytes):
        return None
    in_step = usage.phase == OPTIMIZER and most.category == "temporaries"
    return Finding(
        id="memory-at-line",
        bound="memory",
        share=0.0,
        title=f"one line makes {most.bytes / usage.peak_bytes:.0%} of the memory peak ({most.category})",
        where=framed(most.where),
        evidence=f"{size_text(most.bytes)} of {size_text(usage.peak_bytes)} in {most.blocks} tensors, in the "
        f"{usage.phase}",
        instead="`fused=True` in the optimizer, which updates in place; or `foreach=False`, which is slower"
        if in_step
        else INSTEAD[most.category],
    )
