"""The device waits for kernels to be launched."""

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.trace import Launches, RankTrace

from ..scaling import host_ms, idle_ms, share
from ._base import between_waits, dearest, idle, inside, total

SOFTMAX = ("aten::softmax", "aten::_softmax")
"""Of attention by hand; that of a cross-entropy is another."""
CUDNN_ATTENTION = "aten::_cudnn_attention_"
PLANS_NS = 1_000_000
"""Own host time of a call, on average: with a plan it takes a tenth of that, to make one 45 times as much."""
WHY = "each operation is small: the host issues it more slowly than the device runs it"
INSTEAD = "compile the model, with CUDA graphs where shapes are static; fuse the optimizer; larger batches"
WHY_PLANS = "cuDNN's attention makes a new plan for each new shape, and lengths vary here"
WITHOUT_CUDNN = "torch.backends.cuda.enable_cudnn_sdp(False), or pad lengths to a few"


def find(answers: RankTrace) -> list[Finding]:
    """Idle time while the host dispatches ops and launches, but for what lies between many waits."""
    waits = between_waits(answers)
    gaps = [gap for gap in idle(answers, "launch") if inside(gap.where) not in waits]
    ns = total(gaps)
    made = answers.launches
    if not ns or made is None:
        return []
    calls = made.count / answers.window.count  # one of them may launch a graph of many kernels
    kernels = max(1, sum(one.kernels for one in answers.breakdown))
    mean_us = sum(one.kernel_ns for one in answers.breakdown) / kernels / 1e3
    cost = idle_ms(answers, ns)
    plans = _plans(answers)
    where, part = dearest(gaps)
    most = f"; {part:.0%} of it in {where.function}" if where and where.function else ""
    return [
        Finding(
            id="launch",
            bound="launch",
            share=share(answers, cost),
            cost_ms=cost,
            title="the device waits for its kernels to be launched",
            where=where,
            evidence=f"idle {ms(cost)} a step under dispatch; {calls:.0f} launches a step{_graphs(answers, made)}, "
            f"{min(1.0, made.tiny / kernels):.0%} of kernels under {made.tiny_below_ns / 1e3:.0f} µs, "
            f"{mean_us:.0f} µs on average; queue {made.queue_depth_mean:.1f} deep{plans}{most}",
            why=WHY_PLANS if plans else WHY,
            instead=f"{WITHOUT_CUDNN}; {INSTEAD}" if plans else INSTEAD,
            levers=_levers(answers),
        )
    ]


def _plans(answers: RankTrace) -> str:
    """What cuDNN's attention takes on the host where it plans for shapes that it has not seen, as words; empty where it
    does not."""
    rows = [row for row in answers.host if row.name.startswith(CUDNN_ATTENTION) and row.ns > PLANS_NS * row.count]
    if not rows:
        return ""
    cost = host_ms(answers, sum(row.ns for row in rows))
    return f"; {ms(cost)} a step of the host in {rows[0].name}, {ms(rows[0].ns / rows[0].count / 1e6)} a call"


def _graphs(answers: RankTrace, made: Launches) -> str:
    """How many of the launches are of graphs, and what these run."""
    if not made.graph_launches:
        return ""
    count = answers.window.count
    return f" ({made.graph_launches / count:.3g} of CUDA graphs, with {made.graph_kernels / count:.0f} kernels)"


def _levers(answers: RankTrace) -> tuple[str, ...]:
    """Those that issue fewer kernels, where what they replace is in the trace."""
    phases = {note.name for note in answers.annotations}
    absent: set[str] = set()
    if "hotlap:backward" not in phases:
        absent.update(answering("backward"))
    if not any(row.by == "op" and row.key in SOFTMAX for row in answers.kernels):
        absent.update(answering("attention"))
    if not any(name.startswith("Optimizer.step") for name in phases):
        absent.update(answering("update-launches"))
    return tuple(name for name in answering("launches") if name not in absent)
