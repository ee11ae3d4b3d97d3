"""TF32 matrix products: float32 in and out, 10-bit mantissa inside the tensor cores (Ampere and later)."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from .._base import Applies, Context, Lever, Settings, single_precision
from .._process_settings import hold

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Facts


class Tf32(Lever):
    """`torch.set_float32_matmul_precision("high")`."""

    name = "tf32"
    meaning = "float32 matrix products on the tensor cores, rounded to TF32"
    causes = {"arithmetic": 1, "precision": 1}
    risk = "numeric"
    needs_gpu = True
    tolerance = 0.005
    switchable = True

    def applies(self, context: Context) -> Applies:
        facts = context.facts
        if not context.cuda:
            return Applies(False, "the model runs on the CPU; TF32 is a mode of CUDA tensor cores")
        if facts.capability is None or facts.capability < (8, 0):
            return Applies(False, f"{facts.device_name or 'the device'} has no TF32 tensor cores")
        if facts.tf32_matmul:
            return Applies(False, "the script has TF32 matrix products on already")
        if not any("float32" in root.dtypes for root in facts.roots):
            return Applies(False, "no float32 weights were seen")
        return Applies(True, "float32 matrix products run outside the tensor cores")

    def settled(self, facts: "Facts", active: Collection[str]) -> bool:
        older = facts.capability is not None and facts.capability < (8, 0)
        return super().settled(facts, active) or older or facts.tf32_matmul or not single_precision(facts)

    def share(self, context: Context) -> float:
        if context.diagnosis.bound == "launch":
            return 0.05
        return (0.01 if "bf16-autocast" in context.active else 0.6) * context.share_of("forward", "backward")

    def install(self, seams: "Seams", settings: Settings) -> None:
        hold(seams, _precision, _set_precision, ("high", *(("tf32",) * len(_owners()))))

    def source(self, settings: Settings) -> str:
        return 'torch.set_float32_matmul_precision("high")  # before the loop'


def _owners() -> list[Any]:
    """Of the newer setting, which the older one sets too, and on the way back to "ieee" where it was "none": compiled
    code is cached by it, and would be compiled again in the next process."""
    import torch

    return [one for one in (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul) if hasattr(one, "fp32_precision")]


def _precision() -> tuple[str, ...]:
    import torch

    return (torch.get_float32_matmul_precision(), *(one.fp32_precision for one in _owners()))


def _set_precision(wanted: tuple[str, ...]) -> None:
    import torch

    torch.set_float32_matmul_precision(wanted[0])
    for one, precision in zip(_owners(), wanted[1:], strict=True):
        one.fp32_precision = precision


LEVER = Tf32()
