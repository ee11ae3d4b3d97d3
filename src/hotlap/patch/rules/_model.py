"""What the rules about the model share: where a statement about it goes, and how its outputs are converted."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import libcst as cst

from hotlap.source.names import At
from hotlap.source.places import Places, Site
from hotlap.source.scopes import Scope, Var, dotted
from hotlap.source.start import Start, training_start
from hotlap.source.tensors import TENSOR_METHODS, reads
from hotlap.source.tree import Source

from ..edits import Replacement, block_of, inside, own_line
from ._base import NO_LOOP, CannotWrite, lines_of

CONDITIONAL = (
    cst.IfExp, cst.BooleanOperation, cst.Lambda, cst.CompFor, cst.ListComp, cst.GeneratorExp, cst.DictComp, cst.SetComp,
    cst.NamedExpr, cst.Await, cst.Yield, cst.Assert,
)  # fmt: skip
"""What may evaluate a call in it never, or more than once."""
RECURRENT = ("LSTM", "GRU", "RNN", "MultiheadAttention")
"""torch's modules that return more than a tensor."""


def trained_calls(places: Places) -> list[Site] | CannotWrite:
    """The calls of the trained model; in commands that only infer, of the model."""
    if places.inference:
        return places.root_calls or CannotWrite("the call of the model was not found")
    if not places.backwards:
        steps = [
            scope.source.place(scope.node)
            for source in places.project.sources.values()
            for scope in places.names.of(source).scopes.values()
            if scope.name in {"training_step", "compute_loss"}
        ]
        return CannotWrite(NO_LOOP, tuple(steps))
    if not places.root_calls:
        lines = lines_of(places.backwards[:3])
        return CannotWrite("the call of the model before this backward was not found", lines)
    return places.root_calls


# where the model is made


@dataclass(frozen=True)
class Spot:
    """A place for a statement about the model: after a statement, where the model has its final value."""

    source: Source
    scope: Scope
    after: cst.BaseStatement
    name: str


def spots(places: Places, sites: Iterable[Site]) -> list[Spot] | CannotWrite:
    """Where each model of these calls has its final value."""
    found: dict[tuple[Scope, str], Spot] = {}
    for site in sites:
        variable = places.model_variable(site)
        if isinstance(variable, CannotWrite):
            return variable
        if tuple(variable) not in found:
            spot = _spot(places, variable)
            if isinstance(spot, CannotWrite):
                return spot
            found[variable.scope, variable.name] = spot
    return list(found.values())


def _spot(places: Places, variable: Var) -> Spot | CannotWrite:
    source = variable.scope.source
    nodes = _before_training(places, variable)
    lines = tuple(source.place(node) for node in nodes)
    homes = {source.scope(node) for node in nodes}
    if len(homes) != 1 or not all(isinstance(node, cst.Assign | cst.AnnAssign) for node in nodes):
        return CannotWrite(f"`{variable.name}` is assigned in several functions", lines)
    found = block_of(source, nodes)
    if found is None or isinstance(homes & {variable.scope.node}, cst.ClassDef):
        return CannotWrite(f"`{variable.name}` is assigned in places that no block holds", lines)
    block, statements = found
    last = statements[-1]
    for loop in [node for node in places.backwards if node.source is source]:
        if source.around(loop.call, cst.For, cst.While) is last or inside(source, last, loop.call):
            return CannotWrite(f"`{variable.name}` is assigned again in the training loop", lines)
    body: list[cst.BaseStatement] = list(block.body)  # type: ignore[attr-defined]
    at = body.index(last)
    while at + 1 < len(body) and _of_model(body[at + 1], variable.name):
        at += 1
    home = places.names.scope(source, nodes[0])
    return Spot(source, home, body[at], variable.name)


def _before_training(places: Places, variable: Var) -> list[cst.CSTNode]:
    """The statements that assign a variable, but for those behind the training loop (`model = torch.load(best)`)."""
    nodes = [binding.statement for binding in variable.scope.names[variable.name]]
    start = training_start(places) if places.backwards else None
    if isinstance(start, Start) and start.scope is variable.scope:
        end = start.source.end(start.loop).line
        return [node for node in nodes if start.source.line(node) <= end] or nodes
    return nodes


def _of_model(node: cst.BaseStatement, name: str) -> bool:
    """`model.to(device)` and the like, on a line of its own."""
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return False
    small = node.body[0]
    if not isinstance(small, cst.Expr) or not isinstance(small.value, cst.Call):
        return False
    func = small.value.func
    return (
        isinstance(func, cst.Attribute)
        and dotted(func.value) == name
        and func.attr.value in {"to", "cuda", "cpu", "double", "half", "bfloat16", "float", "compile"}
    )


