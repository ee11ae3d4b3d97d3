"""`non_blocking=True` where the loop moves its batch: the part of the lever that is a minimal diff."""

from collections.abc import Iterator

import libcst as cst

from hotlap.source.places import Places, Site
from hotlap.source.scopes import Scope, dotted

from ..edits import Changes, with_keywords
from ._base import NO_LOOP, CannotWrite, Edit, Rule, Settings, already, constant, written

PARTLY = (
    "the copies don't hold up the host any more, but begin when the step asks for them; copying ahead of the step "
    "takes a thread and a stream of its own, which is no small diff"
)


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses where the batches are not in pinned memory: then such a copy waits all the same."""
    if not places.backwards:
        raise CannotWrite(NO_LOOP)
    loader = places.training_loader()
    if not _pinned(loader):
        raise CannotWrite("the loader does not pin its batches, so the copies would wait all the same", [loader])
    moves = list(_moves(places))
    if not moves:
        why = "no line was found that moves a tensor of the batch to the device"
        raise CannotWrite(why, places.backwards[:3])
    todo = [site for site in moves if not _given(site.call)]
    if not todo:
        return already(places, moves)
    changes = Changes(places.project)
    for site in todo:
        changes.put(site.scope, site.call, with_keywords(site.source, site.call, {"non_blocking": "True"}))
    return written(changes, todo, PARTLY)


def _given(call: cst.Call) -> bool:
    return any(arg.keyword is not None and arg.keyword.value == "non_blocking" for arg in call.args)


def _pinned(loader: Site) -> bool:
    return any(
        arg.keyword is not None and arg.keyword.value == "pin_memory" and constant(arg.value) is True
        for arg in loader.call.args
    )


def _moves(places: Places) -> Iterator[Site]:
    """`x.to(device)` and `x.cuda()` of the tensors that the training loop unpacks from its batch."""
    for scope, call in places.names.calls:
        func = call.func
        if scope not in places.loops or not isinstance(func, cst.Attribute) or func.attr.value not in {"to", "cuda"}:
            continue
        others = [arg for arg in call.args if arg.keyword is None or arg.keyword.value != "non_blocking"]
        if len(others) > 1 or any(arg.star for arg in others) or not isinstance(func.value, cst.Name):
            continue
        if _from_batch(places, func.value.value, scope) and not _dtype(call):
            yield Site(scope, call)


def _dtype(call: cst.Call) -> bool:
    """`x.to(torch.float32)` and `x.to(memory_format=...)` move nothing."""
    first = call.args[0] if call.args else None
    if first is None:
        return False
    if first.keyword is not None and first.keyword.value not in {"device", "non_blocking"}:
        return True
    return "torch." in (dotted(first.value) or "")


def _from_batch(places: Places, name: str, scope: Scope) -> bool:
    """Whether a name is unpacked from what the loop around a backward takes from its loader."""
    variable = places.names.variable(name, scope)
    if variable is None or variable.scope is not scope:
        return False
    return any(
        isinstance(binding.statement, cst.For)
        and name in _leaves(binding.statement)
        and any(scope.source.inside(binding.statement, site.call) for site in places.backwards)
        for binding in scope.names[name]
    )


def _leaves(loop: cst.For) -> list[str]:
    """The names that a `for` unpacks from each element, without the number that `enumerate` puts before it."""
    target: cst.BaseExpression = loop.target
    if isinstance(loop.iter, cst.Call) and (dotted(loop.iter.func) or "").endswith("enumerate"):
        target = target.elements[1].value if isinstance(target, cst.Tuple) and len(target.elements) == 2 else target
    if not isinstance(target, cst.Tuple):
        return []
    return [element.value.value for element in target.elements if isinstance(element.value, cst.Name)]


RULE = Rule("device-prefetch", edit, order=40)
