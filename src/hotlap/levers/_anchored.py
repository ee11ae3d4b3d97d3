"""Not a lever: gradients of parameters that autograd does not see, since a replayed backward puts them in place itself
(`_training_graph`).

Each parameter in autograd's graph has a node that adds up its gradient, and costs some microseconds of a step. A model
that is replayed as one function can do without: it leads to one leaf of its own, the anchor, and its backward gives the
parameters their gradients, as those nodes would (torch/csrc/autograd/functions/accumulate_grad.h): the first one as it
is, later ones added in place.

That is what `backward()` asks for. `torch.autograd.grad(loss, parameters)` and `backward(inputs=...)` ask for
gradients of what is not in the graph: here they ask for the anchor's, and get those of the parameters beside it.
"""

import functools
import inspect
import operator
import sys
import weakref
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, Final

from ._internals import internals

HOOKING: Final = ("apex", "colossalai", "deepspeed", "fairscale", "horovod")
"""Packages that hook themselves to the nodes that add up gradients, which can't be seen from outside."""
UNUSED: Final = (
    "One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True if this is "
    "the desired behavior."
)


class Token:
    """Lives as long as a forward awaits its backward. collected: by the parameter's id, where gradients are asked for
    rather than to be put in place; hookless: what `handles` gave when no parameter had hooks."""

    def __init__(self, anchor: Any = None, parameters: Sequence[Any] = (), hookless: int | None = None) -> None:
        self.anchor, self.parameters, self._hookless = anchor, parameters, hookless
        self.collected: dict[int, Any] | None = None

    def settle(self, gradients: Sequence[Any], node: Any) -> None:
        """Give the parameters their gradients, None of those that have none, in the backward that made them. node: of
        the anchor in its graph."""
        if self.collected is not None:
            for p, g in zip(self.parameters, gradients, strict=True):
                if g is not None:
                    known = self.collected.get(id(p))
                    self.collected[id(p)] = g if known is None else known + g
        elif adds_up(node):
            add_up(self.parameters, gradients, hooks=self._hookless is None or self._hookless != handles())


_tokens: "weakref.WeakValueDictionary[int, Token]" = weakref.WeakValueDictionary()
"""Of forwards whose parameters are not in the graph, by the model that they are of."""


def awaiting(owner: object, anchor: Any, parameters: Sequence[Any], hookless: int | None) -> Token:
    """The token of a forward of a model (owner)."""
    token = _tokens[id(owner)] = Token(anchor, parameters, hookless)
    return token


def new_anchor(device: Any) -> Any:
    import torch

    return torch.zeros((), dtype=torch.float32, device=device, requires_grad=True)


def possible() -> bool:
    """Whether nobody is known to look at the nodes that there would not be."""
    return not any(name in sys.modules for name in HOOKING)


def handles() -> int | None:
    """As long as this is the same number, no hook was put on anything; None where this torch does not count them."""
    from torch.utils.hooks import RemovableHandle

    return getattr(RemovableHandle, "next_id", None)


def plain(parameters: Sequence[Any]) -> bool:
    """Whether these may be left out of the graph now. Hooks are called once with the sum of all gradients, of which
    others may come from outside of the model; what is no leaf (`functional_call`) has no gradient in place."""
    import torch

    inner = internals()
    hooks, later = any(map(inner.tensor_hooks, parameters)), any(map(inner.gradient_hooks, parameters))
    return not hooks and not later and {torch.nn.Parameter}.issuperset(map(type, parameters))


def held(parameters: Sequence[Any]) -> bool:
    """In a backward: whether the script keeps nodes of some of these, as those do that hook themselves to them."""
    import torch

    with torch.enable_grad():
        nobodys = new_anchor("cpu") + 0  # a node in a graph, as theirs are
    nodes = [*map(node_of, parameters), nobodys.grad_fn.next_functions[0][0]]
    *counts, own = map(sys.getrefcount, nodes)
    return any(count > own for count in counts)


def node_of(leaf: Any) -> Any:
    """Its node in autograd's graph, which adds up its gradient."""
    import torch

    return torch.autograd.graph.get_gradient_edge(leaf).node


def adds_up(node: Any) -> bool:
    """In a backward: whether it adds up the gradient of the leaf of this node, and does not merely give that, or those
    of others, to who asks."""
    try:
        return bool(internals().adds_gradient(node))
    except RuntimeError:  # torch.autograd.grad asked for it
        return False


