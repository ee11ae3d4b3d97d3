"""torch.compile computes again in the backward what is cheap to compute, down to a share of the activations."""

from typing import TYPE_CHECKING

from .. import known
from .._base import Applies, Context, Lever, Setting, Settings
from .._internals import internals

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams


class ActivationBudget(Lever):
    """`torch._functorch.config.activation_memory_budget`."""

    name = "activation-budget"
    meaning = "torch.compile keeps only a share of the activations for the backward and computes the rest again"
    causes = {"memory": 3}
    risk = "numeric"
    settings = {"budget": Setting("a number from 0 up to 1", lambda value: type(value) is float and 0 <= value < 1)}
    tolerance = 0.005
    saves_memory = True
    stage = "compiler"
    compiles = True
    memory_order = 60
    frees = {"activations": 0.7}
    takes = "a part of the forward a second time"

    def applies(self, context: Context) -> Applies:
        ours = [one.name for one in known(context.active) if one.compiles and one.name != self.name]
        roots = context.facts.roots
        if not any(root.training for root in roots):
            return Applies(False, "no module's forward was seen in training")
        if not ours and not any(root.compiled for root in roots):
            return Applies(False, "nothing is compiled; it needs a lever that compiles")
        return Applies(True, f"{ours[0] if ours else 'the script'} compiles the model and its backward")

    def variants(self, context: Context) -> list[Settings]:
        return [{"budget": 0.8}, {"budget": 0.5}, {"budget": 0.3}]

    def install(self, seams: "Seams", settings: Settings) -> None:
        from hotlap.agent.seams import Refused

        config = internals().functorch_config()
        if not hasattr(config, "activation_memory_budget"):
            raise Refused("this torch has no activation_memory_budget")
        config.activation_memory_budget = settings["budget"]

    def source(self, settings: Settings) -> str:
        return f"torch._functorch.config.activation_memory_budget = {settings['budget']}  # before torch.compile"


LEVER = ActivationBudget()
