"""An optimizer that goes over the parameters many times."""

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.trace import RankTrace

from ..scaling import per_step_ms, predicted_ms, share


def find(answers: RankTrace) -> list[Finding]:
    """Where the replay predicts that one pass would be faster; share: the device time of `Optimizer.step`."""
    cost = predicted_ms(answers, "fused_optimizer")
    stepping = [row for row in answers.annotations if row.name.startswith("Optimizer.step")]
    if cost is None or cost <= 0 or not stepping:
        return []
    busy = sum(row.busy_ns for row in stepping)
    kernels = sum(row.kernels for row in stepping) / answers.window.count
    return [
        Finding(
            id="optimizer",
            bound="bandwidth",
            share=share(answers, per_step_ms(answers, busy)),
            cost_ms=cost,
            title=f"{stepping[0].name.removeprefix('Optimizer.step#')} in {kernels:.0f} kernels",
            evidence=f"{ms(per_step_ms(answers, busy))} of device time a step in {kernels:.0f} kernels",
            why="each kernel reads and writes all parameters, gradients or moments again",
            instead="fused=True: one pass over them",
            levers=answering("optimizer"),
        )
    ]
