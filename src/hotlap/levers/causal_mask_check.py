"""`nn.TransformerEncoder` and `nn.TransformerDecoder` no longer wait for the device in each forward.

Unless they are told by `is_causal`, they compare their mask with the causal one, and the host waits for the answer: the
device runs dry, `torch.compile` breaks its graph there and leaves their layers to Python, and CUDA graphs can't be
recorded. Here a mask is looked at once, and known as long as nothing writes to it. In what is compiled or recorded, and
where the script makes its masks anew all the time, the mask is applied as it is given, which is the same but for the
kernel: for half precision torch's fastest one (flash) takes no mask.

Left to torch are masks on another device or of another dtype than the model's parameters, those that need a gradient,
and TorchScript. Layers of a class of their own are refused: with `is_causal` they may do as they like.
"""

from typing import TYPE_CHECKING, Any, Final

from ._base import Applies, Context, Lever, Settings, no_gpu

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward, Seams
    from hotlap.records.run import Environment

ORDER: Final = 80
"""Outside of all that compiles or records the forward."""
LAUNCH, ELSE = 0.5, 0.15
"""Of forward and backward, at most: what it lets others compile and record counts here, since they come after it."""


class CausalMaskCheck(Lever):
    name = "causal-mask-check"
    meaning = "torch's encoder and decoder do not wait in each forward to learn whether their mask is the causal one"
    risk = "numeric"
    tolerance = 0.005
    costs_s = 3.0
    switchable = True

    def applies(self, context: Context) -> Applies:
        if not any(root.mask_checks for root in context.facts.roots):
            return Applies(False, "the model holds no nn.TransformerEncoder or nn.TransformerDecoder")
        if not context.cuda:
            return Applies(False, "the model runs on the CPU, for which nothing waits")
        return Applies(True, "in each forward the host waits for what torch's encoder or decoder asks of its mask")

    def share(self, context: Context) -> float:
        launch = context.diagnosis.bound in {"launch", "sync"}
        return (LAUNCH if launch else ELSE) * context.share_of("forward", "backward")

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        return no_gpu(environment)

    def install(self, seams: "Seams", settings: Settings) -> None:
        import torch
        from torch.nn.modules import transformer

        from hotlap.agent.seams import Refused

        from ._mask_check import NAME, Masks, parts_of, replaced, unfit

        if not hasattr(transformer, NAME):
            raise Refused(f"torch {torch.__version__} has no {NAME}")
        original = getattr(transformer, NAME)
        masks = Masks(original, seams.unsteady)
        check = replaced(masks, original)
        fit = False

        def put_in() -> None:
            if fit:
                setattr(transformer, NAME, check)

        def take_out() -> None:
            if fit:
                setattr(transformer, NAME, original)

        def wrap(module: Any, forward: "Forward") -> "Forward":
            nonlocal fit
            parts = parts_of(module)
            if not parts:
                raise Refused("the model holds no nn.TransformerEncoder or nn.TransformerDecoder")
            if why := unfit(parts):
                raise Refused(why)
            fit = True
            put_in()
            parameters = parts[0].parameters

            def with_answers(*args: Any, **kwargs: Any) -> Any:
                parameter = next(parameters())
                masks.begin((parameter.device, parameter.dtype))
                try:
                    return forward(*args, **kwargs)
                finally:
                    masks.form = None

            return with_answers

        seams.switch(put_in, take_out)
        seams.wrap_forward(wrap, ORDER)

    def source(self, settings: Settings) -> str:
        return (
            "# where the mask is the causal one:\n"
            "y = encoder(x, mask=mask, is_causal=True)\n"
            "# else, and to nn.Transformer as src_is_causal and tgt_is_causal:\n"
            "y = encoder(x, mask=mask, is_causal=False)"
        )


LEVER = CausalMaskCheck()
