"""One line allocates much of the peak."""

from hotlap.records.diagnosis import Finding, framed, installed_text
from hotlap.records.memory import OPTIMIZER, MemoryLine
from hotlap.records.sizes import size_text

from ._base import Measured

LEAST, LEAST_OF_FEW, FEW = 0.3, 0.2, 4
"""Of the peak, and of the peak in so few tensors."""
LEAST_EACH = 0.02
"""Of the peak: a line that a model of many layers calls for each makes many, and that is what the model is."""
LEAST_BYTES = 2**24
INSTEAD = {
    "activations": "a call that does not keep it: `F.scaled_dot_product_attention` for scores and masks, an index for "
    "one-hot rows, `expand` for copies; bf16; or make it again in the backward (`torch.utils.checkpoint`)",
    "temporaries": "compute it in parts, in place (`out=`, `add_`), or by one fused call; a narrower type",
    "outputs": "keep only what the loss needs; compute the loss in parts of the rows",
}


def _large(line: MemoryLine, peak: int) -> bool:
    least = LEAST_OF_FEW if line.blocks <= FEW else LEAST
    large = line.bytes >= max(LEAST_BYTES, least * peak) and line.bytes >= LEAST_EACH * peak * line.blocks
    return line.category in INSTEAD and large


def find(measured: Measured) -> Finding | None:
    """Share 0: it costs memory."""
    usage = measured.usage
    if usage is None:
        return None
    most = max((one for one in usage.lines if _large(one, usage.peak_bytes)), key=lambda one: one.bytes, default=None)
    if most is None:
        return None
    in_step = usage.phase == OPTIMIZER and most.category == "temporaries"
    return Finding(
        id="memory-at-line",
        bound="memory",
        share=0.0,
        title=f"one line makes {most.bytes / usage.peak_bytes:.0%} of the memory peak ({most.category})",
        where=framed(most.where),
        evidence=(f"inside of it {installed_text(most.inside)}; " if most.inside else "")
        + f"{size_text(most.bytes)} of {size_text(usage.peak_bytes)} in {most.blocks} tensors, in the "
        f"{usage.phase}",
        instead="`fused=True` in the optimizer, which updates in place; or `foreach=False`, which is slower"
        if in_step
        else INSTEAD[most.category],
    )
