"""`with torch.autocast(...)` around the model's call in the training loop; what it returns is float32 again."""

from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

from hotlap.source.names import At
from hotlap.source.places import Places, Site, managers
from hotlap.source.scopes import Scope, Source, dotted, is_method_call, last_name, nodes
from hotlap.source.tensors import TENSOR_METHODS, reads

from ..edits import Changes, Replacement, Statements, fresh, statement, through, under
from ._base import CannotWrite, Edit, Rule, Settings, already, with_torch, written
from ._model import trained_calls

QUIET = TENSOR_METHODS | {"to", "cuda", "contiguous", "requires_grad_", "type", "long", "int", "bool", "cat", "stack"}
"""Calls that autocast does nothing to, so that they may stand inside."""
CONDITIONAL = (cst.IfExp, cst.BooleanOperation, cst.Lambda, cst.BaseComp, cst.NamedExpr, cst.Await, cst.Yield)
"""What may evaluate a call in it never, or more than once."""
RECURRENT = ("LSTM", "GRU", "RNN", "MultiheadAttention")
"""torch's modules that return more than a tensor."""
COMPUTED = "something is computed before the model is called in the same statement"
EVALUATION = "evaluation stays in float32; the recipe runs it in bfloat16 too"
NO_TENSOR = "what the model returns here may not be a tensor"


@dataclass
class Converted:
    """How a call is rewritten so that its output tensors go through `.float()`. line: the statement it stands in;
    changes: of nodes in it; first: a statement that computes the outputs before it; following: one after it."""

    line: cst.SimpleStatementLine
    changes: dict[cst.CSTNode, Replacement] = field(default_factory=dict)
    first: str = ""
    following: str = ""


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses models in float64, outputs that are not proven to be tensors, and statements that can't be split."""
    sites = trained_calls(places)
    if double := places.methods_of(sites, "double"):
        raise CannotWrite("the model computes in float64", double)
    todo = [site for site in sites if not _inside(site)]
    if not todo:
        return already(places, sites)
    changes, lines = Changes(places.project), set[cst.CSTNode]()
    for site in todo:
        torch = with_torch(site.scope, site.place)
        if not _arguments_are_quiet(site.call):
            raise CannotWrite("an argument is computed inside the call; put it on its own line", [site])
        plan = _convert(places, site)
        if plan.line in lines:
            raise CannotWrite("the model is called twice in one statement", [site])
        lines.add(plan.line)
        header = f'with {torch}.autocast("{"cuda" if places.cuda else "cpu"}", dtype={torch}.bfloat16)'
        changes.put(site.source, {**plan.changes, plan.line: _wrapped(site.source, plan, header)})
    return written(changes, todo, notes=() if places.inference else [EVALUATION])


def _wrapped(source: Source, plan: Converted, header: str) -> Replacement:
    def change(node: cst.CSTNode) -> Statements:
        line, within = cst.ensure_type(node, cst.SimpleStatementLine), under(source, header)
        rest = [statement(source, plan.following)] if plan.following else []
        if not plan.first:
            return cst.FlattenSentinel([within(line), *rest])  # type: ignore[list-item]
        first = statement(source, plan.first).with_changes(leading_lines=line.leading_lines)
        return cst.FlattenSentinel([within(first), line.with_changes(leading_lines=[])])  # type: ignore[list-item]

    return change


def _inside(site: Site) -> bool:
    """Whether the call stands in an autocast to this dtype already."""
    texts = map(site.source.code, managers(site, "autocast"))
    return any(".bfloat16" in text and "enabled" not in text for text in texts)


def _arguments_are_quiet(call: cst.Call) -> bool:
    """Whether the arguments compute nothing that autocast would compute otherwise."""
    inner = [node for arg in call.args for node in nodes(arg, cst.Call, cst.MatrixMultiply)]
    return all(isinstance(node, cst.Call) and last_name(node) in QUIET for node in inner)


# the outputs


def _convert(places: Places, site: Site) -> Converted:
    """Raises CannotWrite where it can't be proven that the output is a tensor, or that nothing is evaluated in another
    order."""
    source, call = site.source, site.call
    line = source.own_line(call)
    split = cst.Assign | cst.Expr | cst.Return | cst.AugAssign | cst.AnnAssign
    if line is None or not isinstance(line.body[0], split):
        raise CannotWrite("the model is called in a statement that can't be split", [site])
    last = _last_of_chain(source, call)
    top = source.parent(last)
    if isinstance(top, cst.Assign | cst.AnnAssign):
        return _assigned(places, site, line, top) if last is call else Converted(line, {call: through("float")})
    if why := _moved(source, line, call):
        raise CannotWrite(why, [site])
    given = isinstance(top, cst.Arg) and places.tensors.takes_tensor(top, site.scope)
    if last is call and not given and not _returns_tensor(places, site):
        raise CannotWrite(NO_TENSOR, [site])
    name = fresh(source, "output")
    return Converted(line, {call: cst.Name(name)}, f"{name} = {source.code(call)}.float()")


