"""From one step on each takes longer, as something begins there."""

from hotlap.diagnose.jumps import jump_text
from hotlap.diagnose.steps import GROWN
from hotlap.records.diagnosis import Bound, Finding

from ._base import MODEL, Measured

BEGINS = {
    "trained": (
        "more of the model is trained",
        "trainable tensors in optimizers: {}, then {}",
        "the backward now goes through layers that were frozen, and their activations are kept",
        "unfreeze only the last layers, or later; run the frozen layers before them under torch.no_grad()",
    ),
    "backwards": (
        "there are more backwards in each",
        "backwards in a step: {}, then {}",
        "each goes through its whole graph",
        "add the losses and call one backward; or use the extra loss only every few steps",
    ),
    "evaluation": (
        "each also runs forwards without gradients",
        "steps with a forward in eval mode or without gradients: hardly any, then most",
        "the model is not trained meanwhile",
        "run them every n steps, under torch.inference_mode() and in larger batches; share one forward if it is "
        "the same",
    ),
    "compiled": (
        "torch.compile had something to compile just before",
        "graphs that were compiled in the steps before: {}, then {}",
        "calls that fit no graph compile another one; beyond torch's limit they run in eager mode",
        "keep input sizes, dtypes and settings the same; `torch._dynamo.mark_dynamic` for a size that varies; "
        "TORCH_LOGS=recompiles shows why",
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
        share=min(1.0, measured.of_step(lost)),
        cost_ms=lost,
        title=f"from step {jump.step} on each takes {jump.after_ms / jump.before_ms:.1f} times as long: {what}",
        where=jump.where,
        evidence=f"{jump_text(jump)}; {seen.format(*numbers)}",
        why=why,
        instead=instead,
        named=True,
    )
