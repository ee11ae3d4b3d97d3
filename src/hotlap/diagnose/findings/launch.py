"""The device waits for the host to launch its kernels."""

from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.run import RootFacts

from ._base import LEAST_COST, MODEL, Measured
from .communication import held_of

LEVERS = (
    "compile", "graph-training", "attention", "fused-optimizer", "graph-optimizer",
)  # fmt: skip
LOSS = "a loss function of the script's own: `@torch.compile` before its `def`"
TRAINS = f"compile the model, with CUDA graphs where shapes are static; {LOSS}; fuse the optimizer; larger batches"
INFERS = "replay forwards as CUDA graphs, one for each shape of their inputs; compile the model; larger batches"
SHORT_MS = 10.0
"""Steps up to which 0.25 to 0.5 ms count (a backward handed over to autograd's thread, on an H200), and 0.04 to 0.4
(small kernels launched one by one)."""
SHORT = (
    "; on one device, steps as short as these: `torch.autograd.set_multithreading_enabled(False)` (no other thread for "
    "the backward); with torch.compile try `torch._inductor.config.combo_kernels = True` (small kernels in one launch)"
)
NUMBERS = (
    "; tensors that the forward makes of Python's numbers (`torch.tensor([...])`, a list as an index): make them once, "
    "in `__init__` as buffers"
)
SIBLINGS = (
    "; linear layers that read the same input (query, key and value; gate and up): make them one `nn.Linear`, whose "
    "output is split"
)
MASKS = (
    "; `nn.TransformerEncoder` and `nn.TransformerDecoder` compare their mask with the causal one in each forward, and "
    "the host waits: give `is_causal=True` (encoder) or `tgt_is_causal=True` (decoder) where it is, else False"
)
FOR_INFERENCE = ("graph-forward", "compile", "attention")


def waits(measured: Measured) -> dict[str, float]:
    """Device ms of each of the model's phases in which it waited for the host, but for what an exchange holds."""
    return {name: measured.waited_ms(name) * (1 - held_of(measured, name)) for name in MODEL}


def waited(measured: Measured) -> float:
    """The share of the step that these are."""
    took = {name: getattr(measured.gpu_phases, name, None) or 0.0 for name in MODEL}
    return sum(measured.share(name) * ms / took[name] for name, ms in waits(measured).items() if took[name])


def find(measured: Measured) -> Finding | None:
    """Share: forward, backward and optimizer, as far as the device was done with them when the host had issued them."""
    share = waited(measured)
    if not measured.cuda or share < LEAST_COST:
        return None
    infers, root = measured.facts is not None and measured.facts.mode == "inference", measured.root
    short = SHORT if measured.step_ms < SHORT_MS else ""
    return Finding(
        id="launch",
        bound="launch",
        share=share,
        title="the device waits for Python to launch its kernels",
        where=measured.place_of(root),
        evidence=_evidence(measured),
        why="each operation is small, so that issuing it takes the host longer than the device needs to run it",
        instead=(INFERS if infers else TRAINS + short) + _in_the_model(root),
        levers=FOR_INFERENCE if infers else LEVERS,
    )


def _evidence(measured: Measured) -> str:
    """How long the device waited, by phase, and what NVML says of it."""
    busy = f"; a kernel ran {measured.gpu_busy:.0%} of the time, by NVML" if measured.gpu_busy is not None else ""
    if measured.gpu_paced is None:
        ahead = f"the host is at most {ms(measured.lead_ms)} ahead of the device"
        return f"{ahead} in a step of {ms(measured.step_ms)}{busy}"
    parts = ", ".join(f"{name} {ms(took)}" for name, took in waits(measured).items() if took)
    return f"{parts} on the device, which was done as soon as the host had issued the work{busy}"


def _in_the_model(root: RootFacts | None) -> str:
    """What of its code makes operations that are not needed."""
    if root is None:
        return ""
    numbers = NUMBERS if root.constants and not root.compiled else ""
    return numbers + (SIBLINGS if root.sibling_linears else "") + (MASKS if root.mask_checks else "")