def _last_of_chain(source: Source, call: cst.Call) -> cst.Call:
    """The last of the calls of tensor methods on a call's result: `model(x).view(-1).mean()`; else the call itself."""
    attribute = source.parent(call)
    outer = source.parent(attribute) if isinstance(attribute, cst.Attribute) else None
    if is_method_call(outer, *TENSOR_METHODS) and outer.func is attribute:
        return _last_of_chain(source, outer)
    return call


def _assigned(
    places: Places, site: Site, line: cst.SimpleStatementLine, assign: cst.Assign | cst.AnnAssign
) -> Converted:
    if isinstance(assign, cst.Assign) and len(assign.targets) != 1:
        raise CannotWrite("the model's output is assigned to several targets", [site])
    target = assign.targets[0].target if isinstance(assign, cst.Assign) else assign.target
    if isinstance(target, cst.Tuple | cst.List):
        return Converted(line, following=_unpacked(places, site, target))
    name = dotted(target) or ""
    if name and (places.tensors.is_tensor(name, site.scope) or _returns_tensor(places, site)):
        return Converted(line, {site.call: through("float")})
    fields = _field_reads(site, name) if isinstance(target, cst.Name) else []
    if not fields:
        raise CannotWrite(NO_TENSOR, [site])
    return Converted(line, dict.fromkeys(fields, through("float")))


def _unpacked(places: Places, site: Site, target: cst.Tuple | cst.List) -> str:
    """The statement that converts what of an unpacked output is used; "" where nothing is."""
    names = [dotted(element.value) or "" for element in target.elements if isinstance(element, cst.Element)]
    if len(names) != len(target.elements) or any(not name or name.count(".") > 1 for name in names):
        raise CannotWrite("the model's output is unpacked into more than names", [site])
    used = [name for name in names if reads(site.scope, name) or "." in name]
    doubtful = [name for name in used if not places.tensors.is_tensor(name, site.scope)]
    if doubtful:
        raise CannotWrite(f"`{doubtful[0]}` may not be a tensor", [site])
    return f"{', '.join(used)} = {', '.join(f'{name}.float()' for name in used)}" if used else ""


def _field_reads(site: Site, name: str) -> list[cst.CSTNode]:
    """Reads of `outputs.loss`, where the loop reads nothing else of it."""
    source = site.source
    loop = source.around(site.call, cst.For, cst.While)
    within = [node for node in reads(site.scope, name) if loop is None or source.inside(loop, node)]
    found = [parent for node in within if (parent := source.parent(node)) is not None]
    return found if all(m.matches(node, m.Attribute(m.Name(name), m.Name("loss"))) for node in found) else []


def _moved(source: Source, line: cst.SimpleStatementLine, call: cst.Call) -> str:
    """Why a call can't be evaluated ahead of the statement it stands in."""
    for above in source.above(call):
        if above is line:
            break
        if isinstance(above, CONDITIONAL):
            return "the model is called in an expression that is not always evaluated"
        if isinstance(above, cst.Call) and not _quiet_before(above, call, source):
            return COMPUTED
        left = above.left if isinstance(above, cst.BinaryOperation | cst.Comparison) else None
        if left is not None and not source.inside(left, call) and dotted(left) is None:
            return COMPUTED
    return ""


def _quiet_before(outer: cst.Call, call: cst.Call, source: Source) -> bool:
    """Whether nothing but names stands before the argument that holds the call."""
    if source.inside(outer.func, call):
        return True
    at = next(at for at, arg in enumerate(outer.args) if source.inside(arg, call))
    before = [arg.value for arg in outer.args[:at]]
    return all(dotted(node) or isinstance(node, cst.BaseNumber | cst.SimpleString) for node in [outer.func, *before])


def _returns_tensor(places: Places, site: Site) -> bool:
    """Whether every `return` of the model's forward is the result of one of torch's modules or functions."""
    origins = places.origins(site)
    return bool(origins) and all(_makes_tensors(places, at) for at in origins)


def _makes_tensors(places: Places, at: At) -> bool:
    kind = places.names.instance_of(at)
    if kind is None:
        return _torch_layer(places, at, "Sequential")
    forward = kind.functions.get("forward")
    if forward is None or not forward.returns:
        return False
    return all(_is_tensor(places, value, forward) for value in forward.returns)


def _is_tensor(places: Places, node: cst.BaseExpression, scope: Scope) -> bool:
    if not isinstance(node, cst.Call):
        return isinstance(node, cst.Name) and places.tensors.is_tensor(node.value, scope)
    full = places.names.resolve(node.func, scope)
    if full.startswith("torch.nn.functional."):
        return not full.endswith("multi_head_attention_forward")
    if is_method_call(node, "view", "reshape", "squeeze", "flatten"):
        return True
    origins = places.names.origins(node.func, scope) if dotted(node.func) else []
    return bool(origins) and all(_torch_layer(places, at) for at in origins)


def _torch_layer(places: Places, at: At, *but: str) -> bool:
    full = places.names.made_by(at)
    return full.startswith("torch.nn.") and full.rpartition(".")[2] not in {*RECURRENT, *but}


RULE = Rule(edit, order=10)
