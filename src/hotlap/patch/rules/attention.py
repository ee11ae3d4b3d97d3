"""Hand-written attention as `F.scaled_dot_product_attention`, for the forms that are proven by their syntax.

The weights must be made in lines directly above the product with the values, and be read nowhere else: scores `q @ k^T`
with a scale, a fill with -inf, a softmax over the last dimension. With dropout it is left alone: the fused kernel draws
other random numbers, so that parity could not be shown.
"""

from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

from hotlap.source.places import Places
from hotlap.source.scopes import Scope, Source, dotted, is_method_call, last_name
from hotlap.source.tensors import reads

from ..edits import Changes, expression
from ._base import CannotWrite, Edit, Rule, Settings, already, constant, with_torch, written

FUSED = "scaled_dot_product_attention"
LAST_TWO = {("-2", "-1"), ("-1", "-2")}
MINUS_INFINITY = {'float("-inf")', "float('-inf')", "-float('inf')", '-float("inf")', "-math.inf", "-torch.inf"}
ONES = m.Call(m.Attribute(m.Name("torch"), m.Name("ones")))
TRIL = m.Call(m.Attribute(m.Name("torch"), m.Name("tril")), [m.Arg(ONES)])


@dataclass
class Found:
    """An attention: the product with the values, and what it is made of. line: that of the product; gone: lines that
    are not needed any more."""

    product: cst.BinaryOperation
    line: cst.SimpleStatementLine
    scope: Scope
    q: str = ""
    k: str = ""
    scale: str = "1.0"
    mask: str = ""
    softmax: bool = False
    gone: list[cst.SimpleStatementLine] = field(default_factory=list)


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses where no softmax of the model's code has one of the forms, and shows the softmaxes."""
    changes, lines = Changes(places.project), []
    for source in places.project.sources.values():
        for product in source.every(cst.BinaryOperation):
            found = _match(places, source, product)
            if found is not None:
                lines.append(source.place(product))
                fused = expression(source, _text(places, found)).with_changes(lpar=[], rpar=[])
                changes.put(source, {product: fused, **dict.fromkeys(found.gone, cst.RemoveFromParent())})
    if lines:
        return written(changes, lines)
    if own := places.calls_named(FUSED):
        return already(places, own)
    seen = [site for site in places.calls_named("softmax") if places.in_module(site.scope)]
    if not seen:
        raise CannotWrite("no module in your files calls softmax")
    raise CannotWrite("the attention has no form that can be rewritten safely", seen)


def _match(places: Places, source: Source, product: cst.BinaryOperation) -> Found | None:
    """The attention that ends in a product, None where it is none, or not one of the known forms."""
    line, scope = source.own_line(product), source.scope(product)
    if line is None or not m.matches(product, m.BinaryOperation(operator=m.MatrixMultiply())):
        return None
    if dotted(product.right) is None or not places.in_module(scope):
        return None
    found = Found(product, line, scope)
    node: cst.BaseExpression | None = product.left
    while node is not None and not found.q:
        node = _step(node, found)
    return found if node is not None and found.softmax and _only_here(found) else None


def _step(node: cst.BaseExpression, found: Found) -> cst.BaseExpression | None:
    """One operation further in: what it is applied to, None where it is not known. At the scores it sets `q`."""
    if isinstance(node, cst.Name):
        return _assigned_above(found, node.value)
    inner = _softmax(found.scope.source, node)
    if inner is not None and not found.softmax:
        found.softmax = True
        return inner
    return _scores(node, found) if found.softmax else None


def _assigned_above(found: Found, name: str) -> cst.BaseExpression | None:
    """What a name is set to in the line above those that were gone through."""
    line = found.gone[-1] if found.gone else found.line
    block = found.scope.source.parent(line)
    if not isinstance(block, cst.IndentedBlock) or block.body[0] is line:
        return None
    above = block.body[block.body.index(line) - 1]
    assign = m.SimpleStatementLine([m.Assign([m.AssignTarget(m.Name(name))])])
    if not isinstance(above, cst.SimpleStatementLine) or not m.matches(above, assign):
        return None
    found.gone.append(above)
    return cst.ensure_type(above.body[0], cst.Assign).value


def _scores(node: cst.BaseExpression, found: Found) -> cst.BaseExpression | None:
    """The operations between the scores and the softmax."""
    code = found.scope.source.code
    if is_method_call(node, "masked_fill"):
        if len(node.args) != 2 or code(node.args[1].value) not in MINUS_INFINITY or found.mask or found.scale != "1.0":
            return None
        found.mask = code(node.args[0].value)
        return node.func.value
    if not isinstance(node, cst.BinaryOperation):
        return None
    if isinstance(node.operator, cst.MatrixMultiply):
        found.q, found.k = dotted(node.left) or "", _transposed(found.scope.source, node.right)
        return node if found.q and found.k else None
    divides, number = isinstance(node.operator, cst.Divide), code(node.right)
    scales = divides or isinstance(node.operator, cst.Multiply)
    if found.scale != "1.0" or not scales or not _is_number(node.right, found.scope):
        return None
    found.scale = f"1.0 / {number}" if divides else number
    return node.left


