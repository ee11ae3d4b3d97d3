"""Not a lever: what the expressions in a loop over experts stand for, and how they are written for all experts.

Each stands for something of one expert: the places that chose it, a tensor with a row for each of these, the expert
itself. For all experts `x[rows]` is each token's row as often as the token chose.
"""

import ast
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any, Final

PLAN: Final = "__hotlap_plan"
SIZES: Final = frozenset({"len", "size", "dim", "numel"})
"""What may be called on tensors that the loop does not change."""
AFTER: Final = frozenset({"to", "type_as", "float", "half", "bfloat16", "unsqueeze", "squeeze", "view", "reshape"})
"""What may be called on a tensor with a row for each place."""
OPERATORS: Final = (ast.Add, ast.Sub, ast.Mult, ast.Div)


class Unread(Exception):
    """A loop over experts with something in it that is not known."""

    def __init__(self, node: ast.AST, why: str) -> None:
        super().__init__(f"line {getattr(node, 'lineno', 0)}: {why}")


@dataclass(frozen=True)
class Value:
    """What an expression of the loop stands for. kind: `number` of the expert, `expert`, `mask` over choices, `tokens`
    (a mask over tokens), `pair` (of `rows` and `slots`), `row` (a tensor with a row for each place), `leading` (that,
    behind a dimension of one), `count` (of places), `outer` (nothing of the loop). text: it, for all experts. flat: a
    mask that is laid out flat; swapped: a pair whose slots come first."""

    kind: str
    text: ast.expr | None = None
    flat: bool = False
    swapped: bool = False


@dataclass
class Loop:
    """A loop that was read.

    experts: path to their list from the module; limit: to the number of turns, where that is not the list's length;
    skips: an expert that nothing chose is not run; pairs: rows are looked for with their places among the choices;
    distinct: of a token's choices equal ones count once; chosen: the tensor of choices; accumulators: what rows are
    added to; lists: of numbers, which become tensors; inputs, outputs: names that are read, and given new values; body:
    the loop's, for all experts.
    """

    experts: str = ""
    skips: bool = False
    distinct: bool = False
    pairs: bool = False
    limit: str = ""
    chosen: str = ""
    accumulators: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    body: list[ast.stmt] = field(default_factory=list)


