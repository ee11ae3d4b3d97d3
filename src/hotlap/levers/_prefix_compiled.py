"""Not a lever: the last token's work compiled, which is one graph of known shapes (`_prefix_build`).

Compiling takes many seconds, and again where the caches grow, so it is done when a second sequence begins that there is
room for. Until then steps are not steady ones.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from . import _prefix_attention
from ._forward_graph import tried
from ._prefix_work import Form, Work

MOST_PENDING: Final = 1024
"""Tokens of a first sequence whose steps are marked as unsteady; one that is longer may be the only one."""
MOST_COMPILED: Final = 3
"""Of calls that differ in the tokens only, where more room is needed or their ops changed."""
LARGE: Final = 1 << 22
"""Numbers of a constant of which a copy is worth it."""
WIDENED_ON: Final = frozenset({"cuda"})
PARTS: Final = 64
ALIGNED: Final = 8
"""Numbers of half precision, 16 bytes, that tensor cores take at once."""

OPTIONS: Final = {"max_autotune_pointwise": True}
"""Inductor tries more shapes of blocks for what is no product, which is two thirds of a token's work: 0.72 ms a token
where it was 0.74, in one run each on an H100, and it took no longer to compile."""

Compiler = Callable[..., Callable[..., Sequence[Any]]]
"""Of a `torch.fx.GraphModule` and its arguments (a token and its place; the tokens of a sequence): it, compiled at its
first call."""


class Compiling:
    """When to compile. failed: called with the reason, once; from then on nothing is compiled."""

    def __init__(self, compiler: Compiler | None, failed: Callable[[str], None]) -> None:
        self._compiler, self._failed = compiler, failed
        self._pending = 0

    def pending(self, form: Form, work: Work) -> bool:
        """Whether it will be compiled when the next sequence begins, as far as that can be known."""
        if not self._open(form, work):
            return False
        self._pending += 1
        return self._pending <= MOST_PENDING

    def _open(self, form: Form, work: Work) -> bool:
        return self._compiler is not None and work.plain is None and form.compiled < MOST_COMPILED

    def compile(self, form: Form, work: Work) -> bool:
        """A sequence begins, and the last one had room. Whether the work is now what the compiler makes of it, which
        has to agree with the whole anew."""
        compiler = self._compiler
        if compiler is None or not self._open(form, work):
            return False
        form.compiled += 1
        made, failed = tried(lambda: compiler(work.run, work.token, work.place))
        if failed:
            self.give_up(work, failed)
            return False
        work.plain, work.run = work.run, made
        work.replay, work.guess, work.proofs, self._pending = None, None, 0, 0
        return True

    def filling(self, make: Callable[[], Any], work: Work, tokens: Any) -> Callable[[Any], Sequence[Any]] | None:
        """A forward over a whole sequence, which `make` makes a graph of, compiled where the last token's work is; None
        where that fails."""
        compiler = self._compiler
        if compiler is None or work.plain is None:
            return None
        made, failed = tried(lambda: compiler(make(), tokens))
        return None if failed or tried(lambda: made(tokens))[1] else made

    def likeliest(self, work: Work, rows: Any) -> Callable[[Any], Any] | None:
        """Of rows of numbers like these, (batch, n), where each one's largest is, (batch, 1), compiled where the last
        token's work is; None where it is not."""
        compiler = self._compiler
        if compiler is None or work.plain is None:
            return None
        made, failed = tried(lambda: compiler(largest(rows.shape[1]), rows))
        return None if failed or tried(lambda: made(rows))[1] else lambda rows: made(rows)[0]

    def run(self, work: Work) -> Sequence[Any]:
        """What the last token's work makes."""
        if work.plain is None:
            return work.run(work.token, work.place)
        made, failed = tried(lambda: work.run(work.token, work.place))
        if failed:
            self.give_up(work, failed)
            return work.run(work.token, work.place)
        return made  # type: ignore[no-any-return]

    def give_up(self, work: Work, why: str) -> None:
        """From here on the work is as it was written down."""
        if work.plain is not None:
            work.run, work.plain = work.plain, None
            work.replay, work.guess, work.proofs = None, None, 0
        if self._compiler is not None:
            self._compiler = None
            self._failed(f"the last token's work could not be compiled: {why}")


def largest(columns: int) -> Any:
    """A `torch.fx.GraphModule` of rows (batch, columns) that tells where the first of each one's largest numbers is,
    (batch, 1). In parts: a kernel for a whole row of a vocabulary each keeps as many processors busy as there are rows,
    and took 14 µs on an H100."""
    import torch

    def where(rows: Any) -> Any:
        parts = torch.nn.functional.pad(rows, (0, -columns % PARTS), value=-math.inf).unflatten(1, (PARTS, -1))
        numbers, places = parts.max(-1)
        part = numbers.argmax(-1, keepdim=True)
        return (places.gather(1, part) + part * -(-columns // PARTS),)

    return torch.fx.symbolic_trace(where)


def compiled(work: Any, *inputs: Any) -> Callable[..., Sequence[Any]]:
    """A `Compiler`. What Inductor leaves to libraries and what these are slow at is written otherwise."""
    import torch
    from torch.fx.passes.shape_prop import ShapeProp

    ops = torch.ops.aten
    ShapeProp(work).propagate(*inputs)
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(work.graph, {}))
    wide: dict[str, Any] = {}
    _prefix_attention.fuse(work, graph, inputs[0].device)
    for node in graph.find_nodes(op="call_function", target=ops.bmm.default):
        _as_sum(graph, node)
    for node in graph.find_nodes(op="call_function", target=ops.mm.default):
        _aligned(graph, node, work, wide)
    kept = {str(node.target): getattr(work, node.target) for node in work.graph.find_nodes(op="get_attr")}
    module = torch.fx.GraphModule({**kept, **wide}, graph)
    return torch.compile(module.forward, fullgraph=True, dynamic=False, options=OPTIONS)  # type: ignore[no-any-return]


def _as_sum(graph: Any, node: Any) -> None:
    """On a GPU a product with one row is left to libraries; as a sum of products it is one kernel with what is around
    it."""
    import torch

    ops = torch.ops.aten
    one, other = node.args
    if one.meta["tensor_meta"].shape[1] != 1:
        return
    with graph.inserting_before(node):
        column = graph.call_function(ops.transpose.int, (one, 1, 2))
        products = graph.call_function(ops.mul.Tensor, (column, other))
        total = graph.call_function(ops.sum.dim_IntList, (products, [1], True))
    total.meta = node.meta
    node.replace_all_uses_with(total)
    graph.erase_node(node)


def _aligned(graph: Any, node: Any, work: Any, wide: dict[str, Any]) -> None:
    """The product with a large constant of half precision whose columns are of an odd number, such as a vocabulary of
    50,257, with some more columns: on an H200 it took 103 µs of a token's 654, and takes 23 so. wide: constants that
    are new."""
    import torch

    ops = torch.ops.aten
    value, weight = node.args
    kept = getattr(work, weight.target) if weight.op == "get_attr" else None
    if kept is None or kept.element_size() != 2 or kept.device.type not in WIDENED_ON:
        return
    columns, name = kept.shape[1], f"{weight.target}_wide"
    if kept.numel() < LARGE or not columns % ALIGNED:
        return
    wide[name] = torch.nn.functional.pad(kept.t(), (0, 0, 0, -columns % ALIGNED)).t()
    with graph.inserting_before(node):
        made = graph.call_function(ops.mm.default, (value, graph.get_attr(name)))
        node.replace_all_uses_with(graph.call_function(ops.slice.Tensor, (made, 1, 0, columns)))
    graph.erase_node(node)
