"""The backward runs in the thread that calls it. Autograd keeps a thread for each device: at each `backward()` the
caller hands its work over, waits, and is woken again, which takes as long as the launch of a dozen kernels.

It is a switch of autograd (`torch.autograd.set_multithreading_enabled`). With one device the same nodes run in the same
order, and issue the same kernels.
"""

import functools
from typing import TYPE_CHECKING, Any, Final

from ._base import Applies, Context, Lever, Settings, no_gpu

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment

HANDING_OVER_MS: Final = 0.5
"""Of one backward, at most: seen were 0.25 and 0.5 (docs/benchmarks.md)."""


class SingleThreadBackward(Lever):
    name = "single-thread-backward"
    meaning = "the backward runs in the thread that calls it, which else hands it over and waits"
    switchable = True

    def applies(self, context: Context) -> Applies:
        facts = context.facts
        devices = {device for root in facts.roots for device in root.devices}
        if not context.cuda:
            return Applies(False, "the model runs on the CPU, where the backward runs in the calling thread as it is")
        if not facts.backwards:
            return Applies(False, "no backward was seen")
        if not (facts.optimizers and facts.optimizer_steps):  # in autograd's thread they may step unseen
            return Applies(False, "no optimizer was seen to step")
        if facts.world > 1:
            return Applies(False, "several processes exchange gradients while the backward runs")
        if len(devices) > 1:
            return Applies(False, "the model lies on more than one device, whose threads run side by side")
        if context.diagnosis.clock == "device":
            return Applies(False, "the host runs ahead of the device, which does not wait for the backward to begin")
        return Applies(True, "each backward is handed over to a thread of autograd's, and waited for")

    def share(self, context: Context) -> float:
        facts = context.facts
        if context.diagnosis.clock == "device" or not context.diagnosis.step_ms:
            return 0.0
        backwards = facts.backwards / max(1, facts.optimizer_steps)
        most = HANDING_OVER_MS * max(1.0, backwards) / context.diagnosis.step_ms
        return min(context.share_of("backward"), most)

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        return no_gpu(environment)

    def install(self, seams: "Seams", settings: Settings) -> None:
        import torch
        from torch.compiler import is_dynamo_compiling

        run = torch.autograd._engine_run_backward
        enabled, enable = torch._C._is_multithreading_enabled, torch._C._set_multithreading_enabled

        inside = False

        def switched(to: bool) -> None:
            nonlocal inside
            inside = to

        @functools.wraps(run)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or not (inside and enabled()):
                return run(*args, **kwargs)
            enable(False)
            try:
                return run(*args, **kwargs)
            finally:
                enable(True)

        # It stays there when the lever is taken out, since others may have wrapped it meanwhile.
        torch.autograd._engine_run_backward = backward
        seams.switch(lambda: switched(True), lambda: switched(False))

    def source(self, settings: Settings) -> str:
        return "with torch.autograd.set_multithreading_enabled(False):\n    loss.backward()"


LEVER = SingleThreadBackward()
