"""What the rules about the model share: where a statement about it goes, and how its outputs are converted."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

from hotlap.source.names import At
from hotlap.source.places import CannotTell, Places, Site
from hotlap.source.scopes import Scope, Var, dotted, last_name
from hotlap.source.start import training_start
from hotlap.source.tensors import TENSOR_METHODS, reads
from hotlap.source.tree import Source

from ..edits import Replacement, block_of, through
from ._base import NO_LOOP, CannotWrite

CONDITIONAL = (
    cst.IfExp, cst.BooleanOperation, cst.Lambda, cst.CompFor, cst.ListComp, cst.GeneratorExp, cst.DictComp, cst.SetComp,
    cst.NamedExpr, cst.Await, cst.Yield, cst.Assert,
)  # fmt: skip
"""What may evaluate a call in it never, or more than once."""
RECURRENT = ("LSTM", "GRU", "RNN", "MultiheadAttention")
"""torch's modules that return more than a tensor."""
CONVERSIONS = frozenset(["to", "cuda", "cpu", "double", "half", "bfloat16", "float", "compile"])
COMPUTED = "something is computed before the model is called in the same statement"
NO_TENSOR = "what the model returns here was not proven to be a tensor"


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

    @property
    def source(self) -> Source:
        """The file that it stands in."""
        return self.scope.source


def spots(places: Places, sites: Iterable[Site]) -> list[Spot]:
    """Where each model of these calls has its final value. Raises CannotWrite, CannotTell."""
    return [_spot(places, variable) for variable in dict.fromkeys(map(places.model_variable, sites))]


def _spot(places: Places, variable: Var) -> Spot:
    source = variable.scope.source
    nodes = _before_training(places, variable)
    lines = [source.place(node) for node in nodes]
    homes = {source.scope(node) for node in nodes}
    if len(homes) != 1 or not all(isinstance(node, cst.Assign | cst.AnnAssign) for node in nodes):
        raise CannotWrite(f"`{variable.name}` is assigned in several functions", lines)
    body, statements = block_of(source, nodes)
    last = statements[-1]
    if any(site.source is source and source.inside(last, site.call) for site in places.backwards):
        raise CannotWrite(f"`{variable.name}` is assigned again in the training loop", lines)
    at = body.index(last)
    while at + 1 < len(body) and _of_model(body[at + 1], variable.name):
        at += 1
    return Spot(homes.pop(), body[at], variable.name)


def _before_training(places: Places, variable: Var) -> list[cst.CSTNode]:
    """The statements that assign a variable, but for those behind the training loop (`model = torch.load(best)`)."""
    nodes, source = [binding.statement for binding in variable.bindings], variable.scope.source
    try:
        start = training_start(places) if places.backwards else None
    except CannotTell:
        start = None
    if start is None or start.scope is not variable.scope:
        return nodes
    return [node for node in nodes if source.line(node) <= source.end(start.loop)] or nodes


def _of_model(node: cst.BaseStatement, name: str) -> bool:
    """`model.to(device)` and the like, on a line of its own."""
    if not m.matches(node, m.SimpleStatementLine([m.Expr(m.Call(m.Attribute()))])):
        return False
    func = m.findall(node, m.Call())[0].func  # type: ignore[attr-defined]
    return dotted(func.value) == name and func.attr.value in CONVERSIONS


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


