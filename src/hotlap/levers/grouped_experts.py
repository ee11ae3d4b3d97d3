"""A loop over the experts of a mixture becomes one product for all of them, without a wait for the host.

As it is written everywhere, such a layer asks for each expert which rows chose it (`torch.where`, `nonzero`, a mask),
for which the host waits, gathers them, runs the expert and adds what it returns. The lever reads that loop in the
source of the module's forward (a loop in which one statement is not known is left alone, and its line named) and runs
its body once, for the rows of all experts. The expert's own forward runs once, too: its linear layers stand for those
of all experts, whose weights are stacked.

Which product is used: on CUDA in bfloat16 (autocast, or the weights), where the device is of capability 9.0 or more and
all sizes are multiples of 8, `torch.nn.functional.grouped_mm`, which reads on the device where groups end, so that the
host never waits. Else the host is told the groups' sizes once a layer: on CUDA rows are padded to the largest group and
go through one `bmm`, where that makes at most twice as many of them; else, and on the CPU, each group has a product of
its own. Shapes do not depend on values, so torch.compile takes the module in one graph.

The first calls of each layer are compared with the loop, output and gradients, before the loop is left. Experts have to
be of one structure, without hooks, buffers, or parameters but those of linear layers, and to treat each row alone. An
expert that no row chose has a gradient of zeros here; where the loop passes over it, that is taken away before the
update. Where no layer needs the host, `graph-training` may record the model.
"""

import contextlib
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ._base import Applies, Context, Lever, Settings

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward, Seams

    from ._experts_mark import Mark
    from ._experts_unused import Unused

ORDER: Final = 22
"""Outside of `compile` (20) and `attention` (21): what is compared runs eagerly, whatever compiles it later."""
TELL, HEAR = 59, 61
"""Inside and outside of the CUDA graphs (60). A replay runs no Python: how many rows each expert got is told as a part
of what the model returns."""
SHARE: Final = {"cuda": 0.93, "cpu": 0.2}
"""Of forward and backward. On a GPU the host waits for the rows of each expert; on the CPU only calls are saved.
More than compile's: that takes long over such a loop, and wins nothing before it is gone."""
LEAST_TORCH: Final = "2.4"


class GroupedExperts(Lever):
    name = "grouped-experts"
    meaning = "a loop over the experts of a mixture as one grouped product, without a host wait for each expert"
    risk = "numeric"
    tolerance = 0.005
    excludes = ("checkpoint-blocks", "quantize-linear")

    def applies(self, context: Context) -> Applies:
        facts = context.facts
        if not facts.roots:
            return Applies(False, "no module's forward was seen")
        if not any(root.experts for root in facts.roots):
            return Applies(False, "no loop over experts was found in the code of the model")
        if all(root.compiled for root in facts.roots):
            return Applies(False, "the script compiles the model itself")
        if facts.world > 1:
            return Applies(False, "the ranks of a distributed run share the model's gradients")
        most = max(root.experts for root in facts.roots)
        return Applies(True, f"a loop looks for the rows of {most} experts one after another")

    def share(self, context: Context) -> float:
        return SHARE["cuda" if context.cuda else "cpu"] * context.share_of("forward", "backward")

    def install(self, seams: "Seams", settings: Settings) -> None:
        import torch

        from hotlap.agent.seams import Refused

        if not hasattr(torch.library, "custom_op"):
            raise Refused(f"torch {torch.__version__} is older than {LEAST_TORCH}")
        grouped = Grouped(seams)
        seams.wrap_forward(grouped.wrap, ORDER)
        seams.wrap_forward(grouped.tell, TELL)
        seams.wrap_forward(grouped.hear, HEAR)
        seams.on_optimizer(grouped.on_optimizer)

    def source(self, settings: Settings) -> str:
        return (
            "# gate, up, down: (experts, out, in), all experts' weights; chosen, weights: (tokens, k) from topk\n"
            "flat = chosen.flatten()\n"
            "order = flat.argsort(stable=True)\n"
            "ends = torch.bincount(flat, minlength=len(down)).cumsum(0).int()\n"
            "product = lambda x, w: F.grouped_mm(x, w.transpose(-2, -1), offs=ends)  # bfloat16; ends multiples of 8\n"
            "rows = x[order // chosen.shape[1]]\n"
            "answers = product(F.silu(product(rows, gate)) * product(rows, up), down)\n"
            "out = torch.zeros_like(x).index_add(0, order // chosen.shape[1], answers * weights.flatten()[order, None])"
        )


