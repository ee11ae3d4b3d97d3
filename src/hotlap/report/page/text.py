"""Words and numbers of the page."""

from collections.abc import Callable
from typing import Final

from markupsafe import Markup, escape

from ...records import durations
from ...records.page import Page
from ...records.trace import RankTrace
from ...records.tune import Tune
from .. import console, trace_screen

TERMS: Final = {
    "step": "one turn of the training loop: one optimizer step with the forwards and backwards before it",
    "steady": "after warm-up, without steps that compiled, were probed or evaluated; all numbers rest on these",
    "p10–p90": "one step in ten is shorter than the first number, one in ten longer than the second",
    "bound": "what limits the step: speed this up to speed up training",
    "input": "waiting for batches from the data loader",
    "data": "time inside next() of the DataLoader",
    "h2d": "host to device: copying batches from the machine's memory to the GPU's",
    "forward": "inside the calls of the model, and from the last of them to the start of the backward, loss included",
    "backward": "computing gradients",
    "optimizer": "inside Optimizer.step",
    "other": "the rest of the loop: Python, logging, metrics, zero_grad",
    "launch": "the GPU waits because issuing operations takes the host longer than running them takes the GPU",
    "sync": "the host waits for the GPU, for example in .item(), and then the GPU has nothing queued",
    "python": "the GPU waits for the script's own Python code between operations",
    "communication": "exchanging data with other ranks, such as averaging gradients",
    "allocator": "asking the driver for memory, which stops the GPU; a steady loop should not need to",
    "copy": "moving data between memories",
    "between kernels": "the GPU's own short pause before work that was already queued",
    "profiler": "time spent in the profiler itself",
    "unknown": "what the trace does not show",
    "compute": "running kernels that are not communication",
    "bandwidth": "limited by how fast memory can be read and written, not by arithmetic",
    "memory": "limited by the room in memory",
    "exposed": "not hidden behind computation: it makes the step longer",
    "idle": "the GPU runs nothing",
    "host": "the CPU side: the Python process that issues the work",
    "device": "the GPU, or the CPU where there is none",
    "finding": "a cause of lost time, with its evidence and what helps",
    "lever": "one change that may help; hotlap tune tries and proves them",
    "parity": "the evidence that learning is unchanged: same losses on same data, within the command's own noise",
    "turns": "both commands are alive at once; one makes steps while the other stands still, in turns",
    "interval": "95% confidence: where the true ratio lies, given how much the runs differ",
    "worth": "step time without this lever divided by step time with it, beside the other levers",
    "predicted": "the most that it could save, by its share of the step",
    "rank": "one training process; many ranks train together",
    "straggler": "the rank that the others wait for",
    "late": "how long after the first rank it arrives at collectives, on average",
    "roofline": "how fast an operation could be: arithmetic sets the flat roof, memory traffic the slope",
    "intensity": "arithmetic per byte moved: left of the corner memory limits an operation, right of it arithmetic",
    "what if": "the trace replayed with one cause removed: predicted, not measured",
    "allocated": "bytes that live tensors use, by torch's allocator",
    "reserved": "bytes that torch's allocator holds from the driver, used or not",
    "resident": "memory of the command's processes that is in RAM",
    "activations": "what the forward makes and keeps until the backward has used it",
    "temporaries": "made and gone within one phase",
    "held": "in variables of the script that are none of the others",
    "outputs": "in variables of the script, with the graph that made it",
    "rounding": "what the allocator adds to each block",
    "graph pools": "kept for CUDA graphs",
    "workspaces": "there all the time, of no object of the script: libraries' own",
    "outlier": "a steady step more than three interquartile ranges outside the middle half (Tukey's outer fence)",
    "warm-up": "first steps, left out: caches fill, memory is allocated, kernels are chosen",
    "left out": "steps that compiled, were probed or profiled, or held an evaluation",
    "exact": "every number stays the same, or within what two runs of the bare command differ",
    "numeric": "only rounding changes",
    "semantic": "training itself changes",
}
"""What a word means, in one line: shown on hover, focus or tap."""


def term(word: str, shown: str | None = None) -> Markup | str:
    """A word with its meaning at hand; as it is where it needs none."""
    meaning = TERMS.get(word)
    text = console.clean(shown if shown is not None else word)
    if meaning is None:
        return text
    return Markup('<span class="term" tabindex="0" data-tip="{}">{}</span>').format(meaning, text)


def size(value: float | None) -> str:
    """Bytes as people read them."""
    if value is None:
        return "unknown"
    for unit, limit in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(value) >= limit:
            return f"{console.count(value / limit)} {unit}"
    return f"{value:.0f} B"


def exact(shown: Callable[[float], str], unknown: str = "unknown") -> Callable[[float | None], Markup]:
    """A filter of numbers: as they are shown, with the exact value beside that."""

    def written(value: float | None) -> Markup:
        if value is None:
            return escape(unknown)
        return Markup('<data value="{}">{}</data>').format(repr(value), shown(value))

    return written


def objective(tune: Tune) -> tuple[float | None, float | None, Callable[[float], str]]:
    """What the tune made smaller: before, after, and how such a number is shown."""
    if tune.objective == "memory":
        return tune.memory_before_bytes, tune.memory_after_bytes, size
    if tune.objective == "cost":
        return tune.cost_before, tune.cost_after, "${:.4g}".format
    return tune.before_ms, tune.after_ms, durations.ms


def base(page: Page) -> str:
    """The folder that shown paths are relative to."""
    return page.run.cwd if page.run else ""


def shown_rank(page: Page) -> RankTrace | None:
    """The rank whose trace is shown first."""
    return trace_screen.shown_rank(page.traces) if page.traces else None


def indented(line: str) -> Markup:
    """A line of source with its blanks in front, harmless otherwise."""
    rest = line.lstrip(" ")
    return Markup(" " * (len(line) - len(rest))) + escape(console.clean(rest))


FILTERS: Final = {
    "indented": indented,
    "ms": exact(durations.ms),
    "percent": exact(console.percent),
    "ratio": exact(console.ratio, "–"),
    "size": size,
    "count": console.count,
    "whole": "{:,}".format,
    "plural": console.number,
    "minutes": console.minutes,
}
