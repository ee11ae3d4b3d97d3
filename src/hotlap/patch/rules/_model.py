"""What the rules about the model share: its calls, and where a statement about it goes."""

from collections.abc import Iterable
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from hotlap.source.places import Places, Site
from hotlap.source.scopes import Scope, Var, dotted

from ._base import NO_LOOP, CannotWrite

CONVERSIONS = frozenset(["to", "cuda", "cpu", "double", "half", "bfloat16", "float", "compile"])


def trained_calls(places: Places) -> list[Site]:
    """The calls of the trained model; in commands that only infer, of the model. Raises CannotWrite."""
    if places.root_calls and (places.inference or places.backwards):
        return places.root_calls
    if places.inference:
        raise CannotWrite("the call of the model was not found")
    if places.backwards:
        raise CannotWrite("the call of the model before this backward was not found", places.backwards[:3])
    scopes = [scope for source in places.project.sources.values() for scope in source.walk.scopes.values()]
    steps = [scope for scope in scopes if scope.name in {"training_step", "compute_loss"}]
    raise CannotWrite(NO_LOOP, [scope.source.place(scope.node) for scope in steps])


# where the model is made


@dataclass(frozen=True)
class Spot:
    """A place for a statement about the model: after a statement, where the model has its final value."""

    scope: Scope
    after: cst.BaseStatement
    name: str


def spots(places: Places, sites: Iterable[Site]) -> list[Spot]:
    """Where each model of these calls has its final value. Raises CannotWrite, CannotTell."""
    return [_spot(places, variable) for variable in dict.fromkeys(map(places.model_variable, sites))]


def _spot(places: Places, variable: Var) -> Spot:
    source = variable.scope.source
    nodes = [binding.statement for binding in variable.bindings]
    if places.start is not None and places.start[0] is variable.scope:
        end = source.end(places.start[1])
        # Not those behind the training loop (`model = torch.load(best)`).
        nodes = [node for node in nodes if source.line(node) <= end] or nodes
    lines = [source.place(node) for node in nodes]
    homes = {source.scope(node) for node in nodes}
    if len(homes) != 1 or not all(isinstance(node, cst.Assign | cst.AnnAssign) for node in nodes):
        raise CannotWrite(f"`{variable.name}` is assigned in several functions", lines)
    paths = [list(source.above(node)) for node in nodes]
    common = (above for above in paths[0] if all(above in path for path in paths))
    body = next(above for above in common if isinstance(above, cst.IndentedBlock | cst.Module)).body
    at = max(at for at, statement in enumerate(body) if any(statement in path for path in paths))
    if any(source.inside(body[at], site.call) for site in places.backwards):
        raise CannotWrite(f"`{variable.name}` is assigned again in the training loop", lines)
    while at + 1 < len(body) and _of_model(body[at + 1], variable.name):
        at += 1
    return Spot(homes.pop(), body[at], variable.name)


def _of_model(node: cst.BaseStatement, name: str) -> bool:
    """`model.to(device)` and the like, on a line of its own."""
    if not m.matches(node, m.SimpleStatementLine([m.Expr(m.Call(m.Attribute()))])):
        return False
    func = m.findall(node, m.Call())[0].func  # type: ignore[attr-defined]
    return dotted(func.value) == name and func.attr.value in CONVERSIONS
