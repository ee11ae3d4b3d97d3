"""Not a lever: a forward over a whole sequence of one length, as a graph that can be compiled (`_prefix_filled`).

It is made of the ops that two calls had in common, with the sizes of that length. What does not hang on the tokens,
such as weights in half precision and masks, is computed once: the recordings of other weights are dropped.
"""

import operator
from collections.abc import Sequence
from typing import Any

from ._call_inputs import Unfit
from ._prefix_build import Looks, Tables, dependent
from ._prefix_tape import TOKENS, Growing, Made, Outside, Size, put
from ._prefix_work import Plan, ahead, looked_at


def whole(plan: Plan, sources: Sequence[Made], looks: Sequence[Looks], length: int) -> Any:
    """A `torch.fx.GraphModule` of the tokens (batch, length). It returns the outputs of the forward, what is made at
    `sources`, and whether any token looks at a later one, (), boolean. Raises Unfit, TooLong."""
    graph = _Graph(plan.ops, looks, length)
    outputs, kept = ([graph.node(made) for made in found] for found in (plan.outputs, sources))
    return graph.module((*outputs, *kept, graph.any_ahead()))


class _Graph:
    def __init__(self, ops: Sequence[Growing], looks: Sequence[Looks], length: int) -> None:
        import torch

        self._length, self._looks = length, looks
        self._tables = Tables(ops, length)
        self._graph = torch.fx.Graph()
        self._nodes: dict[Made, Any] = {TOKENS: self._graph.placeholder("tokens")}
        self._constants: dict[int, Any] = {}
        self._attributes: dict[str, Any] = {}
        self._ahead: list[Any] = []
        on_tokens = dependent(ops)
        for at, op in enumerate(ops):
            if at in on_tokens:
                self._add(at, op)
        self._tables.forget()

    def _add(self, at: int, op: Growing) -> None:
        args, kwargs = put(op.args, self.node), put(op.kwargs, self.node)
        made = self._graph.call_function(op.func, tuple(args), kwargs)
        for out in range(len(op.shapes)):
            one = self._graph.call_function(operator.getitem, (made, out)) if op.many else made
            self._nodes[Made(at, out)] = one
        for look in self._looks:
            if look.op == at:
                self._look(look, looked_at(look, op.func, args, kwargs, made))

    def _look(self, look: Looks, shown: Any) -> None:
        if shown.op != "get_attr":
            self._ahead.append(self._graph.call_function(ahead, (look.by, shown, self._length)))
        elif ahead(look.by, self._attributes[shown.target], self._length):
            raise Unfit("tokens look at later ones")

    def node(self, value: Any) -> Any:
        """Of an argument."""
        if isinstance(value, Size):
            return value.at(self._length)
        if not isinstance(value, (Made, Outside)):
            return value
        if isinstance(value, Made) and value in self._nodes:
            return self._nodes[value]
        tensor = self._tables.value(value)
        if id(tensor) not in self._constants:
            name = f"constant_{len(self._constants)}"
            self._attributes[name] = tensor
            self._constants[id(tensor)] = self._graph.get_attr(name)
        return self._constants[id(tensor)]

    def any_ahead(self) -> Any:
        """Of all that was looked at."""
        import torch

        if not self._ahead:
            shape = self._graph.call_function(torch.ops.aten.zeros_like.default, (self._nodes[TOKENS],))
            return self._graph.call_function(torch.ops.aten.any.default, (shape,))
        stacked = self._graph.call_function(torch.ops.aten.stack.default, (self._ahead,))
        return self._graph.call_function(torch.ops.aten.any.default, (stacked,))

    def module(self, outputs: tuple[Any, ...]) -> Any:
        """The graph as a callable."""
        import torch

        self._graph.output(outputs)
        self._graph.eliminate_dead_code()
        return torch.fx.GraphModule(self._attributes, self._graph)
