"""cuDNN's autotuner: the first call of each convolution shape times the algorithms and keeps the fastest."""

from typing import TYPE_CHECKING

from ._base import Applies, Context, Lever, Settings, no_gpu
from ._held import hold_attribute

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment


class CudnnBenchmark(Lever):
    name = "cudnn-benchmark"
    meaning = "cuDNN times its convolution algorithms once per shape and keeps the fastest"
    risk = "numeric"
    tolerance = 0.005
    costs_s = 5.0
    switchable = True

    def applies(self, context: Context) -> Applies:
        facts = context.facts
        if not context.cuda:
            return Applies(False, "the model runs on the CPU; cuDNN is CUDA's")
        if not any(root.conv for root in facts.roots):
            return Applies(False, "the model has no convolutions")
        if facts.cudnn_benchmark:
            return Applies(False, "the script has it on already")
        if facts.deterministic:
            return Applies(False, "the script asks for deterministic algorithms")
        return Applies(True, "the model has convolutions and cuDNN chooses by rule of thumb")

    def share(self, context: Context) -> float:
        return 0.15 * context.share_of("forward", "backward")

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        return no_gpu(environment)

    def install(self, seams: "Seams", settings: Settings) -> None:
        import torch

        hold_attribute(seams, torch.backends.cudnn, "benchmark", True)

    def source(self, settings: Settings) -> str:
        return "torch.backends.cudnn.benchmark = True  # before the loop"


LEVER = CudnnBenchmark()
