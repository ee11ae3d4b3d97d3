"""The model's own arithmetic is what the step consists of."""

from hotlap.records.diagnosis import Finding
from hotlap.records.run import RootFacts

from ._base import Measured

LEVERS = ("bf16-autocast", "tf32", "compile", "fused-optimizer", "channels-last", "cudnn-benchmark", "cpu-threads")


def find(measured: Measured) -> Finding | None:
    """Share: forward, backward and optimizer, unless the device only waits for launches there."""
    share = measured.share("forward", "backward", "optimizer")
    if measured.drained or share <= 0:
        return None
    root = measured.root
    times = measured.gpu_phases or measured.phases
    parts = ", ".join(f"{name} {getattr(times, name) or 0:.1f} ms" for name in ("forward", "backward", "optimizer"))
    queued = f"; {measured.backlog_ms:.1f} ms queued at its end" if measured.backlog_ms is not None else ""
    return Finding(
        id="compute",
        bound="compute",
        share=share,
        title=f"computing {root.name}" if root else "computing",
        where=measured.place_of(root, f"{root.name}.forward" if root else ""),
        evidence=f"{parts}{queued}"
        + (f"; {', '.join(root.dtypes)} weights, {_precision(root, measured.levers)}" if root else ""),
        why="whether arithmetic or memory traffic limits it takes a trace to tell",
        instead="lower precision on the tensor cores, compiled and fused kernels, a better memory format",
        levers=LEVERS,
    )


def _precision(root: RootFacts, levers: tuple[str, ...]) -> str:
    """The script's own autocast, and the levers of this run that change how it computes."""
    own = f"the script's autocast {root.autocast or 'off'}"
    return f"{own}, with {', '.join(levers)}" if levers else own
