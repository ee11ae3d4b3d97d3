"""Puts scaled_dot_product_attention in the place of attention that `_find` found.

What is kept, beyond rounding:
* A mask that is provably causal becomes `is_causal`, which alone lets the flash kernel run. Others are passed on: as a
  boolean mask where every step on the scores is a fill, else as the sum that those steps make of zeros.
* A row in which everything is masked: with a fill of minus infinity the script gets NaN, from here on zeros or NaN, as
  the kernel has it. With a finite fill (at most NEVER, which weighs nothing beside any other score) the script gets the
  mean of v, and so it does from here on, though without dropout on it.
* Dropout of the weights moves into the kernel, which draws other random numbers with the same probability. With
  `same_random`, for the run that proves parity, such attention runs by the kernel named math, which draws the numbers
  that dropout by hand draws.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from hotlap.agent.torch_internals import unset_fake

from .._base import Unfit
from ._build import HALF, SURELY_NEVER, Build
from ._check import ALLOWED, Unchecked, differs
from ._find import (
    Finder,
    Operand,
    Site,
    Step,
    argument,
    erase_idle,
    op,
    shape_of,
    transposed,
)
from ._masks import NEVER, Constants, Relied, Varies, holders, is_causal

TORCHS_OWN: Final = "multi_head_attention_forward"
CASTED: Final = {"to", "float", "double", "type"}


@dataclass
class Report:
    """What became of the softmaxes of one graph. left: why each of the others was left alone; unchecked: why the new
    form of some could not be compared with the old on random tensors."""

    rewritten: int = 0
    causal: int = 0
    masked: int = 0
    left: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)


class Rewrite:
    """One graph. inputs: none of a graph inside another; roots, relied, same_random: see `rewrite`."""

    def __init__(
        self, graph_module: Any, inputs: list[Any], roots: list[Any], relied: Relied, same_random: bool, report: Report
    ) -> None:
        self.graph_module, self.graph = graph_module, graph_module.graph
        placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
        known = dict(zip(placeholders, inputs, strict=True)) if inputs else {}
        self.constants = Constants(known, holders(roots))
        self.relied, self.same_random, self.report = relied, same_random, report
        self.checked: set[str] = set()

    def run(self) -> None:
        """Rewrite what can be; the graph is left as it was where nothing can."""
        erase_idle(self.graph)
        for node in [node for node in self.graph.nodes if op(node) in {"softmax", TORCHS_OWN}]:
            try:
                if op(node) == TORCHS_OWN:
                    self._without_weights(node)
                else:  # anew: the one before may have changed what this one is fed by
                    self._replace(Finder(self.graph, self.number).site(node))
            except Unfit as why:
                self.report.left.append(str(why))
        if self.report.rewritten:
            self.graph.lint()
            self.graph_module.recompile()

    def number(self, value: Any) -> float | None:
        """A number, also where the script keeps it in a tensor of one element. None where it is not known."""
        if isinstance(value, torch.fx.Node):
            try:
                found, relied = self._constant(value)
            except Varies:
                return None
            if isinstance(found, torch.Tensor) and found.numel() != 1:
                return None
            self.relied.update(relied)
            value = found.item() if isinstance(found, torch.Tensor) else found
        return float(value) if isinstance(value, (int, float)) else None

    def _constant(self, node: Any) -> tuple[Any, Relied]:
        with torch.no_grad(), unset_fake():
            return self.constants.value(node)

    # one site

    def _without_weights(self, node: Any) -> None:
        """nn.MultiheadAttention runs the kernel itself where it is not asked for the weights."""
        if not node.kwargs.get("need_weights", True):
            return
        if any(op(user) != "getitem" or user.args[1] != 0 for user in node.users):
            raise Unfit("the weights are used for something else")
        if self.same_random and node.kwargs.get("training", True) and argument(node, 10, "dropout_p"):
            raise Unfit("its dropout would draw other numbers")
        node.update_kwarg("need_weights", False)
        self.report.rewritten += 1
        self.report.masked += not all(node.kwargs.get(name) is None for name in ("key_padding_mask", "attn_mask"))

    def _replace(self, site: Site) -> None:
        dtype = site.final.meta["example_value"].dtype
        q, k, v = (self._lower(operand, dtype) for operand in (site.q, site.k, site.v))
        types = {operand.node.meta["example_value"].dtype for operand in (q, k, v)}
        product = site.product.meta["example_value"].dtype
        autocast = dtype in HALF and product == dtype and types <= {torch.float32, dtype}
        if types != {dtype} and not autocast:
            raise Unfit("q, k and v are of different types")
        if not dtype.is_floating_point:
            raise Unfit(f"q, k and v are {dtype}")
        made, fits = Build(self.graph, site, dtype, self.same_random), False
        try:
            with self.graph.inserting_before(site.final):
                causal, masks = self._masks(site, made)
                result = made.attention(q, k, v, causal, masks)
            self._check(site, result, (dtype, causal, q.shape, k.shape, v.shape))
            fits = True
        finally:
            if not fits:
                made.undo()
        result.meta = dict(site.final.meta)
        site.final.replace_all_uses_with(result)
        erase_idle(self.graph, [*site.inside, site.final])
        self.report.rewritten += 1
        self.report.causal += causal
        self.report.masked += masks is not None

    def _check(self, site: Site, result: Any, alike: tuple[Any, ...]) -> None:
        """Compare with the original on random tensors, once for attention that is alike. Raises Unfit."""
        steps = [(s.kind, s.value, s.unless, s.node is not None and str(shape_of(s.node))) for s in site.steps]
        key = str((alike, steps, site.q.order, site.k.order, site.v.order, site.out_order))
        if key in self.checked:
            return
        try:
            with unset_fake():
                difference = differs(self.graph, site, result, self._known)
        except (Unchecked, RuntimeError) as why:  # RuntimeError: out of memory, most likely
            self.report.unchecked.append(str(why)[:200])
            return
        allowed = ALLOWED[site.final.meta["example_value"].dtype]
        if not difference <= allowed:
            raise Unfit(f"the fused result differs by {difference:.1%} from the original, more than {allowed:.1%}")
        self.checked.add(key)

    def _known(self, node: Any) -> Any:
        """A constant's value, None of what is none."""
        try:
            return self._constant(node)[0]
        except Varies:
            return None

    def _lower(self, operand: Operand, dtype: Any) -> Operand:
        """Without a transposition, and without a cast from the type that attention ends in: the kernel takes k as it
        is, and computes in float32 inside."""
        node = operand.node
        if operand.swap and (before := transposed(node)) is not None:
            node, operand = before, operand._replace(swap=False)
        while op(node) in CASTED and node.args and isinstance(node.args[0], torch.fx.Node):
            source = node.args[0]
            before = source.meta.get("example_value")
            after = node.meta["example_value"]
            if not isinstance(before, torch.Tensor) or before.dtype != dtype or before.device != after.device:
                break
            node = source
        return operand._replace(node=node)

    def _masks(self, site: Site, made: "Build") -> tuple[bool, Any]:
        """Whether it is causal, and else the mask to pass, as `Build` writes it (None: none)."""
        fixed, dynamic = None, False
        relied: Relied = {}
        for at, step in enumerate(site.steps):
            scale = math.prod(later.value for later in site.steps[at + 1 :] if later.kind == "scale")
            if step.kind == "fill" and not step.value * scale <= NEVER:
                raise Unfit(f"masked with {step.value:g}, which is not negligible")
            if step.kind not in {"fill", "add"}:
                continue
            try:
                keep, found = self._kept(site, step, scale)
            except Varies:
                dynamic = True
                continue
            relied.update(found)
            fixed = keep if fixed is None else fixed & keep
        if not dynamic and (fixed is None or bool(fixed.all()) or is_causal(fixed)):
            self.relied.update(relied)
            return fixed is not None and not bool(fixed.all()), None
        return False, made.mask()

    def _kept(self, site: Site, step: Step, scale: float) -> tuple[Any, Relied]:
        """Where a constant mask lets attend, (L, S). Raises Varies, also where these sizes are not known. scale: what
        the scores are multiplied by after the step."""
        value, relied = self._constant(step.node)
        rows, columns = site.shape[-2:]
        if not isinstance(value, torch.Tensor):
            raise Varies("no tensor")
        if not all(type(size) is int for size in (rows, columns)):
            raise Varies("a size that is not known")
        if value.dim() < 2 or math.prod(value.shape[:-2]) != 1:
            raise Varies("the mask differs between batches or heads")
        keep = value.reshape(value.shape[-2:]).expand(rows, columns)
        if step.kind == "fill":
            return (keep if step.unless else ~keep), relied
        low = keep if step.value > 0 else -keep
        if keep.dtype == torch.bool or not bool(((low == 0) | (low.double() * scale <= SURELY_NEVER)).all()):
            raise Varies("a bias")
        return low == 0, relied


def rewrite(graph_module: Any, inputs: list[Any], roots: list[Any], relied: Relied, same_random: bool) -> Report:
    """Rewrite a graph and those inside it. roots: modules whose masks may be looked at; relied: gets what the rewritten
    code relies on, also where an error comes later; same_random: draw as dropout by hand."""
    report = Report()
    Rewrite(graph_module, inputs, roots, relied, same_random, report).run()
    for name, inner in graph_module.named_modules():
        if name and isinstance(inner, torch.fx.GraphModule):
            Rewrite(inner, [], [], relied, same_random, report).run()
    return report
