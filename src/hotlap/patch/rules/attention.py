"""Hand-written attention as `F.scaled_dot_product_attention`, for the forms that are proven by their syntax.

The weights must be made in lines directly above the product with the values, and be read nowhere else: scores `q @ k^T`
with a scale, a fill with -inf, a softmax over the last dimension. With dropout it is left alone: the fused kernel draws
other random numbers, so that parity could not be shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import libcst as cst

from hotlap.source.names import subclasses
from hotlap.source.places import MODULES, Places
from hotlap.source.scopes import Scope, dotted
from hotlap.source.tensors import reads
from hotlap.source.tree import Source

from ..edits import Replacement, expression, own_line, replace
from ._base import NO_TORCH, CannotWrite, Edit, Outcome, Rule, Settings, already, calls_named, touched, with_torch

FUSED = "scaled_dot_product_attention"
LAST_TWO = {("-2", "-1"), ("-1", "-2")}
MINUS_INFINITY = {'float("-inf")', "float('-inf')", "-float('inf')", '-float("inf")', "-math.inf", "-torch.inf"}


@dataclass
class Found:
    """An attention: the product with the values, and what it is made of. gone: lines that are not needed any more."""

    product: cst.BinaryOperation
    scope: Scope
    q: str = ""
    k: str = ""
    scale: str = "1.0"
    mask: str = ""
    causal: bool = False
    softmax: bool = False
    gone: list[cst.SimpleStatementLine] = field(default_factory=list)


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses where no softmax of the model's code has one of the forms, and shows the softmaxes."""
    project, lines, changed = places.project, [], frozenset[object]()
    for source in places.project.sources.values():
        changes: dict[cst.CSTNode, Replacement] = {}
        for product in _products(source):
            scope = places.names.scope(source, product)
            found = _match(places, source, scope, product)
            if found is None:
                continue
            text = _written(places, found, scope)
            if text is None:
                return CannotWrite(NO_TORCH, (source.place(product),))
            changes[product] = _to(source, text)
            changes |= dict.fromkeys(found.gone, lambda _: cst.RemoveFromParent())  # type: ignore[arg-type, return-value]
            lines.append(source.place(product))
            changed |= touched(source, scope)
        if changes:
            project = project.with_sources(replace(source, changes))
    if lines:
        return Edit(project, tuple(lines), changed)  # type: ignore[arg-type]
    own = tuple(source.place(call) for source, call in calls_named(places, FUSED))
    if own:
        return already(places, own)
    seen = [(s, c) for s, c in calls_named(places, "softmax") if _in_module(places, places.names.scope(s, c))]
    if not seen:
        return CannotWrite("no module of yours calls softmax")
    where = tuple(source.place(call) for source, call in seen if source in places.of_models)
    if not where:
        return CannotWrite("no module in the files of the model that was seen to run calls softmax")
    return CannotWrite("the attention has none of the forms that can be written safely", where)


def _to(source: Source, text: str) -> Replacement:
    def change(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.BinaryOperation)
        return expression(source, text).with_changes(lpar=[], rpar=[])

    return change


class _Products(cst.CSTVisitor):
    def __init__(self) -> None:
        self.found: list[cst.BinaryOperation] = []

    def visit_BinaryOperation(self, node: cst.BinaryOperation) -> None:
        if isinstance(node.operator, cst.MatrixMultiply):
            self.found.append(node)


def _products(source: Source) -> list[cst.BinaryOperation]:
    finder = _Products()
    source.tree.visit(finder)
    return finder.found


def _in_module(places: Places, scope: Scope) -> bool:
    return scope.owner is not None and subclasses(places.names, scope.owner, MODULES)


def _match(places: Places, source: Source, scope: Scope, product: cst.BinaryOperation) -> Found | None:
    """The attention that ends in a product, None where it is none, or not one of the known forms."""
    line = own_line(source, product)
    if line is None or dotted(product.right) is None or not _in_module(places, scope):
        return None
    found = Found(product, scope)
    node: cst.BaseExpression | None = product.left
    while node is not None and not found.q:
        node = _step(source, node, found, line)
    if node is None or not found.softmax or not _only_here(source, scope, found, line):
        return None
    found.causal = bool(found.mask) and _causal(source, scope, found.mask)
    return found


def _step(
    source: Source, node: cst.BaseExpression, found: Found, line: cst.SimpleStatementLine
) -> cst.BaseExpression | None:
    """One operation further in: what it is applied to, None where it is not known. At the scores it sets `q`."""
    if isinstance(node, cst.Name):
        above = _line_above(source, found.gone[-1] if found.gone else line)
        value = _assigned(above, node.value)
        if value is not None and above is not None:
            found.gone.append(above)
        return value
    inner = _softmax(source, node)
    if inner is not None and not found.softmax:
        found.softmax = True
        return inner
    return _scores(source, node, found) if found.softmax else None


def _scores(source: Source, node: cst.BaseExpression, found: Found) -> cst.BaseExpression | None:
    """The operations between the scores and the softmax."""
    code = source.tree.code_for_node
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "masked_fill":
        if len(node.args) != 2 or code(node.args[1].value) not in MINUS_INFINITY or found.mask or found.scale != "1.0":
            return None
        found.mask = code(node.args[0].value)
        return node.func.value
    if not isinstance(node, cst.BinaryOperation):
        return None
    if isinstance(node.operator, cst.MatrixMultiply):
        keys = _transposed(source, node.right)
        found.q, found.k = dotted(node.left) or "", keys or ""
        return node if found.q and found.k else None
    number = code(node.right)
    if (
        found.scale != "1.0"
        or not isinstance(node.operator, cst.Divide | cst.Multiply)
        or not _is_number(node.right, found.scope)
    ):
        return None
    found.scale = f"1.0 / {number}" if isinstance(node.operator, cst.Divide) else number
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
        return isinstance(node.func, cst.Attribute) and node.func.attr.value == "size" and len(node.args) == 1
    bindings = scope.names.get(dotted(node) or "", [])
    return bool(bindings) and all(
        isinstance(binding.value, cst.Attribute) and binding.value.attr.value == "shape" and binding.index is not None
        for binding in bindings
    )


