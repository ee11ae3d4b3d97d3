"""The model's own arithmetic is what the step consists of."""

import re
from typing import Final

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.run import RootFacts

from . import page_faults
from ._base import LEAST_COST, MODEL, Measured
from .communication import exchange_part, exchange_share
from .launch import waited, waits
from .unused_forwards import unused_ms

QUANTIZED = "; if the output may change: weights in int8 or float8 (torchao's `quantize_`), then compiled"
AUTOTUNED = "; if sizes stay the same: `torch.backends.cudnn.benchmark = True` before the loop"
SPARSE = "; for attention with a mostly empty mask (a window, documents): FlexAttention with a block mask"
INT8 = BF16 = (8, 0)
FP16 = (7, 0)
"""Compute capabilities from which on tensor cores multiply int8 and bfloat16, and float16."""
SCALED = (
    'float16 on the tensor cores, as this card has no bfloat16: `torch.autocast("cuda", torch.float16)` around forward '
    "and loss, `scaler = torch.amp.GradScaler()`, `scaler.scale(loss).backward()`, `scaler.step(optimizer)`, "
    "`scaler.update()`; "
)
VOCABULARY, ALIGNED, TILE = 4096, 8, 64
"""Outputs of a linear layer from which it is taken for the head over a vocabulary, what tensor cores want them to be a
multiple of, and what they are best padded to."""
SHORT_MS, SMALL_MS = 2.0, 0.2
"""Forward, backward and update of a step, and of a module in it, below which Python and dispatch may take most on a
CPU: of small layers they took 0.03 to 0.1 ms a module."""
ISSUING = (
    "for such small operations Python and dispatch may take longer than computing; then a larger batch takes "
    "hardly longer"
)
ON_CPU = (
    "fewer passes over large tensors; compiled kernels where they measure faster: those of large operations seldom do"
)
OR_ISSUING = ", or issuing its operations"
LINE_OF = "; the line is that of {}, which has most parameters"
UNTOLD = "run with --profile to see whether arithmetic or memory traffic limits it"
FEWER = "larger batches; fewer and larger operations; compiled and fused kernels"
LOWER: Final = re.compile("^lower precision [^,]*, |; bfloat16 where [^;]*")
FREE: Final = 0.5
"""Cores that nothing uses, from which another thread may."""
LEAST_UPDATE: Final = 0.05
"""Of the step: an update of less wins at most a half of it on a CPU, which no one sees."""
LARGE_ONLY: Final = answering("precision", "layout")
"""Levers that small operations gain nothing by."""
NAMED = 3


def find(measured: Measured) -> Finding | None:
    """Share: forward, backward and optimizer, unless the device only waits for launches there, and without what the
    backward holds of an exchange between ranks, or workers take of the cores."""
    waiting = waited(measured)
    taken = measured.taken_ms + unused_ms(measured)
    share = measured.share(*MODEL) - exchange_share(measured) - waiting - measured.of_step(taken)
    if share <= (LEAST_COST if waiting else 0.0):
        return None
    root = measured.root
    times = measured.gpu_phases or measured.phases
    on_device = measured.facts is not None and measured.facts.device == "cuda"
    parts = ", ".join(
        f"{name} {ms(computed)}{' without the exchange' if exchange else ''}"
        for name, wait in waits(measured).items()
        if (computed := (getattr(times, name) or 0.0) * (1 - (exchange := exchange_part(measured, name))) - wait) > 0
    )
    small, names = _small(measured), _models(measured)
    ahead = f"; the host is {ms(measured.lead_ms)} ahead" if measured.lead_ms is not None else ""
    ahead += measured.nvml
    return Finding(
        id="compute",
        bound="compute",
        share=share,
        title=f"computing {_named(names)}".rstrip() + (OR_ISSUING if small else ""),
        where=measured.place_of(root),
        evidence=f"{parts}{ahead}"
        + (f"; {', '.join(root.dtypes)} weights, {_precision(root, measured.levers)}" if root else "")
        + (LINE_OF.format(names[0]) if len(names) > 1 else "")
        + _untrained(measured)
        + ("; most steps contain an evaluation, whose forward is included" if measured.evaluates_itself else ""),
        why=ISSUING if small else UNTOLD,
        instead=FEWER
        if small
        else _lower(measured, on_device)
        + ("compiled and fused kernels, a better memory format" if on_device else ON_CPU)
        + _half(measured, on_device)
        + ("; evaluate every few steps, under `torch.inference_mode()`" if measured.evaluates_itself else "")
        + (SPARSE if on_device and root and (root.softmax or root.sdpa) else "")
        + _autotuned(measured)
        + _vocabulary(measured)
        + (QUANTIZED if on_device and _only_infers(measured) else ""),
        levers=_levers(measured, on_device, small) if root else (),
    )


