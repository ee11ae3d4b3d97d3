"""A backward goes on into a model whose gradients of it are thrown away."""

from hotlap.records.diagnosis import Finding

from ._base import Measured

LEAST = 0.15
"""Of the backwards that were looked at: one in six, as where several are of one update."""


def find(measured: Measured) -> Finding | None:
    """Share: on the CPU, of the backward the part that it goes on; on a device it is not known."""
    wasted = measured.facts.wasted if measured.facts else None
    if wasted is None or wasted.share < LEAST or not measured.share("backward"):
        return None
    known = measured.gpu_phases is None
    share = measured.share("backward") * wasted.part if known else 0.0
    return Finding(
        id="wasted-backward",
        bound="compute",
        share=share,
        cost_ms=share * measured.step_ms if known else None,
        title="a backward goes on into a model that it does not train",
        where=measured.place_at(wasted.place),
        evidence=f"{wasted.share:.0%} of the backwards reach parameters whose gradients are zeroed before their "
        f"optimizer steps; the host spends {wasted.part:.0%} of its backward time there",
        why="for example, a discriminator's loss on samples that are not detached goes back through the generator, "
        "and those gradients are thrown away",
        instead="cut the graph between them: `discriminator(fake.detach())`, or make the input under `torch.no_grad()`",
        named=True,
    )
