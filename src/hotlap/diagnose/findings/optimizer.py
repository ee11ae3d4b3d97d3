"""On the CPU an optimizer updates tensor by tensor, each in several operations. (On a device a trace tells.)"""

from hotlap.levers import answering
from hotlap.levers.host.fused_optimizer import why_not
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.run import Facts, OptimizerFacts

from ._base import Measured, counted

LEAST = 0.2
"""Of the step. A fused kernel took away four fifths of an update of 34% of it, half of one of 21%, a third of 16%."""
SMALL_MS = 0.12
"""Of an update of one tensor, below which issuing its operations takes most: Adam's took 0.07 ms of 64 numbers, 0.13 of
10,000 and 0.8 of 100,000, where a fused kernel took 0.004, 0.013 and 0.18."""
ONE_PASS = "SGD"
"""Without momentum its update is one operation as it is."""


def find(measured: Measured) -> Finding | None:
    """Share: the update, where each optimizer that steps has a fused kernel and does not use it."""
    facts = measured.facts
    share = measured.share("optimizer")
    if facts is None or measured.cuda or share < LEAST or answering("optimizer")[0] in measured.levers:
        return None
    optimizers = facts.optimizers
    if not optimizers or not all(_in_passes(one) and not compiled(one, facts) for one in optimizers):
        return None
    names = " and ".join(dict.fromkeys(one.name for one in optimizers))
    lines = ", ".join(dict.fromkeys(str(one.made[1]) for one in optimizers[1:] if one.made))
    first, took, tensors = optimizers[0], measured.took_ms("optimizer"), sum(one.tensors for one in optimizers)
    return Finding(
        id="optimizer",
        bound="launch" if took < SMALL_MS * tensors else "bandwidth",
        share=share,
        title=f"{names} {'update' if ' and ' in names else 'updates'} tensors one by one, in several passes each",
        where=measured.place_at(first.made) or measured.place_at(first.stepped),
        evidence=f"{counted(tensors, 'tensor')}; the update takes "
        f"{ms(took)} a step{f', with the optimizer of line {lines}' if lines else ''}",
        why="each operation is issued separately and reads and writes a whole tensor, or makes a new one",
        instead=f"`{first.name}(..., fused=True)`: one kernel that passes over parameters, gradients and averages once",
        levers=answering("optimizer"),
        named=True,
    )


def _in_passes(optimizer: OptimizerFacts) -> bool:
    several = optimizer.name != ONE_PASS or optimizer.momentum
    return several and optimizer.devices == ("cpu",) and why_not(optimizer) is None


def compiled(optimizer: OptimizerFacts, facts: Facts) -> bool:
    """Whether torch.compile may have its update, whose operations it fuses."""
    file, _, function = optimizer.stepped or ("", 0, "")
    return any("/optim/" in one.file or (one.file, one.function) == (file, function) for one in facts.compiled)
