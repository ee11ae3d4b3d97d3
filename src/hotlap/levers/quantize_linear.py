"""Weights of large linear layers in int8 or float8, by torchao, in commands that only infer.

Outputs change, so it is semantic, and how far they change is measured: the first forwards are made with the weights as
they were, too, and the relative error of what the model returns is recorded. Then those weights are freed. A forward
that can't be made twice, as it keeps a cache or draws random numbers, leaves no way to measure, so it is left alone.
What else looks at these weights meets torchao's: `state_dict()` saves them quantized, and `load_state_dict()` of others
into them raises. A forward with gradients has the weights as they were, where an optimizer or something else has them.

int8-weight: the weight in int8, a scale for each output, products in the input's precision. int8-dynamic and
float8-dynamic: the input is rounded as well, with scales found at each call, and products are those of the int8 and
float8 tensor cores. A layer whose weight is used by another one too, or by anything but itself, keeps it.

torchao 0.17 and later work with every torch from 2.11 on without its compiled extensions
(https://github.com/pytorch/ao/issues/2919); the paths used here need none of them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ._base import Applies, Context, Lever, Settings, no_gpu, not_inference, unknown

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment

INNER: Final = 0
OUTER: Final = 80
"""Inside of all that wraps the forward, where its own is seen; and outside of it all, where its output is."""
HOWS: Final = ("float8-dynamic", "int8-dynamic", "int8-weight")
FLOAT8: Final = (8, 9)
INT8: Final = (8, 0)
SHARE: Final = {"compiled": 0.4, "eager": 0.15}
"""Of the forward. Finding scales and rounding are kernels of their own where nothing is compiled."""


class QuantizeLinear(Lever):
    name = "quantize-linear"
    meaning = "weights of large linear layers in int8 or float8 (torchao); outputs change, by an error that is measured"
    risk = "semantic"
    stage = "late"
    measures_output = True

    def applies(self, context: Context) -> Applies:
        facts = context.facts
        if why := not_inference(context):
            return Applies(False, why)
        if context.cuda and (facts.capability is None or facts.capability < INT8):
            return Applies(False, f"{facts.device_name or 'the device'} has no int8 tensor cores that torch uses")
        if not context.cuda and not _compiled(context):
            return Applies(False, "on the CPU only compiled int8 products can be faster, and nothing is compiled here")
        return Applies(True, "the forward runs without gradients, on weights that do not change")

    def variants(self, context: Context) -> list[Settings]:
        capability = context.facts.capability
        float8 = context.cuda and capability is not None and capability >= FLOAT8
        hows = [how for how in HOWS if float8 or how != "float8-dynamic"]
        # With kernels of their own for rounding and scales all of them lose more often than not: one is asked.
        return [{"how": how} for how in hows[: None if _compiled(context) else 1]]

    def share(self, context: Context) -> float:
        return SHARE["compiled" if _compiled(context) else "eager"] * context.share_of("forward")

    def check(self, settings: Mapping[str, Any]) -> str | None:
        wrong = unknown(settings, ("how",))
        if wrong is None and settings.get("how") not in HOWS:
            return f"how must be one of {', '.join(HOWS)}, not {settings.get('how')!r}"
        return wrong

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        if settings.get("how") == "float8-dynamic" and (none := no_gpu(environment)):
            return f"{none}, and float8 products are made by its tensor cores"
        return None

    def install(self, seams: "Seams", settings: Settings) -> None:
        from ._quantize import Quantized, ready

        ready()
        quantized = Quantized(
            settings["how"],
            unsteady=seams.unsteady,
            measured=lambda error: seams.measured(self.name, error),
            gave_up=lambda why: seams.refuse(self.name, why),
        )
        seams.wrap_forward(quantized.inside, INNER)
        seams.wrap_forward(quantized.outside, OUTER)

    def source(self, settings: Settings) -> str:
        config = {
            "float8-dynamic": "Float8DynamicActivationFloat8WeightConfig",
            "int8-dynamic": "Int8DynamicActivationInt8WeightConfig",
            "int8-weight": "Int8WeightOnlyConfig",
        }[settings["how"]]
        return (
            f"from torchao.quantization import {config}, quantize_\n"
            "large = lambda module, name: isinstance(module, nn.Linear) and min(module.weight.shape) >= 256\n"
            f"quantize_(model, {config}(set_inductor_config=False), filter_fn=large)  # before it is compiled"
        )


def _compiled(context: Context) -> bool:
    """Whether torch.compile makes the kernels, by a lever or by the script."""
    by_lever = not {"compile", "compile-blocks"}.isdisjoint(context.active)
    return by_lever or any(root.compiled for root in context.facts.roots)


LEVER = QuantizeLinear()
