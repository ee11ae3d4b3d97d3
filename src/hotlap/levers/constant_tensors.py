"""Small tensors that the forward makes of Python's numbers at each call are kept on the device: no copy that the host
waits for, and a forward that can be recorded (`graph-training`).

They are found by their content, so other numbers are another tensor, and what the script gets is its own copy
(`_constants`). Taken are `torch.tensor`, `torch.as_tensor` and `Tensor.new_tensor` of numbers and lists of them,
`arange`, `tril_indices` and `triu_indices` on the host, `.to` and `.cuda` of what these made on the host, and lists and
such tensors as an index of a tensor on the device. As ever are names that the script imported (`from torch import
tensor`), legacy constructors, what is made of arrays, of tensors or with `requires_grad`, and all outside of the
outermost forward.

Where something in the forward is compiled, by the script or by another lever, it leaves itself out: the lever `compile`
keeps such tensors on the device itself.
"""

from typing import TYPE_CHECKING, Final

from ._base import Applies, Context, Lever, Settings, no_gpu

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams
    from hotlap.records.run import Environment

ORDER: Final = 50
"""Inside of the CUDA graphs (60), which are recorded with it, and outside of all else."""
SHARE: Final = 0.15
"""Of the forward, at most: how many there are is not known before it is tried."""


class ConstantTensors(Lever):
    name = "constant-tensors"
    meaning = "small tensors that the forward makes of Python's numbers at each call are kept on the device"
    costs_s = 3.0
    switchable = True

    def applies(self, context: Context) -> Applies:
        roots = context.facts.roots
        if not context.cuda:
            return Applies(False, "the model runs on the CPU, to which nothing has to be copied")
        if not any(root.constants for root in roots):
            return Applies(False, "the code of the model makes no tensors of Python's numbers")
        if all(root.compiled for root in roots):
            return Applies(False, "the script compiles the model itself, which makes constants of them")
        if "compile" in context.active:
            return Applies(False, "compile keeps them on the device itself")
        return Applies(True, "the code of the model makes tensors of Python's numbers, or indexes with lists")

    def share(self, context: Context) -> float:
        return SHARE * context.share_of("forward", "backward")

    def fits(self, environment: "Environment", settings: Settings) -> str | None:
        return no_gpu(environment)

    def install(self, seams: "Seams", settings: Settings) -> None:
        from ._constants import Constants

        kept = Constants(lambda why: seams.leave_out(self.name, why), seams.unsteady)
        seams.wrap_forward(kept.wrap, ORDER)

    def source(self, settings: Settings) -> str:
        return (
            "# in __init__, what forward made of numbers; it moves with the model:\n"
            'self.register_buffer("rows", torch.tensor([0, 2, 5]), persistent=False)\n'
            "# in forward, in place of x[:, [0, 2, 5]]:\n"
            "y = x[:, self.rows]"
        )


LEVER = ConstantTensors()