def _is_number(node: cst.BaseExpression, scope: Scope) -> bool:
    """Whether an expression is a number, and no tensor: roots, literals, powers of sizes."""
    if isinstance(node, cst.Call):
        return dotted(node.func) == "math.sqrt"
    if not isinstance(node, cst.BinaryOperation):
        return isinstance(node, cst.Float | cst.Integer)
    if isinstance(node.operator, cst.Power):
        return _is_size(node.left, scope)
    return isinstance(node.operator, cst.Divide | cst.Multiply) and all(
        _is_number(side, scope) for side in (node.left, node.right)
    )


def _is_size(node: cst.BaseExpression, scope: Scope) -> bool:
    """`k.size(-1)`, a name unpacked from `x.shape`, or the quotient of such a name."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.FloorDivide):
        return _is_size(node.left, scope) and dotted(node.right) is not None
    if isinstance(node, cst.Call):
        return is_method_call(node, "size") and len(node.args) == 1
    bindings = scope.names.get(dotted(node) or "", [])
    return bool(bindings) and all(
        isinstance(binding.value, cst.Attribute) and binding.value.attr.value == "shape" and binding.index is not None
        for binding in bindings
    )


def _softmax(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """What a softmax over the last dimension is taken of."""
    if not is_method_call(node, "softmax"):
        return None
    given, owner = [arg for arg in node.args if not arg.star], dotted(node.func.value)
    if owner in {"F", "torch", "torch.nn.functional", "nn.functional"} and len(given) == 2:
        first, dim = given[0].value, given[1]
    elif len(given) == 1 and owner is not None:
        first, dim = node.func.value, given[0]
    else:
        return None
    named = dim.keyword is None or dim.keyword.value == "dim"
    return first if named and source.code(dim.value) == "-1" else None


def _transposed(source: Source, node: cst.BaseExpression) -> str:
    """The name of what is transposed in its last two dimensions; "" of anything else."""
    if isinstance(node, cst.Attribute) and node.attr.value == "mT":
        return dotted(node.value) or ""
    if not is_method_call(node, "transpose"):
        return ""
    axes = tuple(source.code(arg.value) for arg in node.args)
    return dotted(node.func.value) or "" if axes in LAST_TWO else ""


def _only_here(found: Found) -> bool:
    """Whether what the removed lines assign is assigned and read nowhere else in the function."""
    source, scope = found.scope.source, found.scope
    lines = {*found.gone, found.line}
    for gone in found.gone:
        name = dotted(cst.ensure_type(gone.body[0], cst.Assign).targets[0].target) or ""
        read = [source.around(node, cst.SimpleStatementLine) for node in reads(scope, name)]
        made = [source.around(one.statement, cst.SimpleStatementLine) for one in scope.names.get(name, ())]
        if not lines.issuperset([*read, *made]) or read.count(found.line) > 1:
            return False
    return True


def _causal(source: Source, scope: Scope, mask: str) -> bool:
    """Whether a fill is over `self.x[..., :T, :T] == 0` of a buffer that is a square of ones below the diagonal."""
    node = cst.parse_expression(mask)
    if not isinstance(node, cst.Comparison) or mask.rpartition("==")[2].strip() != "0":
        return False
    if not isinstance(node.left, cst.Subscript) or scope.owner is None:
        return False
    slices = [source.code(item).strip(", ") for item in node.left.slice]
    if len(slices) < 2 or slices[-1] != slices[-2] or any(other != ":" for other in slices[:-2]):
        return False
    name = (dotted(node.left.value) or "").removeprefix("self.")
    calls = [call for at, call in source.walk.calls if at.owner is scope.owner and last_name(call) == "register_buffer"]
    made = [call.args[1].value for call in calls if len(call.args) > 1 and constant(call.args[0].value) == name]
    return bool(made) and _lower_triangle(made[0])


def _lower_triangle(node: cst.BaseExpression) -> bool:
    """`torch.tril(torch.ones(n, n))`, with a view in front of it or not."""
    if is_method_call(node, "view"):
        node = node.func.value
    if not m.matches(node, TRIL):
        return False
    sides = [arg.value for arg in m.findall(node, ONES)[0].args if arg.keyword is None]  # type: ignore[attr-defined]
    return len(sides) == 2 and sides[0].deep_equals(sides[1])


def _text(places: Places, found: Found) -> str:
    """The call that takes its place. Raises CannotWrite where torch's functions can't be named here."""
    functional = "F"
    if places.names.resolve(cst.Name("F"), found.scope) != "torch.nn.functional":
        functional = f"{with_torch(found.scope, found.scope.source.place(found.product))}.nn.functional"
    filled, equal, zero = found.mask.rpartition("==")
    kept = f"{filled.strip()} != 0" if equal and zero.strip() == "0" else f"~({found.mask})"
    mask = f", attn_mask={kept}" if found.mask else ""
    if found.mask and _causal(found.scope.source, found.scope, found.mask):
        mask = ", is_causal=True"
    values = dotted(found.product.right)
    return f"{functional}.{FUSED}({found.q}, {found.k}, {values}{mask}, scale={found.scale})"


RULE = Rule(edit, order=3)
