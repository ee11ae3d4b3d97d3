"""The loop waits for its batches."""

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.run import LoaderFacts

from ._base import Measured, counted

LEAST = 0.05
ENOUGH = 8
"""Batches that say whether those of workers are there in time."""
MANY_TENSORS = 32
"""Of a batch of workers, from which on their number is told."""
MOSTLY = 0.5
ONCE = "; samples that never change: make them once and keep them in memory or on disk"
AT_ONCE = (
    "; tensors in memory: index them with a whole batch of indices, "
    "`sampler=BatchSampler(RandomSampler(dataset), n, False), batch_size=None`"
)
ON_DEVICE = "; a dataset that fits on the device: keep its tensors there and index them there"


def find(measured: Measured) -> Finding | None:
    """Share: the data phase; on CUDA what the device waited there: a wait that it does not feel is free. On the CPU
    also what workers take of the model's cores."""
    taken_ms = measured.taken_ms
    share = min(1.0, measured.share("data") + measured.of_step(taken_ms))
    loader = measured.loader
    if share < LEAST or loader is None:
        return None
    evidence = f"next(DataLoader) takes {ms(measured.phases.data or 0)} of host time a step"
    if measured.gpu_phases is not None:
        evidence += f"; the device is idle for {ms(measured.gpu_phases.data or 0)}"
    if taken_ms:
        evidence += (
            f"; all cores are busy, more with workers than with the model, which waits for a core for {ms(taken_ms)}"
        )
    return Finding(
        id="input",
        bound="input",
        share=share,
        title=f"waiting for batches of {loader.dataset}",
        where=measured.place_of(loader),
        evidence=f"{evidence}; {counted(loader.workers, 'worker')}{tensors_of(loader)}",
        why=_why(measured, loader),
        instead=f"make batches of fewer, larger tensors{', in pinned memory' if measured.cuda else ''}"
        if _handed_over(measured, loader)
        else _in_processes(measured, loader) + _cheaper(measured, loader),
        levers=answering("input", *(("threads",) if measured.facts and measured.facts.device == "cuda" else ())),
    )


def _why(measured: Measured, loader: LoaderFacts) -> str:
    if not loader.workers:
        return "batches are made in the training process, while the model waits"
    ready = f"{loader.asked - loader.late} of {loader.asked} batches were" if loader.late else "every batch was"
    if _ready(loader):
        crowded = ", and all cores are busy" if _full(measured) else ""
        return f"the workers keep up: {ready} ready; receiving a batch from its worker takes the time{crowded}"
    slowly = "the workers make batches more slowly than the model uses them up"
    if loader.asked < ENOUGH or not loader.asked_ms or many_tensors(loader):
        return f"{slowly}, or receiving a batch takes as long"
    return (
        f"{slowly}: {loader.late_ms / loader.asked_ms:.0%} of the wait was for {loader.late} of {loader.asked} batches"
    )


def many_tensors(loader: LoaderFacts) -> bool:
    """Whether each batch comes from its worker as so many tensors that handing them over may take long."""
    return bool(loader.workers) and loader.batch_tensors >= MANY_TENSORS


def tensors_of(loader: LoaderFacts) -> str:
    """How many a batch is, where they are many."""
    return f"; a batch is {loader.batch_tensors:,} tensors" if many_tensors(loader) else ""


def _in_processes(measured: Measured, loader: LoaderFacts) -> str:
    if _full(measured) or (measured.cpu and loader.workers > measured.cpu.usable):
        cheaper = "make each batch cheaper, as no core is free for more workers"
        return f"{cheaper}; or none (`num_workers=0`), which saves handing batches over" if _ready(loader) else cheaper
    return f"make batches in {'more' if loader.workers else 'worker'} processes, or make each one cheaper"


def _full(measured: Measured) -> bool:
    """Whether workers leave no core idle."""
    return bool(measured.cpu and measured.cpu.full and measured.loader and measured.loader.workers)


def _handed_over(measured: Measured, loader: LoaderFacts) -> bool:
    """Whether larger tensors would help: not where a batch that is there waits for a core too."""
    return _ready(loader) and not _full(measured)


def _ready(loader: LoaderFacts) -> bool:
    """Whether most of the time went to batches that were ready. (Workers that deliver together are waited for at one
    batch of many.)"""
    return loader.asked >= ENOUGH and loader.late_ms < MOSTLY * loader.asked_ms


def _cheaper(measured: Measured, loader: LoaderFacts) -> str:
    """How a batch may be made cheaper, as far as what was seen of its samples leaves that open."""
    if loader.iterable or loader.draws:
        return ""
    said = ""
    if loader.holds_tensors and loader.default_collate and loader.views is not False:
        said += AT_ONCE + (ON_DEVICE if measured.cuda else "")
    if not loader.views and measured.facts is not None and measured.facts.mode != "inference":
        said += ONCE
    return said
