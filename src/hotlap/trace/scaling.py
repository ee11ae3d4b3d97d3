"""A trace's times as parts of the run's step: what it tells is a share of its own steps, less what the profiler made
the host take longer; its ms are that share of the step without the profiler."""

import math

import msgspec

from hotlap.records.diagnosis import Finding
from hotlap.records.trace import RankTrace


def step_ms(answers: RankTrace) -> float:
    """The step without the profiler, where it is known."""
    return answers.unprofiled_ms or answers.step_ms


def traced_ms(answers: RankTrace) -> float:
    """A step of the trace without what the profiler adds. That makes hosts slower and not devices: it lies between the
    device's work in it and what it took."""
    return min(answers.step_ms, max(step_ms(answers), answers.step_ms - _idle_ms(answers)))


def per_step_ms(answers: RankTrace, ns: float) -> float:
    """A total of busy time over the window as ms of a step, over the devices of the rank; no more than the step, which
    work of several streams may take together."""
    return min(step_ms(answers), mean_ms(answers, ns) * scale(answers))


def idle_ms(answers: RankTrace, ns: float) -> float:
    """A total of idle time over the window as ms of a step."""
    return per_step_ms(answers, ns * idle_scale(answers))


def host_ms(answers: RankTrace, ns: float) -> float:
    """A total of the host's time over the window as ms of a step, no more than it."""
    part = ns / answers.window.count / 1e6 / answers.step_ms if answers.step_ms else 0.0
    return min(1.0, part) * step_ms(answers)


def idle_scale(answers: RankTrace) -> float:
    """Idle time without the profiler over that under it."""
    profiled = _idle_ms(answers)
    return max(0.0, 1 - (answers.step_ms - traced_ms(answers)) / profiled) if profiled > 0 else 1.0


def _idle_ms(answers: RankTrace) -> float:
    """Under the profiler. Waiting for a later rank counts as idle: it is as long as that rank's host makes it."""
    return mean_ms(answers, sum(one.idle_ns for one in answers.breakdown) + (answers.waited_ns or 0))


def mean_ms(answers: RankTrace, ns: float) -> float:
    """A total over the window and the devices of the rank as ms of a step of the trace."""
    return ns / answers.window.count / max(1, len(answers.breakdown)) / 1e6


def scale(answers: RankTrace) -> float:
    """The run's step over one of the trace: its clocks, its data, its place in the run may be others."""
    traced = traced_ms(answers)
    return step_ms(answers) / traced if traced > 0 else 1.0


def share(answers: RankTrace, ms: float) -> float:
    """ms of a step as a share of it, at most 1."""
    return min(1.0, ms / step_ms(answers)) if step_ms(answers) else 0.0


def at_most_the_step(answers: RankTrace, finding: Finding) -> Finding:
    """With a cost that is no more than the step."""
    if finding.cost_ms is None or finding.cost_ms <= step_ms(answers):
        return finding
    return msgspec.structs.replace(finding, cost_ms=step_ms(answers))


def predicted_ms(answers: RankTrace, change: str) -> float | None:
    """What a change would win, ms a step, by the share that the replay predicts; None where it was not replayed."""
    if answers.replay is None:
        return None
    found = next((one for one in answers.replay.predictions if one.change == change), None)
    if found is None or not math.isfinite(found.gain):
        return None
    return max(0.0, 1 - 1 / found.gain) * step_ms(answers) if found.gain > 0 else 0.0
