"""From one step on each takes longer, as something begins there."""

from hotlap.diagnose.jumps import jump_text
from hotlap.diagnose.steps import GROWN
from hotlap.records.diagnosis import Bound, Finding

from ._base import MODEL, Measured

BEGINS = {
    "trained": (
        "more of the model is trained",
        "tensors that an optimizer holds and that want a gradient: {}, then {}",
        "the backward goes on into layers that were frozen, and what it needs of them is kept",
        "thaw the last layers alone, or later; what stays frozen before them runs under torch.no_grad()",
    ),
    "backwards": (
        "more losses go backward in each",
        "backwards in a step: {}, then {}",
        "each goes through all of its graph by itself",
        "add the losses and go backward once; or the further one in one step of several",
    ),
    "evaluation": (
        "forwards without gradients come to each",
        "steps with a forward in eval mode or without gradients: hardly any, then most",
        "the model is not trained meanwhile",
        "every n steps, under torch.inference_mode() and in larger batches; one forward for both where they are alike",
    ),
    "compiled": (
        "torch.compile had something to compile just before",
        "graphs that were compiled in the steps before: {}, then {}",
        "what fits none of the graphs gets one more, for sizes that vary, and beyond torch's limit of graphs none: "
        "then it runs in eager mode",
        "inputs of the same sizes, dtypes and settings in each step; `torch._dynamo.mark_dynamic` for a size that "
        "varies; TORCH_LOGS=recompiles tells why",
    ),
}


def find(measured: Measured) -> Finding | None:
    """Share: of the mean step what it is longer than those before, of as many rows. Not where nothing is seen to have
    changed there, or the rows alone."""
    jump = measured.jump
    if jump is None or jump.changed is None:
        return None
    kind, *numbers = jump.changed
    was, now = jump.rows or (1, 1)
    before = jump.before_ms * max(1.0, now / was)
    if jump.after_ms <= GROWN * before:
        return None
    what, seen, why, instead = BEGINS[kind]
    inside: Bound = "launch" if measured.cuda and measured.drained else "compute"
    lost = max(0.0, measured.step_ms - before)
    return Finding(
        id="steps-jump",
        bound=inside if jump.phase in MODEL else "unknown",
        share=min(1.0, lost / measured.step_ms),
        cost_ms=lost,
        title=f"from step {jump.step} on each takes {jump.after_ms / jump.before_ms:.1f} times as long: {what}",
        where=jump.where,
        evidence=f"{jump_text(jump)}; {seen.format(*numbers)}",
        why=why,
        instead=instead,
        named=True,
    )