class Told(NamedTuple):
    """What a model returned, and `Unused.told` of it."""

    output: Any
    rows: Any


class Grouped:
    """The layers in one process."""

    def __init__(self, seams: "Seams") -> None:
        from ._experts_plan import define

        define()
        self.seams = seams
        self.marks: list[Mark] = []
        self.unused: weakref.WeakKeyDictionary[Any, Unused] = weakref.WeakKeyDictionary()
        """Of outermost modules."""

    def wrap(self, root: Any, forward: "Forward") -> "Forward":
        """Around an outermost forward. Raises Refused where no loop in it can be read."""
        import torch

        from hotlap.agent.seams import Refused

        from ._experts_mark import COMPARED, MARK, find, put
        from ._experts_unused import Unused

        if hasattr(root, "module") or any(isinstance(part, torch.nn.DataParallel) for part in root.modules()):
            raise Refused("the model is wrapped, and what wraps it looks at its gradients")
        group = torch.distributed
        if group.is_available() and group.is_initialized() and group.get_world_size() > 1:  # a recipe of one process
            raise Refused("several processes train the model, and an expert without rows here has the others' gradient")
        marks, whys = find(root, self.leave)
        if not marks and any(MARK in vars(part) for part in root.modules()):
            return forward  # another outermost module has them too
        if not marks:
            raise Refused("; ".join(dict.fromkeys(whys)) or "no loop over experts was found in its modules' forwards")
        put(marks)
        self.marks += marks
        self.unused[root] = Unused(marks)
        calls: dict[Any, int] = {}

        def with_groups(*args: Any, **kwargs: Any) -> Any:
            live = [mark for mark in marks if not mark.off]
            for mark in live:
                if why := mark.watched.changed():
                    self.leave(mark, why)
                mark.paused = mark.watched.apart()
                mark.begin()
            kind = root.training, torch.is_grad_enabled(), torch.is_autocast_enabled(_device(root))
            calls[kind] = calls.get(kind, 0) + 1
            with self._looking() if live and calls[kind] <= COMPARED else contextlib.nullcontext():
                return forward(*args, **kwargs)

        return with_groups

    def tell(self, root: Any, forward: "Forward") -> "Forward":
        """Return beside the output what the loops would have passed over."""
        import torch

        unused = self.unused.get(root)
        if unused is None or not unused.experts:
            return forward

        def telling(*args: Any, **kwargs: Any) -> Any:
            unused.forget()  # what a recording's own backward may have computed again
            output = forward(*args, **kwargs)
            return Told(output, unused.told()) if torch.is_grad_enabled() else output

        return telling

    def hear(self, root: Any, forward: "Forward") -> "Forward":
        """Take that out again."""
        unused = self.unused.get(root)
        if unused is None or not unused.experts:
            return forward

        def hearing(*args: Any, **kwargs: Any) -> Any:
            unused.beside()
            output = None
            try:
                output = forward(*args, **kwargs)
            finally:
                if output is None:  # it failed
                    unused.forget()
            if type(output) is not Told:
                return output
            unused.returned(*output)
            return output.output

        return hearing

    @contextlib.contextmanager
    def _looking(self) -> Any:
        """Comparing takes time, and is not to be compiled."""
        from ._effects import eagerly

        self.seams.unsteady()
        with eagerly():
            yield

    def on_optimizer(self, optimizer: Any) -> None:
        """Before an optimizer's first step."""
        for unused in self.unused.values():
            unused.on_optimizer(optimizer)

    def leave(self, mark: "Mark", why: str) -> None:
        """A layer is as it was; the lever goes with the last."""
        from ._experts_mark import MARK

        mark.off = True
        vars(mark.module).pop(MARK, None)
        used = any(one.used for one in self.marks)
        if used or not all(one.off for one in self.marks):
            self.seams.refuse(LEVER.name, f"{type(mark.module).__name__}: {why}")
        else:
            self.seams.leave_out(LEVER.name, f"{type(mark.module).__name__}: {why}")


def _device(root: Any) -> str:
    return next((p.device.type for p in root.parameters()), "cpu")


LEVER = GroupedExperts()
