"""The device waits for the host to launch its kernels."""

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.run import RootFacts

from ._base import LEAST_COST, MODEL, Measured
from .communication import exchange_part

TRAINS = "compile the model, with CUDA graphs where shapes are static; fuse the optimizer; larger batches"
INFERS = (
    "compile the model; a `torch.cuda.CUDAGraph` of the forward for each shape of its inputs; "
    "`with torch.inference_mode():` around it; larger batches"
)
NUMBERS = (
    "; tensors made from Python numbers in the forward (`torch.tensor([...])`, a list as an index): make them "
    "once as buffers, in `__init__`"
)
MASKS = (
    "; `nn.TransformerEncoder` and `nn.TransformerDecoder` compare their mask with a causal one in each "
    "forward, and the host waits: pass `is_causal=True` (encoder) or `tgt_is_causal=True` (decoder) if it is "
    "causal, else False"
)


def waits(measured: Measured) -> dict[str, float]:
    """Device ms of each of the model's phases in which it waited for the host, but for what an exchange holds."""
    return {name: measured.waited_ms(name) * (1 - exchange_part(measured, name)) for name in MODEL}


def waited(measured: Measured) -> float:
    """The share of the step that these are."""
    took = {name: getattr(measured.gpu_phases, name, None) or 0.0 for name in MODEL}
    return sum(measured.share(name) * ms / took[name] for name, ms in waits(measured).items() if took[name])


def computing(measured: Measured) -> tuple[float, float]:
    """Share of the step and ms in which the model's phases do not wait for launches: what less arithmetic can win."""
    return measured.share(*MODEL) - waited(measured), measured.took_ms(*MODEL) - sum(waits(measured).values())


def find(measured: Measured) -> Finding | None:
    """Share: forward, backward and optimizer, as far as the device was done with them when the host had issued them."""
    share = waited(measured)
    if not measured.cuda or share < LEAST_COST:
        return None
    infers, root = measured.facts is not None and measured.facts.mode == "inference", measured.root
    return Finding(
        id="launch",
        bound="launch",
        share=share,
        title="the device waits for Python to launch its kernels",
        where=measured.place_of(root),
        evidence=_evidence(measured),
        why="each operation is small: the host issues it more slowly than the device runs it",
        instead=(INFERS if infers else TRAINS) + _in_the_model(root),
        levers=answering("launches"),
    )


def _evidence(measured: Measured) -> str:
    """How long the device waited, by phase, and what NVML says of it."""
    if measured.gpu_paced is None:
        ahead = f"the host is at most {ms(measured.lead_ms)} ahead of the device"
        return f"{ahead} in a step of {ms(measured.step_ms)}{measured.nvml}"
    parts = ", ".join(f"{name} {ms(took)}" for name, took in waits(measured).items() if took)
    return f"{parts} on the device, which finished as soon as the host had issued the work{measured.nvml}"


def _in_the_model(root: RootFacts | None) -> str:
    """What of its code makes operations that are not needed."""
    if root is None:
        return ""
    return (NUMBERS if root.constants and not root.compiled else "") + (MASKS if root.mask_checks else "")
