"""Memory against time: of the sets of levers that were tried, those that no other beats in both."""

from collections import defaultdict
from collections.abc import Container, Sequence
from statistics import median

from hotlap.levers._smaller_batch import NAME
from hotlap.records.tune import Point, Trial


def frontier(trials: Sequence[Trial], known: Container[str]) -> tuple[Point, ...]:
    """The fastest first. Starts of a set count together; those with other batches than the command's, made for a
    reference, do not. known: names of levers that a user can put in."""
    sets: dict[str, list[tuple[Trial, float, float]]] = defaultdict(list)
    rows = next((trial.rows for trial in trials if trial.outcome == "measured"), None)
    for trial in trials:
        memory = trial.peak_memory_bytes or trial.peak_rss_bytes
        ours = all(use.name in known and use.name != NAME for use in trial.levers)
        if trial.outcome == "measured" and trial.step_ms and memory and ours:
            times = rows / trial.rows if rows and trial.rows else 1.0
            key = repr(sorted((use.name, sorted(use.settings.items())) for use in trial.levers))
            sets[key].append((trial, trial.step_ms * times, float(memory)))
    points = [
        Point(
            levers=starts[0][0].levers,
            step_ms=median(step for _, step, _ in starts),
            memory_bytes=median(memory for *_, memory in starts),
            starts=len(starts),
        )
        for starts in sets.values()
    ]
    found: list[Point] = []
    for point in sorted(points, key=lambda one: (one.step_ms, one.memory_bytes)):
        if not found or point.memory_bytes < found[-1].memory_bytes:
            found.append(point)
    return tuple(found)