def name_of(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


class Values:
    """What the expressions of one loop stand for."""

    def __init__(self, function: FunctionType, tree: ast.FunctionDef) -> None:
        import torch

        self.torch = torch
        self.function, self.tree = function, tree
        self.own = tree.args.args[0].arg
        self.locals = {*function.__code__.co_varnames, *function.__code__.co_cellvars}
        self.loop = Loop()
        self.env: dict[str, Value] = {}
        self.temporary: set[str] = set()
        """Names that the loop gives values."""
        self.outs: list[str] = []
        """Names of what rows are added to, as often as that is done."""

    def path(self, node: ast.expr) -> str:
        """`experts` of `self.experts`, also through modules inside; "" of anything else."""
        names = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        return ".".join(reversed(names)) if isinstance(node, ast.Name) and node.id == self.own else ""

    def named(self, name: str) -> list[ast.Name]:
        """Where a name stands in the function."""
        return [n for n in ast.walk(self.tree) if isinstance(n, ast.Name) and n.id == name]

    def local(self, node: ast.expr | None) -> bool:
        return isinstance(node, ast.Name) and node.id in self.locals and node.id not in self.env

    def rows(self, node: ast.expr) -> ast.expr:
        """A tensor with a row for each place, for all experts."""
        value = self.value(node)
        if value.kind != "row" or value.text is None:
            raise unknown("value", node)
        return value.text

    def value(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Name) and node.id in self.env:
            return self.env[node.id]
        if self.outer(node):
            return Value("outer", node)
        made = None
        if isinstance(node, ast.Compare):
            made = self._compared(node)
        elif isinstance(node, ast.Subscript):
            made = self._indexed(node)
        elif isinstance(node, ast.Call):
            made = self._returned(node)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, OPERATORS):
            left, right = self.value(node.left), self.value(node.right)
            if {left.kind, right.kind} <= {"row", "outer"} and left.text is not None and right.text is not None:
                made = Value("row", ast.BinOp(left.text, node.op, right.text))
        if made is None:
            raise unknown("value", node)
        if made.text is not None:
            ast.copy_location(made.text, node)
        return made

    def _compared(self, node: ast.Compare) -> Value | None:
        sides = [node.left, *node.comparators]
        if len(sides) != 2 or not isinstance(node.ops[0], ast.Eq):
            return None
        numbers = [isinstance(one, ast.Name) and self._kind(one) == "number" for one in sides]
        chosen = next((one for one, number in zip(sides, numbers, strict=True) if not number), None)
        if sum(numbers) != 1 or not isinstance(chosen, ast.Name) or not self.local(chosen):
            return None
        return self._choice(chosen.id, node)

    def _choice(self, name: str, node: ast.AST, swapped: bool = False) -> Value:
        if self.loop.chosen not in {"", name}:
            raise Unread(node, f"beside {self.loop.chosen} it looks into {name}")
        self.loop.chosen = name
        return Value("mask", swapped=swapped)

    def _kind(self, node: ast.expr) -> str:
        return self.env[node.id].kind if isinstance(node, ast.Name) and node.id in self.env else ""

    def _indexed(self, node: ast.Subscript) -> Value | None:
        of, index = node.value, node.slice
        if isinstance(of, ast.Attribute) and of.attr == "shape" and self._kind(of.value) in {"rows", "slots"}:
            return Value("count") if constant(index) == 0 else None
        if self._kind(index) == "number":
            if path := self.path(of):
                if self.loop.experts not in {"", path}:
                    return None
                self.loop.experts = path
                return Value("expert")
            if isinstance(of, ast.Name) and (chosen := self.one_hot_of(of.id)):
                return self._choice(chosen, node, swapped=True)
            return None
        if _column(index) and (on := self.value(of)).kind == "row":
            return Value("row", ast.Subscript(on.text, index, ast.Load())) if on.text is not None else None
        if not isinstance(of, ast.Name) or not self.outer(of):
            return None
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        kinds = ["none" if _is_none(part) else self.value(part).kind for part in parts]
        flat = ast.Constant(
            next((self.value(p).flat for p, k in zip(parts, kinds, strict=True) if k == "tokens"), True)
        )
        if kinds in (["rows"], ["tokens"]):
            return Value("row", self.plan("take", of, flat))
        if kinds == ["none", "rows"]:
            return Value("leading", self.plan("take", of, flat))
        column = kinds[-1] == "none"
        kinds = kinds[:-1] if column else kinds
        text: ast.expr | None = None
        if kinds == ["rows", "slots"]:
            text = self.plan("pair", of)
        elif kinds in (["rows", "number"], ["tokens", "number"]):
            text = self.plan("own", of, flat)
        if text is not None and column:
            text = ast.Call(ast.Attribute(text, "unsqueeze", ast.Load()), [ast.Constant(1)], [])
        return None if text is None else Value("row", text)

    def one_hot_of(self, name: str) -> str:
        """The choices whose `one_hot(choices, ...).permute(2, 1, 0)` a name holds; "" where it holds another."""
        if sum(not isinstance(n.ctx, ast.Load) for n in self.named(name)) != 1:
            return ""
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Assign) or len(node.targets) != 1:
                continue
            target, call = node.targets[0], node.value
            if not isinstance(target, ast.Name) or target.id != name or not isinstance(call, ast.Call):
                continue
            permuted = called(call) == "permute" and [constant(arg) for arg in call.args] == [2, 1, 0]
            inner = call.func.value if isinstance(call.func, ast.Attribute) else None
            if not permuted or not isinstance(inner, ast.Call):
                return ""
            one_hot = self.resolved(inner.func) is self.torch.nn.functional.one_hot
            chosen = inner.args[0] if one_hot and inner.args else None
            if not isinstance(chosen, ast.Name) or not self._unchanged(chosen.id, node):
                return ""
            return chosen.id
        return ""

    def _unchanged(self, name: str, since: ast.stmt) -> bool:
        """Whether nothing gives a name another value from a statement on."""
        return all(isinstance(n.ctx, ast.Load) or n.lineno < since.lineno for n in self.named(name))

    def _returned(self, node: ast.Call) -> Value | None:
        if self._is_len(node):
            return Value("count")
        called = self.resolved(node.func)
        if called in (self.torch.where, self.torch.nonzero) and len(node.args) == 1:
            return self._pair(node.args[0], node.keywords, called is self.torch.nonzero)
        if self._expert(node.func):
            if len(node.args) != 1 or node.keywords:
                return None
            return Value("row", self.plan("experts", self.rows(node.args[0])))
        if not isinstance(node.func, ast.Attribute):
            return None
        name, on = node.func.attr, self.value(node.func.value)
        if name == "nonzero" and not node.args and on.kind == "mask":
            return self._pair(node.func.value, node.keywords, True)
        if name == "any" and on.kind == "mask" and not on.swapped:
            dims = [*node.args, *(k.value for k in node.keywords if k.arg == "dim")]
            last = len(dims) == 1 and constant(dims[0]) == -1
            self.loop.distinct |= last
            return Value("tokens") if last else None
        if on.kind == "tokens" and name in {"view", "reshape", "flatten"}:
            flat = [constant(arg) for arg in node.args] == ([] if name == "flatten" else [-1])
            return Value("tokens", flat=True) if flat and not node.keywords else None
        return self._method(node, name, on)

    def _method(self, node: ast.Call, name: str, on: Value) -> Value | None:
        """A method of a tensor with a row for each place, which leaves its rows rows."""
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        if name not in AFTER or on.text is None or not all(map(self.outer, values)):
            return None
        first = constant(node.args[0]) if node.args else None
        if on.kind == "leading":
            fits = (name in {"view", "reshape"} and first == -1 and len(values) == 2) or (
                name == "squeeze" and first == 0
            )
            if not fits:
                return None
            if name == "squeeze":
                return Value("row", on.text)
        elif on.kind != "row" or not _keeps_rows(name, first, len(values)):
            return None
        return Value("row", ast.Call(ast.Attribute(on.text, name, ast.Load()), node.args, node.keywords))

    def _pair(self, mask: ast.expr, keywords: list[ast.keyword], nonzero: bool) -> Value | None:
        value = self.value(mask)
        given = {keyword.arg: constant(keyword.value) for keyword in keywords}
        if value.kind != "mask" or given != ({"as_tuple": True} if nonzero else {}):
            return None
        self.loop.pairs = True
        return Value("pair", swapped=value.swapped)

    def _expert(self, node: ast.expr) -> bool:
        if isinstance(node, (ast.Name, ast.Subscript)) and not self.outer(node):
            return self.value(node).kind == "expert"
        return False

    def _is_len(self, node: ast.Call) -> bool:
        """`len(rows)`, `rows.numel()`, `rows.size(0)`"""
        name = called(node)
        if isinstance(node.func, ast.Name):
            return name == "len" and len(node.args) == 1 and self._kind(node.args[0]) in {"rows", "slots"}
        on = getattr(node.func, "value", None)
        args = [constant(arg) for arg in node.args]
        known = (name == "numel" and not args) or (name == "size" and args == [0])
        return known and on is not None and self._kind(on) in {"rows", "slots"}

    def plan(self, method: str, *args: ast.expr) -> ast.expr:
        return ast.Call(ast.Attribute(name_of(PLAN), method, ast.Load()), list(args), [])

    def outer(self, node: ast.expr) -> bool:
        """Whether it is of names from before the loop, which it leaves alone: these, their attributes and sizes."""
        for one in ast.walk(node):
            if isinstance(one, ast.Name):
                if one.id in self.temporary or one.id in self.outs:
                    return False
            elif isinstance(one, ast.Call):
                if called(one) not in SIZES or one.keywords:
                    return False
            elif isinstance(one, ast.Subscript):
                if not isinstance(one.value, ast.Attribute) or one.value.attr != "shape":
                    return False
            elif not isinstance(
                one, (ast.Attribute, ast.Constant, ast.BinOp, ast.UnaryOp, ast.USub, ast.expr_context, *OPERATORS)
            ):
                return False
        return True

    def resolved(self, node: ast.expr) -> Any:
        """The function that a name from outside stands for, also as an attribute of modules of Python's."""
        names = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id in self.locals:
            return None
        found = self.function.__globals__.get(node.id)
        for name in reversed(names):
            if not isinstance(found, ModuleType):
                return None
            found = getattr(found, name, None)
        return found


def constant(node: ast.expr) -> Any:
    """A number or a truth value; None for anything else."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if isinstance(value, (bool, int)) else None


def _keeps_rows(name: str, first: Any, arguments: int) -> bool:
    """Whether a method of AFTER leaves rows rows. first: its first argument."""
    if name in {"view", "reshape"}:
        return bool(first == -1) and arguments == 2
    return name not in {"squeeze", "unsqueeze"} or first in (1, -1)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _column(index: ast.expr) -> bool:
    """`[:, None]`"""
    if not isinstance(index, ast.Tuple) or len(index.elts) != 2 or not _is_none(index.elts[1]):
        return False
    first = index.elts[0]
    return isinstance(first, ast.Slice) and first.lower is first.upper is first.step is None


def unknown(what: str, node: ast.AST) -> Unread:
    return Unread(node, f"a {what} that is not known: {text_of(node)}")


def text_of(node: ast.AST) -> str:
    return ast.unparse(node).splitlines()[0][:80]
