"""An evaluation or a checkpoint, not training, sets the peak of memory."""

from hotlap.diagnose.source import growing
from hotlap.records.diagnosis import PEAK, Finding
from hotlap.records.run import Facts, RaisedFacts

from ._base import Measured
from .evaluation import SUMS

MORE, LEAST_BYTES = 1.1, 2**28
"""Times what training had reached, and bytes beyond that, which libraries that are loaded meanwhile do not take."""
ABOUT = 1.02
"""Of the run's peak: a part that came later, and set no other one."""
TITLES = {
    "evaluation": "the memory peak comes from forwards without gradients (an evaluation), not from training",
    "checkpoint": "the memory peak comes from writing a checkpoint, not from training",
}
GRADED = "the memory peak comes from an evaluation that keeps its graph, not from training"
LEANER = (
    "use a smaller batch there; keep numbers of each batch (`loss.item()`, sums), not its outputs or graph; "
    "move what must be kept to the CPU (`.cpu()`)"
)
SAVED = {
    "device": "copy the state to the CPU, tensor by tensor: `{name: value.cpu() for name, value in "
    "model.state_dict().items()}`",
    "host": "write to the file itself, not to bytes in memory (`io.BytesIO`), and save the tensors themselves, not "
    "copies (`deepcopy`, `clone`); split a large model into several files",
}


def find(measured: Measured) -> Finding | None:
    """Share 0: it costs memory. Where most steps hold such forwards, as a teacher's, they are the step's own."""
    facts = measured.facts
    raised = [one for one in facts.raised if _matters(one, facts, measured.evaluates)] if facts is not None else []
    most = max(raised, key=lambda one: (one.memory == "device", one.peak_bytes), default=None)
    if most is None:
        return None
    place, evaluates = measured.place_at(most.place), most.kind == "evaluation"
    grows = next(growing(place.file, place.line), None) if place is not None and evaluates else None
    of = "tensors on the GPU" if most.memory == "device" else "the process"
    before, peak = most.training_bytes / 2**30, most.peak_bytes / 2**30
    within = "`torch.no_grad()` around it; " if most.gradients else ""
    return Finding(
        id=PEAK,
        bound="memory",
        share=0.0,
        title=GRADED if most.gradients and evaluates else TITLES[most.kind],
        where=grows or place,
        evidence=f"{of} took {peak:.1f} GiB at most here; training had taken {before:.1f} GiB at most, so this adds "
        f"{peak - before:.1f} GiB or more",
        why="without it, training could use a larger batch or a smaller machine",
        instead=within + (SUMS if grows is not None else "") + LEANER if evaluates else SAVED[most.memory],
    )


def _matters(one: RaisedFacts, facts: Facts, each_step: bool) -> bool:
    whole = facts.peak_rss_bytes if one.memory == "host" else facts.memory.peak_bytes if facts.memory else None
    more = one.peak_bytes >= MORE * one.training_bytes and one.peak_bytes - one.training_bytes >= LEAST_BYTES
    own = each_step and one.kind == "evaluation"
    return more and not own and one.training_bytes > 0 and (whole or 0) <= ABOUT * one.peak_bytes