def same_model(places: Places, node: cst.BaseExpression, scope: Scope, sites: Iterable[Site]) -> bool:
    """Whether an expression is one of the models that are called."""
    own = {at.node for at in places.names.origins(node, scope)}
    return any(own & {at.node for at in places.names.origins(site.call.func, site.scope)} for site in sites)


# its outputs


@dataclass
class Converted:
    """How a call is rewritten so that its outputs are converted. line: the statement it stands in; changes: of nodes in
    it; first: a statement that computes the outputs before it; following: statements after it."""

    site: Site
    line: cst.SimpleStatementLine
    changes: dict[cst.CSTNode, Replacement] = field(default_factory=dict)
    first: str = ""
    following: tuple[str, ...] = ()


def convert(places: Places, site: Site, method: str, name: str) -> Converted | CannotWrite:
    """Rewrite a call so that its output tensors go through a method such as `float`. name: for a new variable.

    Refuses where it can't be proven that the output is a tensor, or that nothing is evaluated in another order.
    """
    source, call = site.source, site.call
    line = own_line(source, call)
    if line is None or not isinstance(line.body[0], cst.Assign | cst.Expr | cst.Return | cst.AugAssign | cst.AnnAssign):
        return CannotWrite("the model is called in a statement that can't be split", (site.place,))
    chain = _chain(source, call)
    top = source.parent(chain[-1])
    if isinstance(top, cst.Assign | cst.AnnAssign) and len(chain) == 1:
        return _assigned(places, site, line, top, method)
    if len(chain) > 1 and isinstance(top, cst.Assign | cst.AnnAssign):
        return Converted(site, line, {call: _through(method)})
    why = _moved(source, line, call)
    if why:
        return CannotWrite(why, (site.place,))
    if len(chain) == 1 and not _tensor_argument(places, site) and not returns_tensor(places, site):
        return CannotWrite("what the model returns here was not proven to be a tensor", (site.place,))
    text = source.tree.code_for_node(call)
    return Converted(site, line, {call: lambda node: cst.Name(name)}, f"{name} = {text}.{method}()")


def in_place(places: Places, site: Site, method: str) -> Converted | CannotWrite:
    """As `convert`, for a conversion that may stand anywhere: no statement is split."""
    line = own_line(site.source, site.call)
    chain = _chain(site.source, site.call)
    top = site.source.parent(chain[-1])
    if line is None:
        return CannotWrite("the model is called in a statement that has no line of its own", (site.place,))
    if len(chain) == 1 and isinstance(top, cst.Assign | cst.AnnAssign):
        return _assigned(places, site, line, top, method)
    if len(chain) == 1 and not _tensor_argument(places, site) and not returns_tensor(places, site):
        return CannotWrite("what the model returns here was not proven to be a tensor", (site.place,))
    return Converted(site, line, {site.call: _through(method)})


def _through(method: str) -> Replacement:
    def change(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.BaseExpression)
        return cst.Call(cst.Attribute(node, cst.Name(method)))

    return change


def _chain(source: Source, call: cst.Call) -> list[cst.CSTNode]:
    """The call, and the calls of tensor methods on its result: `model(x).view(-1).mean()`."""
    found: list[cst.CSTNode] = [call]
    while True:
        attribute = source.parent(found[-1])
        outer = source.parent(attribute) if attribute is not None else None
        if not isinstance(attribute, cst.Attribute) or attribute.attr.value not in TENSOR_METHODS:
            return found
        if not isinstance(outer, cst.Call) or outer.func is not attribute:
            return found
        found.append(outer)


def _assigned(
    places: Places, site: Site, line: cst.SimpleStatementLine, assign: cst.Assign | cst.AnnAssign, method: str
) -> Converted | CannotWrite:
    targets = [t.target for t in assign.targets] if isinstance(assign, cst.Assign) else [assign.target]
    target = targets[0]
    if len(targets) != 1:
        return CannotWrite("the model's output is assigned to several targets", (site.place,))
    if isinstance(target, cst.Tuple | cst.List):
        return _unpacked(places, site, line, target, method)
    name = dotted(target)
    if name is not None and (places.tensors.is_tensor(name, site.scope) or returns_tensor(places, site)):
        return Converted(site, line, {site.call: _through(method)})
    fields = _field_reads(site, name) if isinstance(target, cst.Name) else []
    if fields:
        return Converted(site, line, {node: _through(method) for node in fields})
    return CannotWrite("what the model returns here was not proven to be a tensor", (site.place,))


