"""float16 autocast with a scaled loss, for devices whose tensor cores have no bfloat16 (compute capability 7.x).

As `torch.amp.GradScaler` does it, from outside: gradients are scaled so that small ones do not vanish in float16,
unscaled before they are clipped or used, and an update whose gradients overflowed is left out while the scale is
halved.
"""

from typing import TYPE_CHECKING, Any, Final

from .. import _same_random
from .._autocast import HALF, ORDER, autocasting
from .._base import Applies, Context, Settings
from .._internals import internals
from .._update import Update, parameters_of

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams

FIRST_SCALE: Final = 2.0**16
GROWTH_STEPS: Final = 2000
"""As GradScaler's own defaults."""


class Fp16Scaling(_same_random.DrawsOtherwise):
    name = "fp16-scaling"
    meaning = "the forward and its backward in float16 where bfloat16 is not native, with the loss scaled"
    risk = "numeric"
    needs_gpu = True
    tolerance = 0.02
    excludes = ("bf16-autocast", "accumulate")

    def applies(self, context: Context) -> Applies:
        facts = context.facts
        roots = [root for root in facts.roots if root.training]
        if not context.cuda:
            return Applies(False, "the model runs on the CPU, which has no float16 arithmetic worth the name")
        if facts.capability is None or facts.capability < (7, 0):
            return Applies(False, f"{facts.device_name or 'the device'} has no float16 tensor cores")
        if facts.capability >= (8, 0):
            return Applies(False, "the device has bfloat16, which needs no scaling: see bf16-autocast")
        if not roots:
            return Applies(False, "no module's forward was seen in training")
        if all(root.autocast in HALF for root in roots):
            return Applies(False, f"the script runs in autocast({roots[0].autocast}) already")
        if not all(root.dtypes == ("float32",) for root in roots):
            return Applies(False, f"the weights are {', '.join(roots[0].dtypes)}, not float32")
        if len(facts.optimizers) != 1 or facts.optimizers[0].sparse:
            return Applies(False, "it takes one optimizer with dense gradients")
        return Applies(True, "the forward computes in float32")

    def share(self, context: Context) -> float:
        return (0.1 if context.diagnosis.bound == "launch" else 0.75) * context.share_of("forward", "backward")

    def install(self, seams: "Seams", settings: Settings) -> None:
        import torch

        if settings.get(_same_random.SETTING):
            _same_random.draw_as_without(self.name)
        scaler = Scaler(seams, self.name)
        scaler.install()
        seams.wrap_forward(autocasting(torch.float16, lambda: scaler.on), ORDER)

    def source(self, settings: Settings) -> str:
        return (
            'scaler = torch.amp.GradScaler("cuda")\n'
            'with torch.autocast("cuda", dtype=torch.float16):\n'
            "    loss = loss_function(model(inputs), targets)\n"
            "scaler.scale(loss).backward()\n"
            "scaler.step(optimizer)\n"
            "scaler.update()"
        )


class Scaler(Update):
    """The scale, and what becomes of gradients."""

    def __init__(self, seams: "Seams", lever: str) -> None:
        super().__init__(seams, lever)
        self.scale = self.in_use = FIRST_SCALE  # the next backward's, and that of the gradients as they are
        self.good = 0
        self.overflowed = False
        self._unscaled: set[int] = set()
        self._stepped = True

    def factor(self) -> float:
        if self._stepped:
            self._unscaled.clear()
            self.overflowed = self._stepped = False
            self.in_use = self.scale
        elif self._unscaled:
            self.stand_aside("the script goes backward again after it has clipped its gradients")
            return 1.0
        return self.scale

    def may_clip(self, parameters: Any) -> bool:
        return self.restore(parameters)

    def may_step(self, optimizer: Any) -> bool:
        self.restore(parameters_of(optimizer))
        self._stepped = True
        self.good = 0 if self.overflowed else self.good + 1
        if self.overflowed:
            self.scale = self.scale / 2
            self._seams.skipped(optimizer)
        elif self.good >= GROWTH_STEPS:
            self.scale, self.good = self.scale * 2, 0
        return not self.overflowed

    def restore(self, parameters: Any) -> bool:
        """Unscale gradients, once after each backward. Waits for the device, as GradScaler does."""
        import torch

        scaled = [p for p in parameters if p.grad is not None and id(p) not in self._unscaled]
        if not scaled:
            return not self.overflowed
        self._unscaled.update(map(id, scaled))
        single: Any = {"dtype": torch.float32, "device": scaled[0].device}  # the kernel takes no other
        found, inverse = torch.zeros((), **single), torch.full((), 1 / self.in_use, **single)
        internals().unscale_all([p.grad for p in scaled], found, inverse)
        self.overflowed |= bool(found.item())
        return not self.overflowed


LEVER = Fp16Scaling()
