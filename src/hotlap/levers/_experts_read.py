"""Not a lever: reads the loop over experts in a module's forward, and writes what does the same for all at once.

Where every statement of the loop is one that is known, its body is written down once more for the rows of all experts:
`out[rows] += y` becomes a sum over what each token chose. A statement that is not known refuses the loop, by its line.
"""

import ast
from collections.abc import Sequence
from types import FunctionType

from ._experts_values import Loop, Unread, Value, Values, called, constant, name_of, text_of, unknown


def _stored(nodes: Sequence[ast.AST]) -> set[str]:
    every = [node for one in nodes for node in ast.walk(one)]
    return {node.id for node in every if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}


def _loads(nodes: Sequence[ast.AST]) -> list[str]:
    every = [node for one in nodes for node in ast.walk(one)]
    return [node.id for node in every if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]


class Reader(Values):
    """The statements of one loop."""

    def __init__(self, function: FunctionType, tree: ast.FunctionDef) -> None:
        super().__init__(function, tree)
        self.guarded = False
        self.by_rows = False
        """Whether rows are added with `+=`, which takes one of a place that comes twice."""
        self.new_outs: list[str] = []
        self.appended: dict[str, ast.expr] = {}
        """Lists of numbers, and by what these are divided."""
        self.used_outs = 0

    # the whole

    def read(self, block: list[ast.stmt], at: int) -> tuple[int, Loop]:
        """The loop, and where what belongs to it ends."""
        node = block[at]
        assert isinstance(node, ast.For)
        if node.orelse:
            raise Unread(node.orelse[0], "an else of the loop")
        self.temporary = _stored([node])
        self._header(node)
        body = self._body(node.body)
        if not self.outs:
            raise Unread(node, "no statement of it adds rows to a tensor")
        if not self.loop.chosen:
            raise Unread(node, "nothing tells which rows an expert gets")
        end = at + 1
        while self.appended and end < len(block) and (made := self._numbers(block[end])) is not None:
            body.append(made)
            end += 1
        if self.appended:
            name = next(iter(self.appended))
            raise Unread(node, f"what becomes of {name} is not `{name} = torch.tensor({name})` right after the loop")
        self._check(block[at:end])
        if self.by_rows and not self._by_topk():
            raise Unread(node, f"whether {self.loop.chosen} names an expert twice for a row is not known")
        return end, self._finish(block[at:end], body)

    def _finish(self, region: list[ast.stmt], body: list[ast.stmt]) -> Loop:
        loop = self.loop
        loop.outputs = (*self.new_outs, *loop.lists)
        temporary = self.temporary - set(loop.outputs)
        used = dict.fromkeys([loop.chosen, *_loads([*region, *body]), *self.new_outs])
        loop.inputs = tuple(n for n in used if n in self.locals and n not in temporary and n != self.own)
        loop.accumulators, loop.body = tuple(dict.fromkeys(self.outs)), body
        for statement in body:
            for node in ast.walk(statement):
                if not hasattr(node, "lineno"):
                    ast.copy_location(node, region[0])
        return loop

    def _check(self, region: list[ast.stmt]) -> None:
        """Nothing else reads what the loop leaves, and it reads nothing that it changes."""
        inside = {id(node) for statement in region for node in ast.walk(statement)}
        outside = [node for node in ast.walk(self.tree) if id(node) not in inside]
        left = self.temporary - set(self.new_outs) - set(self.loop.lists)
        for node in outside:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in left:
                raise Unread(node, f"{node.id} is of the loop, and is read outside of it")
        names = [node for one in region for node in ast.walk(one) if isinstance(node, ast.Name)]
        if sum(node.id in self.outs for node in names) != self.used_outs:
            raise Unread(region[0], f"it reads {self.outs[0]}, which it adds to")
        if self.loop.chosen in self.outs:
            raise Unread(region[0], f"it changes {self.loop.chosen}")

    def _by_topk(self) -> bool:
        """Whether the choices are indices of a topk along the last dimension, and so differ in a row."""
        stores = [n for n in self.named(self.loop.chosen) if not isinstance(n.ctx, ast.Load)]
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call) or len(stores) != 1:
                continue
            target, call = node.targets[0], node.value
            if not isinstance(target, ast.Tuple) or len(target.elts) != 2 or target.elts[1] is not stores[0]:
                continue
            method = isinstance(call.func, ast.Attribute) and call.func.attr == "topk"
            function = self.resolved(call.func) is self.torch.topk
            if not function and not method:
                continue
            at = 2 if function else 1
            dim = next((k.value for k in call.keywords if k.arg == "dim"), None)
            dim = call.args[at] if dim is None and len(call.args) > at else dim
            return dim is None or constant(dim) in (-1, 1)
        return False

    # the loop's head

    def _header(self, node: ast.For) -> None:
        call, target = node.iter, node.target
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
        if call.keywords or call.func.id in self.locals or call.func.id in self.function.__globals__:
            raise Unread(node, "what it loops over is not known")
        if call.func.id == "enumerate" and len(call.args) == 1 and isinstance(target, ast.Tuple):
            number, expert = target.elts
            path = self.path(call.args[0])
            if not path or not isinstance(number, ast.Name) or not isinstance(expert, ast.Name):
                raise Unread(node, "what it loops over is not a list of the module's")
            self.loop.experts = path
            self.env |= {number.id: Value("number"), expert.id: Value("expert")}
            return
        ends = call.args[1:] if len(call.args) == 2 and constant(call.args[0]) == 0 else call.args
        if call.func.id == "range" and len(ends) == 1 and isinstance(target, ast.Name):
            self.env[target.id] = Value("number")
            end = ends[0]
            if isinstance(end, ast.Call) and called(end) == "len" and len(end.args) == 1:
                self.loop.experts = self.path(end.args[0])
            else:
                self.loop.limit = self.path(end)
            if self.loop.experts or self.loop.limit:
                return
        raise Unread(node, "what it loops over is not known")

    # statements

    def _body(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in statements:
            made += self._one(statement)
        return made

    def _one(self, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            return []
        if isinstance(node, ast.If):
            return self._guard(node)
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            return self._assign(node, node.targets[0])
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Subscript):
            return self._add(node, node.target, node.value)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            return self._call(node, node.value)
        raise unknown("statement", node)

    def _guard(self, node: ast.If) -> list[ast.stmt]:
        some = self._some(node.test)
        if some is None or node.orelse:
            raise Unread(node, f"a condition that is not known: {text_of(node.test)}")
        self.loop.skips = True
        if not some:
            if len(node.body) != 1 or not isinstance(node.body[0], ast.Continue):
                raise unknown("statement", node.body[0])
            self.guarded = True
            return []
        before, known = self.guarded, set(self.env)
        self.guarded = True
        made = self._body(node.body)
        self.guarded = before
        self.env = {name: value for name, value in self.env.items() if name in known}
        return made

    def _some(self, test: ast.expr) -> bool | None:
        """Whether a condition holds where the expert has rows (True), where it has none (False); None: neither."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._some(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and self._counts(test.left):
            operator, number = type(test.ops[0]), constant(test.comparators[0])
            known = {(ast.Eq, 0): False, (ast.NotEq, 0): True, (ast.Gt, 0): True, (ast.GtE, 1): True}
            return (known | {(ast.Lt, 1): False, (ast.LtE, 0): False}).get((operator, number))
        return True if self._counts(test) else None

    def _counts(self, node: ast.expr) -> bool:
        """Whether it is how many rows the expert has, or whether it has any."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.keywords and not node.args:
            if node.func.attr == "item":
                return self._counts(node.func.value)
            if node.func.attr in {"any", "sum"}:
                return self.value(node.func.value).kind in {"mask", "tokens"}
        return self.value(node).kind == "count"

    def _assign(self, node: ast.Assign, target: ast.expr) -> list[ast.stmt]:
        if isinstance(target, ast.Subscript):  # out[rows] = out[rows] + y
            value = node.value
            if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
                raise unknown("statement", node)
            if ast.unparse(value.left) != ast.unparse(target):
                raise unknown("statement", node)
            self.used_outs += 1
            return self._add(node, target, value.right)
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Call) and called(node.value) == "index_add":
            return self._call(node, node.value, target)
        value_ = self.value(node.value)
        if isinstance(target, ast.Tuple) and value_.kind == "pair" and len(target.elts) == 2:
            kinds = ("slots", "rows") if value_.swapped else ("rows", "slots")
            for one, kind in zip(target.elts, kinds, strict=True):
                if not isinstance(one, ast.Name):
                    raise unknown("statement", node)
                self.env[one.id] = Value(kind)
            return []
        if not isinstance(target, ast.Name) or value_.kind in {"outer", "pair", "count", "number"}:
            raise unknown("statement", node)
        if value_.kind in {"row", "leading"}:
            assert value_.text is not None
            self.env[target.id] = Value(value_.kind, name_of(target.id))
            return [ast.copy_location(ast.Assign([ast.Name(target.id, ast.Store())], value_.text), node)]
        self.env[target.id] = value_
        return []

    def _add(self, node: ast.stmt, target: ast.Subscript, value: ast.expr) -> list[ast.stmt]:
        out, place = target.value, self.value(target.slice)
        if not self.local(out) or place.kind not in {"rows", "tokens"}:
            raise unknown("statement", node)
        self.by_rows |= place.kind == "rows"
        return [self._added(node, out, self.rows(value))]

    def _added(self, node: ast.stmt, out: ast.expr, rows: ast.expr) -> ast.stmt:
        """`out.add_(plan.sum(rows, out))`"""
        assert isinstance(out, ast.Name)
        self.outs.append(out.id)
        self.used_outs += 1
        made = self.plan("sum", rows, name_of(out.id))
        return ast.copy_location(
            ast.Expr(ast.Call(ast.Attribute(name_of(out.id), "add_", ast.Load()), [made], [])), node
        )

    def _call(self, node: ast.stmt, call: ast.Call, target: ast.Name | None = None) -> list[ast.stmt]:
        name, on = called(call), getattr(call.func, "value", None)
        if name == "append" and target is None and self.local(on) and len(call.args) == 1 and not call.keywords:
            assert isinstance(on, ast.Name)
            if self.guarded or on.id in self.appended:
                raise Unread(node, f"what {on.id} holds after the loop is not known")
            self.appended[on.id] = self._share(call.args[0])
            return []
        wanted = "index_add_" if target is None else "index_add"
        known = name == wanted and len(call.args) == 3 and not call.keywords and constant(call.args[0]) == 0
        if not known or not self.local(on) or self.value(call.args[1]).kind != "rows":
            raise unknown("statement", node)
        assert isinstance(on, ast.Name)
        added = self._added(node, on, self.rows(call.args[2]))
        if target is None:
            return [added]
        if target.id != on.id:
            raise unknown("statement", node)
        self.used_outs += 1
        self.new_outs = [on.id]
        assert isinstance(added, ast.Expr) and isinstance(added.value, ast.Call)
        made = ast.BinOp(name_of(on.id), ast.Add(), added.value.args[0])
        return [ast.copy_location(ast.Assign([ast.Name(on.id, ast.Store())], made), node)]

    # numbers of rows

    def _only_gathers(self, name: str, end: int) -> bool:
        """Whether a list is made empty, and up to a line only the loop adds to it."""
        names = [n for n in self.named(name) if n.lineno <= end]
        stores = [n.value for n in ast.walk(self.tree) if isinstance(n, ast.Assign) and n.targets[0] in names]
        empty = [value for value in stores if isinstance(value, ast.List) and not value.elts]
        return (len(names), len(stores), len(empty)) == (4, 2, 1)

    def _is_tensor_of(self, node: ast.stmt, name: str) -> bool:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            return False
        call, target = node.value, node.targets[0]
        keywords = {keyword.arg for keyword in call.keywords}
        args = [one.id for one in call.args if isinstance(one, ast.Name)]
        return (
            isinstance(target, ast.Name)
            and target.id == name
            and self.resolved(call.func) is self.torch.tensor
            and args == [name]
            and keywords <= {"device", "dtype"}
        )

    def _share(self, node: ast.expr) -> ast.expr:
        """By what the number of rows is divided; a None of the script's language: by nothing."""
        by: ast.expr = ast.Constant(None)
        count = node
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and self.outer(node.right):
            count, by = node.left, node.right
        if self.value(count).kind != "count":
            raise unknown("number", node)
        return by

    def _numbers(self, node: ast.stmt) -> ast.stmt | None:
        """`load = torch.tensor(load, ...)` for all experts, None where the statement is another."""
        name = next((name for name in self.appended if self._is_tensor_of(node, name)), None)
        if name is None:
            return None
        assert isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        by = self.appended.pop(name)
        self.loop.lists = (*self.loop.lists, name)
        known = all(self.outer(keyword.value) for keyword in node.value.keywords)
        if not known or not self._only_gathers(name, node.end_lineno or node.lineno):
            raise unknown("statement", node)
        made = self.plan("numbers", by)
        assert isinstance(made, ast.Call)
        made.keywords = node.value.keywords
        return ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], made), node)
