"""A setting of Adam's lies on the device, and each update reads it back, parameter by parameter."""

from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.run import OptimizerFacts

from ._base import Measured, counted
from .counters_on_device import LEAST
from .optimizer import compiled

ID = "rate-on-device"
ADAMS = frozenset({"Adam", "AdamW"})
"""Those that go over parameters one at a time where the rate is a tensor."""


def find(measured: Measured) -> Finding | None:
    """Share: that of the update, which is little else where it waits for so many values."""
    facts = measured.facts
    those = (one for one in (facts.optimizers if facts else ()) if one.tensors >= LEAST and one.on_device)
    one = next((one for one in those if reads_settings(one)), None)
    if one is None or facts is None or compiled(one, facts):
        return None
    updating = measured.took_ms("optimizer")
    return Finding(
        id=ID,
        bound="sync",
        share=measured.share("optimizer"),
        cost_ms=updating,
        title=f"{one.name} reads {settings(one)} from the device",
        where=measured.place_at(one.made) or measured.place_at(one.stepped),
        evidence=f"it is a tensor there; of {counted(one.tensors, 'parameter')} the update takes {ms(updating)} a step",
        why=why(one),
        instead=as_number(one),
        named=True,
    )


def reads_settings(one: OptimizerFacts) -> bool:
    """Whether it reads those that are on a device; where that is not known, whether it would."""
    return one.builtin and one.name in ADAMS and not (one.fused or one.capturable) and one.on_device != ()


def settings(one: OptimizerFacts) -> str:
    """Those on the device, in words; of an older hotlap it is not known which."""
    if one.on_device is None:
        return "its learning rate, or another setting,"
    return " and ".join("its learning rate (`lr`)" if name == "lr" else f"its `{name}`" for name in one.on_device)


def why(one: OptimizerFacts) -> str:
    """It waits."""
    return (
        f"{one.name} is neither fused nor capturable, so with this setting it updates parameters one by one, in "
        "a dozen kernels each, and waits for the value each time"
    )


def as_number(one: OptimizerFacts) -> str:
    """The change to make."""
    at = f" at line {one.made[1]}" if one.made else ""
    return (
        f"a float: `{one.name}(..., lr=1e-3)`{at} and `group['lr'] = rate` with a Python number in the loop, so "
        "that all parameters are updated together; or keep the tensor and use `fused=True` (one kernel, which "
        "reads it on the device) or `capturable=True`"
    )
