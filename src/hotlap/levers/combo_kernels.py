"""Small kernels of the compiled model that do not depend on one another are launched as one. A small model has many of
them (a cast of each weight under autocast, a sum for each bias, a lookup for each table), and each costs the device
some microseconds however little it does.

It is a switch of torch.compile's compiler (`combo_kernels`), which makes the groups; what is computed stays the same.
Compiling takes longer.
"""

from typing import TYPE_CHECKING, Any, Final

from ._base import Applies, Context, Lever, Settings, no_gpu
from .compile import LEVER as COMPILE

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward, Seams
    from hotlap.records.run import Environment

ORDER: Final = 19
"""Before `compile` (20) has anything compiled."""
SHORT_MS: Final = 5.0
LAUNCH_SHARE: Final = 0.3
"""Of forward and backward of such short steps, at most: of 636 kernels of benchmarks/zoo/tiny_gpt.py 123 are casts, and
of 150 of dlrm.py 78 are lookups and their gradients."""
SHARE: Final = 0.03
"""Where kernels are longer than their launches."""


class ComboKernels(Lever):
    name = "combo-kernels"
    meaning = "small independent kernels of the compiled model are launched as one"
    risk = "numeric"
    tolerance = 0.005
    stage = "compiler"
    compiles = True
    costs_s = 20.0
    switchable = True

    def applies(self, context: Context) -> Applies:
        roots = context.facts.roots
        if not context.cuda:
            return Applies(False, "the model runs on the CPU, where nothing is launched")
        if not roots:
            return Applies(False, "no module's forward was seen")
        if all(root.compiled for root in roots):
            return Applies(False, "the script compiles the model itself")
        if COMPILE.name not in context.active:
            return Applies(False, "the kernels that it joins are those of compile, which comes first")
        return Applies(True, "the compiled model may have many small kernels that do not depend on one another")

    def share(self, context: Context) -> float:
        short = context.diagnosis.bound == "launch" or context.diagnosis.step_ms < SHORT_MS
        return (LAUNCH_SHARE if short else SHARE) * context.share_of("forward", "backward")

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        return no_gpu(environment)

    def install(self, seams: "Seams", settings: Settings) -> None:
        from hotlap.agent.seams import Refused

        from ._graph import PASSES

        fit, before = False, False

        def put_in() -> None:
            nonlocal before
            if fit:
                from torch._inductor import config

                before, config.combo_kernels = config.combo_kernels, True
                PASSES.append(apart)

        def take_out() -> None:
            if fit:
                from torch._inductor import config

                config.combo_kernels = before
                PASSES.remove(apart)

        def wrap(module: Any, forward: "Forward") -> "Forward":
            nonlocal fit
            if fit or any(not parameter.is_cuda for parameter in module.parameters()):
                return forward
            from torch._inductor import config

            if not hasattr(config, "combo_kernels"):
                raise Refused("this torch's compiler has no combo_kernels")
            fit = True
            put_in()
            return forward

        seams.switch(put_in, take_out)
        seams.wrap_forward(wrap, ORDER)

    def source(self, settings: Settings) -> str:
        return 'model = torch.compile(model, options={"combo_kernels": True})'


def apart(graph_module: Any, inputs: list[Any]) -> None:
    """A pass that changes nothing: graphs with passes are none that were compiled without the lever."""


LEVER = ComboKernels()