def _unpacked(
    places: Places, site: Site, line: cst.SimpleStatementLine, target: cst.Tuple | cst.List, method: str
) -> Converted | CannotWrite:
    names = [dotted(element.value) for element in target.elements if isinstance(element, cst.Element)]
    if len(names) != len(target.elements) or any(name is None or name.count(".") > 1 for name in names):
        return CannotWrite("the model's output is unpacked into more than names", (site.place,))
    used = [name for name in names if name and (reads(site.scope, name) or "." in name)]
    doubtful = [name for name in used if not places.tensors.is_tensor(name, site.scope)]
    if doubtful:
        return CannotWrite(f"`{doubtful[0]}` was not proven to be a tensor", (site.place,))
    if not used:
        return Converted(site, line)
    text = f"{', '.join(used)} = {', '.join(f'{name}.{method}()' for name in used)}"
    return Converted(site, line, following=(text,))


def _field_reads(site: Site, name: str | None) -> list[cst.CSTNode]:
    """Reads of `outputs.loss`, where the loop reads nothing else of it."""
    loop = site.source.around(site.call, cst.For, cst.While)
    found: list[cst.CSTNode] = []
    for node in reads(site.scope, name or ""):
        if loop is not None and not inside(site.source, loop, node):
            continue
        parent = site.source.parent(node)
        if not isinstance(parent, cst.Attribute) or parent.attr.value != "loss" or parent.value is not node:
            return []
        found.append(parent)
    return found


def _moved(source: Source, line: cst.SimpleStatementLine, call: cst.Call) -> str:
    """Why a call can't be evaluated ahead of the statement it stands in."""
    above = source.parent(call)
    while above is not None and above is not line:
        if isinstance(above, CONDITIONAL):
            return "the model is called in an expression that is not always evaluated"
        if isinstance(above, cst.Call) and not _quiet_before(above, call, source):
            return "something is computed before the model is called in the same statement"
        if isinstance(above, cst.BinaryOperation | cst.Comparison) and not _left_of(above, call, source):
            return "something is computed before the model is called in the same statement"
        above = source.parent(above)
    return ""


def _quiet_before(outer: cst.Call, call: cst.Call, source: Source) -> bool:
    """Whether nothing but names stands before the argument that holds the call."""
    if outer is call or outer.func is call or inside(source, outer.func, call):
        return True
    if dotted(outer.func) is None:
        return False
    for arg in outer.args:
        if arg.value is call or inside(source, arg, call):
            return True
        if dotted(arg.value) is None and not isinstance(arg.value, cst.BaseNumber | cst.SimpleString):
            return False
    return False


def _left_of(outer: cst.BinaryOperation | cst.Comparison, call: cst.Call, source: Source) -> bool:
    return outer.left is call or inside(source, outer.left, call) or dotted(outer.left) is not None


def _tensor_argument(places: Places, site: Site) -> bool:
    """Whether the call is given to a loss, which takes only tensors."""
    arg = site.source.parent(site.call)
    outer = site.source.parent(arg) if isinstance(arg, cst.Arg) else None
    return (
        isinstance(arg, cst.Arg) and isinstance(outer, cst.Call) and places.tensors.takes_tensor(outer, arg, site.scope)
    )


def returns_tensor(places: Places, site: Site) -> bool:
    """Whether every `return` of the model's forward is the result of one of torch's modules or functions."""
    origins = places.names.origins(site.call.func, site.scope)
    return bool(origins) and all(_returns_tensor(places, at) for at in origins)


def _returns_tensor(places: Places, at: At) -> bool:
    if not isinstance(at.node, cst.Call):
        return False
    kind = places.names.instance_of(at)
    if kind is None:
        full = places.names.resolve(at.node.func, places.names.scope(at.source, at.node)) or ""
        return full.startswith("torch.nn.") and full.rpartition(".")[2] not in {"Sequential", *RECURRENT}
    forward = kind.functions.get("forward")
    if forward is None or not forward.returns:
        return False
    return all(_is_tensor(places, value, forward) for value in forward.returns)


def _is_tensor(places: Places, node: cst.BaseExpression, scope: Scope) -> bool:
    if not isinstance(node, cst.Call):
        name = dotted(node)
        return name is not None and "." not in name and places.tensors.is_tensor(name, scope)
    full = places.names.resolve(node.func, scope) or ""
    if full.startswith("torch.nn.functional."):
        return not full.endswith("multi_head_attention_forward")
    if isinstance(node.func, cst.Attribute) and node.func.attr.value in {"view", "reshape", "squeeze", "flatten"}:
        return True
    origins = places.names.origins(node.func, scope) if dotted(node.func) else []
    return bool(origins) and all(_torch_layer(places, at) for at in origins)


def _torch_layer(places: Places, at: At) -> bool:
    if not isinstance(at.node, cst.Call):
        return False
    full = places.names.resolve(at.node.func, places.names.scope(at.source, at.node)) or ""
    return full.startswith("torch.nn.") and full.rpartition(".")[2] not in RECURRENT


__all__ = ("Converted", "Spot", "convert", "in_place", "returns_tensor", "same_model", "spots", "trained_calls")