def _models(measured: Measured) -> list[str]:
    """Classes of what the loop trains, or infers with, but for parts of others, the one with most parameters first: how
    the time is shared out between them is not known. Of a model that calls parts of torch's classes in a method of its
    own, its class in place of all of them."""
    facts, root = measured.facts, measured.root
    if facts is None or root is None:
        return []
    of_root = root.training, bool(root.optimized)
    alike = [one for one in facts.roots if (one.training, bool(one.optimized)) == of_root and one.part_of is None]
    whole = {one.owner for one in facts.roots if one.owner and one.function != f"{one.name}.forward"}
    ordered = [root, *sorted(alike, key=lambda one: -one.parameters)]
    return list(dict.fromkeys(one.owner if one.owner and one.owner in whole else one.name for one in ordered))


def _named(names: list[str]) -> str:
    """The first few."""
    more = len(names) - NAMED
    return f"{', '.join(names[:NAMED])} and {more} more" if more > 0 else " and ".join(names)


def _untrained(measured: Measured) -> str:
    """Modules that no optimizer updates, as a teacher, whose forwards are in the same phase."""
    facts, root = measured.facts, measured.root
    if facts is None or root is None or not root.optimized:
        return ""
    names = {one.name for one in facts.roots if one.optimized == 0 and one.training}
    return f"; forwards of {', '.join(sorted(names))}, which no optimizer updates, are included" if names else ""


def _levers(measured: Measured, on_device: bool, small: bool) -> tuple[str, ...]:
    """Those that make the work less; of small operations not those that only large ones gain by, and none of what takes
    next to nothing."""
    out = {*LARGE_ONLY} if small else set()
    if 0 < measured.share("optimizer") < (LEAST_COST if on_device else LEAST_UPDATE):
        out |= {*answering("update-launches")}
    if not on_device and not page_faults.notable(measured):
        out |= {*answering("page-faults")}
    if not on_device and not _has_cores(measured):
        out |= {*answering("threads")}
    return tuple(name for name in answering("arithmetic" if on_device else "on-cpu") if name not in out)


def _has_cores(measured: Measured) -> bool:
    """Whether a core is free that no thread of the model uses; also where that is not known."""
    use, facts = measured.cpu, measured.facts
    if use is None or facts is None:
        return True
    return use.usable - max(facts.threads, (use.busy_ms or 0.0) / 1000) >= FREE


def _small(measured: Measured) -> bool:
    """Whether the operations on a CPU are so small that issuing them may take longer than what they compute."""
    root, took = measured.root, sum(getattr(measured.phases, name) or 0.0 for name in MODEL)
    if root is None or measured.facts is None or measured.facts.device != "cpu" or root.compiled:
        return False
    return took < SHORT_MS and took < SMALL_MS * root.modules


def _lower(measured: Measured, on_device: bool) -> str:
    """Lower precision, where it is not in use."""
    facts = measured.facts
    if not on_device or _is_half(measured):
        return ""
    if facts is not None and facts.capability is not None and FP16 <= facts.capability < BF16:
        return SCALED
    return "lower precision on the tensor cores, "


def _half(measured: Measured, on_device: bool) -> str:
    """The same of a CPU that multiplies bfloat16."""
    if on_device or _is_half(measured) or (measured.facts is not None and not measured.facts.cpu_bf16):
        return ""
    return "; bfloat16 where it measures faster: on a CPU casts may cost more than products win"


def _is_half(measured: Measured) -> bool:
    root = measured.root
    return answering("precision")[0] in measured.levers or (root is not None and bool(root.autocast))


def _autotuned(measured: Measured) -> str:
    """That cuDNN can time its algorithms, where the script leaves it to choose by rule of thumb."""
    facts, root = measured.facts, measured.root
    if facts is None or facts.device != "cuda" or facts.cudnn_benchmark or facts.deterministic:
        return ""
    return AUTOTUNED if root is not None and root.conv else ""


def _vocabulary(measured: Measured) -> str:
    """What to do about logits over a large vocabulary."""
    facts, root = measured.facts, measured.root
    if facts is None or root is None or root.classes < VOCABULARY:
        return ""
    odd = facts.device == "cuda" and root.classes % ALIGNED
    padded = f"; the vocabulary padded from {root.classes} to a multiple of {TILE}" if odd else ""
    if facts.mode == "inference":
        return f"{padded}; compute logits only where they are used, such as `head(hidden[:, -1:])`"
    return (
        f"{padded}; if logits of {root.classes} classes fill memory, `F.linear_cross_entropy` with its `options` "
        "(torch 2.13 or later), or head and loss in chunks of rows"
    )


def _only_infers(measured: Measured) -> bool:
    """Whether the model has a device with int8 tensor cores and no gradients."""
    facts = measured.facts
    if facts is None or facts.mode != "inference" or any(root.training for root in facts.roots):
        return False
    return facts.capability is not None and facts.capability >= INT8


def _precision(root: RootFacts, levers: tuple[str, ...]) -> str:
    """The autocast that the script calls it under, and the levers of this run. A library may set one inside of it."""
    none = "the script uses no autocast" if levers else "no autocast"
    own = f"under autocast to {root.autocast}" if root.autocast else none
    return f"{own}; levers in: {', '.join(levers)}" if levers else own