def _softmax(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """What a softmax over the last dimension is taken of."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute) or node.func.attr.value != "softmax":
        return None
    given = [arg for arg in node.args if not arg.star]
    owner = dotted(node.func.value)
    if owner in {"F", "torch", "torch.nn.functional", "nn.functional"} and len(given) == 2:
        first, dim = given[0].value, given[1]
    elif len(given) == 1 and owner is not None:
        first, dim = node.func.value, given[0]
    else:
        return None
    named = dim.keyword is None or dim.keyword.value == "dim"
    return first if named and source.tree.code_for_node(dim.value) == "-1" else None


def _transposed(source: Source, node: cst.BaseExpression) -> str | None:
    """The name of what is transposed in its last two dimensions."""
    if isinstance(node, cst.Attribute) and node.attr.value == "mT":
        return dotted(node.value)
    if (
        not isinstance(node, cst.Call)
        or not isinstance(node.func, cst.Attribute)
        or node.func.attr.value != "transpose"
    ):
        return None
    axes = tuple(source.tree.code_for_node(arg.value) for arg in node.args)
    return dotted(node.func.value) if axes in LAST_TWO else None


def _line_above(source: Source, line: cst.SimpleStatementLine) -> cst.SimpleStatementLine | None:
    block = source.parent(line)
    if not isinstance(block, cst.IndentedBlock):
        return None
    at = next(index for index, node in enumerate(block.body) if node is line)
    above = block.body[at - 1] if at else None
    return above if isinstance(above, cst.SimpleStatementLine) and len(above.body) == 1 else None


def _assigned(line: cst.SimpleStatementLine | None, name: str) -> cst.BaseExpression | None:
    small = line.body[0] if line is not None else None
    if not isinstance(small, cst.Assign) or len(small.targets) != 1 or dotted(small.targets[0].target) != name:
        return None
    return small.value


def _only_here(source: Source, scope: Scope, found: Found, line: cst.SimpleStatementLine) -> bool:
    """Whether what the removed lines assign is assigned and read nowhere else in the function."""
    lines = {*found.gone, line}
    for gone in found.gone:
        small = gone.body[0]
        assert isinstance(small, cst.Assign)
        name = dotted(small.targets[0].target) or ""
        nodes = [*reads(scope, name), *(binding.statement for binding in scope.names.get(name, ()))]
        if any(source.around(node, cst.SimpleStatementLine) not in lines for node in nodes):
            return False
        own = [node for node in reads(scope, name) if source.around(node, cst.SimpleStatementLine) is line]
        if len(own) > 1:
            return False
    return True


def _causal(source: Source, scope: Scope, mask: str) -> bool:
    """Whether a fill is over `self.x[..., :T, :T] == 0` of a buffer that is a square of ones below the diagonal."""
    node = cst.parse_expression(mask)
    if not isinstance(node, cst.Comparison) or mask.rpartition("==")[2].strip() != "0":
        return False
    if not isinstance(node.left, cst.Subscript) or scope.owner is None:
        return False
    slices = [source.tree.code_for_node(item).strip(", ") for item in node.left.slice]
    if len(slices) < 2 or slices[-1] != slices[-2] or any(other != ":" for other in slices[:-2]):
        return False
    name = (dotted(node.left.value) or "").removeprefix("self.")
    for call in source.walk.calls:
        made = call[1]
        if (
            isinstance(made.func, cst.Attribute)
            and made.func.attr.value == "register_buffer"
            and call[0].owner is scope.owner
        ):
            text = [source.tree.code_for_node(arg.value) for arg in made.args]
            if len(text) >= 2 and text[0].strip("\"'") == name:
                return _lower_triangle(made.args[1].value, source)
    return False


def _lower_triangle(node: cst.BaseExpression, source: Source) -> bool:
    """`torch.tril(torch.ones(n, n))`, with a view in front of it or not."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "view":
        node = node.func.value
    if not isinstance(node, cst.Call) or dotted(node.func) != "torch.tril" or len(node.args) != 1:
        return False
    ones = node.args[0].value
    if not isinstance(ones, cst.Call) or dotted(ones.func) != "torch.ones":
        return False
    sides = [source.tree.code_for_node(arg.value) for arg in ones.args if arg.keyword is None]
    return len(sides) == 2 and sides[0] == sides[1]


def _written(places: Places, found: Found, scope: Scope) -> str | None:
    """The call that takes its place; None where torch's functions can't be named here."""
    functional = "F" if places.names.resolve(cst.Name("F"), scope) == "torch.nn.functional" else None
    torch = with_torch(scope)
    if functional is None and torch is None:
        return None
    values = dotted(found.product.right)
    mask = ", is_causal=True" if found.causal else f", attn_mask={_kept(found.mask)}" if found.mask else ""
    name = f"{functional or f'{torch}.nn.functional'}.{FUSED}"
    return f"{name}({found.q}, {found.k}, {values}{mask}, scale={found.scale})"


def _kept(mask: str) -> str:
    """The mask of what is kept, from that of what is filled."""
    head, equal, zero = mask.rpartition("==")
    if equal and zero.strip() == "0":
        return f"{head.strip()} != 0"
    return f"~({mask})"


RULE = Rule("attention", edit, order=3)
