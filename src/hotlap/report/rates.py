"""Rates of a run beyond its step time: MFU and what it is made of, tokens a second."""

from collections.abc import Iterator

from ..records.diagnosis import OUTSIDE, Diagnosis
from ..records.durations import ms, three
from ..records.utilisation import Utilisation


def mfu_parts(found: Utilisation) -> Iterator[str]:
    """`MFU 23%` with the FLOPs, the step and the peak that it is of; or why it is not known, with the FLOPs if those
    are."""
    of = f", mean of {found.ranks} ranks" if found.ranks > 1 else ""
    yield f"MFU unknown: {found.why or 'nothing says why'}" if found.mfu is None else f"MFU {found.mfu:.1%}{of}"
    if found.flops and found.mfu is None:
        yield f"{flops(found.flops)} a step at least"
    elif found.mfu is not None:
        yield f"{flops(found.flops)} a step in {ms(found.step_ms)}{' under the profiler' if found.profiled else ''}"
        yield f"peak {_peak(found)} ({found.peaks})"
    if found.recomputed:
        yield f"{flops(found.recomputed)} more a step is recomputed (checkpointing)"
    if found.optimizer:
        yield f"{flops(found.optimizer)} more a step in the optimizer"


def money_parts(found: Diagnosis, price: float | None) -> Iterator[str]:
    """What the GPUs draw, a step; at a price in dollars an hour what a day costs, and of it evaluations and the first
    finding with a share; and a million rows. Shares of steps are made shares of the whole time: beside a finding of
    evaluations the verdict's have them taken off already."""
    if found.gpu_watts is not None:
        of = "of the whole GPU, which others used too" if found.gpu_shared else "GPU"
        yield f"{found.gpu_watts:.0f} W, {three(found.gpu_watts * found.step_ms / 1000)} J a step ({of}, by NVML)"
    if price is None:
        return
    day = 24 * price
    yield f"${day:.2f} a day at ${price:.2f} an hour"
    first = next((one for one in found.findings if one.share and not one.wrong and not one.beneath), None)
    if found.evaluating:
        yield f"{found.evaluating:.0%} of it, ${found.evaluating * day:.2f}, goes to evaluations"
    if first is not None:
        evaluating = 0.0 if any(one.id == "evaluation" for one in found.findings) else found.evaluating
        share = first.share * (1.0 if first.id in OUTSIDE else max(0.0, 1 - evaluating - found.compiling))
        yield f"{share:.0%} of it, ${share * day:.2f}, goes to the first finding"
    if found.throughput:
        yield f"${1e6 * price / 3600 / found.throughput:.3g} a million {found.throughput_unit.removesuffix('/s')}"


def _peak(found: Utilisation) -> str:
    """`989 TFLOP/s bf16`; of several dtypes each, with its part of the FLOPs."""
    told = [one for one in found.products if one.tflops and one.flops >= 0.01 * found.flops]
    each = f"{found.devices} × " if found.devices > 1 else ""
    peaks = []
    for one in told:
        part = f"{one.flops / found.flops:.0%} " if len(told) > 1 else ""
        kind = "tf32" if one.dtype == "fp32" and one.tensor_cores else one.dtype  # as data sheets name the unit
        peaks.append(f"{part}{each}{three(one.tflops or 0.0)} TFLOP/s {kind}")
    return ", ".join(peaks)


def flops(value: float) -> str:
    """`7.00 TFLOP`, `13.8 GFLOP`."""
    unit, size = next(((u, s) for u, s in (("P", 1e15), ("T", 1e12), ("G", 1e9)) if value >= s), ("M", 1e6))
    return f"{three(value / size)} {unit}FLOP"