def convert(places: Places, site: Site, name: str) -> Converted:
    """Rewrite a call so that its output tensors go through `.float()`. name: for a new variable.

    Raises CannotWrite where it can't be proven that the output is a tensor, or that nothing is evaluated in another
    order.
    """
    source, call = site.source, site.call
    line = source.own_line(call)
    split = cst.Assign | cst.Expr | cst.Return | cst.AugAssign | cst.AnnAssign
    if line is None or not isinstance(line.body[0], split):
        raise CannotWrite("the model is called in a statement that can't be split", [site])
    chain = _chain(source, call)
    top = source.parent(chain[-1])
    if isinstance(top, cst.Assign | cst.AnnAssign):
        return _assigned(places, site, line, top) if len(chain) == 1 else _converted(site, line, [call])
    if why := _moved(source, line, call):
        raise CannotWrite(why, [site])
    arg = source.parent(call)
    given = isinstance(arg, cst.Arg) and places.tensors.takes_tensor(arg, site.scope)
    if len(chain) == 1 and not given and not returns_tensor(places, site):
        raise CannotWrite(NO_TENSOR, [site])
    return Converted(site, line, {call: lambda _: cst.Name(name)}, f"{name} = {source.code(call)}.float()")


def _converted(site: Site, line: cst.SimpleStatementLine, nodes: Iterable[cst.CSTNode]) -> Converted:
    return Converted(site, line, dict.fromkeys(nodes, through("float")))


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
    places: Places, site: Site, line: cst.SimpleStatementLine, assign: cst.Assign | cst.AnnAssign
) -> Converted:
    targets = [t.target for t in assign.targets] if isinstance(assign, cst.Assign) else [assign.target]
    target = targets[0]
    if len(targets) != 1:
        raise CannotWrite("the model's output is assigned to several targets", [site])
    if isinstance(target, cst.Tuple | cst.List):
        return _unpacked(places, site, line, target)
    name = dotted(target) or ""
    if name and (places.tensors.is_tensor(name, site.scope) or returns_tensor(places, site)):
        return _converted(site, line, [site.call])
    fields = _field_reads(site, name) if isinstance(target, cst.Name) else []
    if not fields:
        raise CannotWrite(NO_TENSOR, [site])
    return _converted(site, line, fields)


def _unpacked(places: Places, site: Site, line: cst.SimpleStatementLine, target: cst.Tuple | cst.List) -> Converted:
    names = [dotted(element.value) or "" for element in target.elements if isinstance(element, cst.Element)]
    if len(names) != len(target.elements) or any(not name or name.count(".") > 1 for name in names):
        raise CannotWrite("the model's output is unpacked into more than names", [site])
    used = [name for name in names if reads(site.scope, name) or "." in name]
    doubtful = [name for name in used if not places.tensors.is_tensor(name, site.scope)]
    if doubtful:
        raise CannotWrite(f"`{doubtful[0]}` was not proven to be a tensor", [site])
    text = f"{', '.join(used)} = {', '.join(f'{name}.float()' for name in used)}"
    return Converted(site, line, following=(text,) if used else ())


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


def returns_tensor(places: Places, site: Site) -> bool:
    """Whether every `return` of the model's forward is the result of one of torch's modules or functions."""
    origins = places.origins(site)
    return bool(origins) and all(_returns_tensor(places, at) for at in origins)


def _returns_tensor(places: Places, at: At) -> bool:
    kind = places.names.instance_of(at)
    if kind is None:
        return _torch_layer(places, at, "Sequential")
    forward = kind.functions.get("forward")
    return (
        forward is not None
        and bool(forward.returns)
        and all(_is_tensor(places, value, forward) for value in forward.returns)
    )


def _is_tensor(places: Places, node: cst.BaseExpression, scope: Scope) -> bool:
    if not isinstance(node, cst.Call):
        return isinstance(node, cst.Name) and places.tensors.is_tensor(node.value, scope)
    full = places.names.resolve(node.func, scope)
    if full.startswith("torch.nn.functional."):
        return not full.endswith("multi_head_attention_forward")
    if isinstance(node.func, cst.Attribute) and last_name(node) in {"view", "reshape", "squeeze", "flatten"}:
        return True
    origins = places.names.origins(node.func, scope) if dotted(node.func) else []
    return bool(origins) and all(_torch_layer(places, at) for at in origins)


def _torch_layer(places: Places, at: At, *but: str) -> bool:
    full = places.names.made_by(at)
    return full.startswith("torch.nn.") and full.rpartition(".")[2] not in {*RECURRENT, *but}