def add_up(parameters: Sequence[Any], gradients: Sequence[Any], hooks: bool = True) -> None:
    """As the nodes of the parameters would: hooks, then the first gradient as it is, others added. hooks: whether there
    may be any."""
    import torch

    inner = internals()
    hooks = hooks and any((*map(inner.tensor_hooks, parameters), *map(inner.gradient_hooks, parameters)))
    if not hooks and _all_first(parameters, gradients):
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = g
        return
    pairs = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None and p.requires_grad]
    if hooks:
        pairs = [(p, _hooked(p, g)) for p, g in pairs]
    adding: list[tuple[Any, Any]] = []
    for p, g in pairs:
        if p.grad is None:
            p.grad = g
        elif torch.is_grad_enabled() or p.grad.layout != torch.strided:
            p.grad = g + p.grad
        else:
            adding.append((p.grad, g))
    if adding:
        inner.add_all([was for was, _ in adding], [g for _, g in adding])
    if hooks:
        for p, _ in pairs:
            for hook in tuple((inner.gradient_hooks(p) or {}).values()):
                hook(p)


def _all_first(parameters: Sequence[Any], gradients: Sequence[Any]) -> bool:
    """Whether each parameter is to have a gradient, and none has one yet."""
    absent = repeat(None)
    return (
        not any(map(operator.is_, gradients, absent))
        and all(map(operator.is_, map(attrgetter("grad"), parameters), absent))
        and all(map(attrgetter("requires_grad"), parameters))
    )


def _hooked(p: Any, gradient: Any) -> Any:
    hooks = tuple((internals().tensor_hooks(p) or {}).values())
    for hook in hooks:
        made = hook(gradient)
        gradient = gradient if made is None else made
    return gradient.clone() if hooks else gradient  # a hook may have kept it


def install() -> None:
    """Let torch's functions know of forwards whose parameters are not in the graph. Once a process."""
    import torch

    if not hasattr(torch.autograd.grad, "_hotlap"):
        torch.autograd.backward = _backward(torch.autograd.backward)
        torch.autograd.grad = _grad(torch.autograd.grad)


def _grad(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def grad(*args: Any, **kwargs: Any) -> Any:
        import torch

        if torch.compiler.is_compiling() or not _tokens:
            return original(*args, **kwargs)
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        call.arguments["inputs"] = wanted = _several(call.arguments["inputs"])
        tokens = _of(wanted)
        if not tokens:
            return original(*call.args, **call.kwargs)
        made = _asked(original, call, wanted, tokens)
        materialize, unused = call.arguments.get("materialize_grads", False), call.arguments.get("allow_unused")
        if materialize:
            made = [_zeros(p) if g is None else g for p, g in zip(wanted, made, strict=True)]
        elif not unused and any(g is None for g in made):
            raise RuntimeError(UNUSED)
        return tuple(made)

    grad._hotlap = True  # type: ignore[attr-defined]
    return grad


def _asked(original: Callable[..., Any], call: inspect.BoundArguments, wanted: Any, tokens: Sequence[Token]) -> Any:
    """Gradients of what is in the graph, and of parameters that are not."""
    ask = {**call.arguments, "allow_unused": True}
    if "materialize_grads" in ask:
        ask["materialize_grads"] = False
    made, found = _collected(original, ask, wanted, tokens)
    once = {id(p): p for p in wanted}
    hooked = {key: _hooked(once[key], g) for key, g in found.items() if key in once}
    return [_sum(g, hooked.get(id(p))) for p, g in zip(wanted, made[: len(wanted)], strict=True)]


def _collected(original: Callable[..., Any], ask: Any, wanted: Any, tokens: Sequence[Token]) -> tuple[Any, Any]:
    """What a function returns that is asked for the anchors too, and by the parameter's id what these stand for."""
    found: dict[int, Any] = {}
    before = [token.collected for token in tokens]  # a backward may ask itself
    for token in tokens:
        token.collected = found
    try:
        made = original(**{**ask, "inputs": (*wanted, *(token.anchor for token in tokens))})
    finally:
        for token, was in zip(tokens, before, strict=True):
            token.collected = was
    return made, found


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        import torch

        if torch.compiler.is_compiling() or not _tokens or not (len(args) > 5 or kwargs.get("inputs") is not None):
            return original(*args, **kwargs)
        call = signature.bind(*args, **kwargs)
        wanted = _several(call.arguments.get("inputs"))
        tokens = _of(wanted)
        if not tokens:
            return original(*args, **kwargs)
        _, found = _collected(original, call.arguments, wanted, tokens)
        asked = tuple({id(p): p for p in wanted if id(p) in found}.values())
        with torch.set_grad_enabled(bool(call.arguments.get("create_graph"))):
            add_up(asked, [found[id(p)] for p in asked])
        return None

    return backward


def _several(inputs: Any) -> tuple[Any, ...]:
    import torch

    one = isinstance(inputs, (torch.Tensor, torch.autograd.graph.GradientEdge))
    return (inputs,) if one else tuple(inputs or ())


def _of(wanted: Sequence[Any]) -> list[Token]:
    """Forwards that await their backward and are of one of these."""
    asked = set(map(id, wanted))
    return [token for token in list(_tokens.values()) if not asked.isdisjoint(map(id, token.parameters))]


def _sum(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else one + other


def _zeros(p: Any) -> Any:
    import torch

    return torch.zeros_like(p, requires_grad=True)
