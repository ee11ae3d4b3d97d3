"""`print`, loggers and progress bars in each step: once in EVERY steps."""

from typing import Final

import libcst as cst

from hotlap.source.places import CannotWrite
from hotlap.source.scopes import Binding, dotted

from ..edits import Replacement, statement
from ._base import Change, Outcome, Wait, assigned
from ._turns import BARS, Loop, counter, loops, seldom

EVERY: Final = 50
"""Steps. At 10 ms a step two lines a second, and what a wait costs is then spread over so many."""
LEVELS: Final = frozenset(["debug", "info", "warning"])
LOGGERS: Final = frozenset(["logging.getLogger", "accelerate.logging.get_logger"])
ON_A_BAR: Final = frozenset(["set_postfix", "set_postfix_str", "set_description", "set_description_str"])
FUNCTIONS: Final = frozenset(["float", "int", "len", "str", "repr", "round", "format", "abs", "min", "max", "sum"])
METHODS: Final = frozenset(
    [
        "item", "detach", "cpu", "float", "double", "tolist", "numpy", "mean", "sum", "norm", "max", "min", "std",
        "sqrt", "argmax", "size", "numel", "dim", "format", "join", "ljust", "rjust", "get_last_lr", "elapsed",
    ]
)  # fmt: skip
"""That only compute something of what they are called on."""
OF_OBJECTS: Final = frozenset(["mean", "sum", "norm", "max", "min", "std", "sqrt", "argmax", "elapsed"])
"""Of those, what meters and timers have too, and may begin anew by."""
MODULES: Final = ("time.", "math.", "datetime.", "torch.cuda.memory_", "torch.cuda.max_memory_", "os.getpid")


def change(wait: Wait) -> Outcome:
    """Refuses where no variable counts the steps, and calls that may do more than report."""
    if wait.call is None or not (name := _reporter(wait, wait.call)):
        return None
    loop = next(loops(wait.source, wait.scope, wait.line), None)
    if loop is None:
        return CannotWrite("no loop of this function is around it, so that nothing here counts the steps")
    if (under := seldom(wait, loop, wait.line)) is not None:
        return CannotWrite("it does not run in every step", wait.lines([under]))
    doubt = _more_than_text(wait, wait.call) or _not_steps(wait, loop)
    if doubt is not None:
        return doubt
    count = counter(wait, loop)
    if count is None:
        what = "`for i, ... in enumerate(...)`" if isinstance(loop, cst.For) else "`step += 1` in each turn"
        return CannotWrite(f"nothing counts the turns of this loop; write {what}, then patch again", wait.lines([loop]))
    written = f"line {wait.source.line(wait.line)} runs where `{count} % {EVERY} == 0` only"
    note = f"1 {name} in {EVERY} steps where there were {EVERY}; the numbers in it stay the same"
    doubtful = [wait.source.tree.code_for_node(node) for node in _may_change(wait.call)]
    if doubtful:
        note += f", unless `{doubtful[0]}` changes something each time"
    return Change({wait.line: _under(wait, f"{count} % {EVERY} == 0")}, written, (note,), review=bool(doubtful))


def around(wait: Wait, node: cst.CSTNode) -> Outcome:
    """The same of the report that a node is part of; None where it is part of none."""
    line = wait.source.around(node, cst.SimpleStatementLine)
    return None if line is None else change(Wait(wait.places, wait.source, wait.scope, line, ""))


def _under(wait: Wait, test: str) -> Replacement:
    """A statement put under an `if`; the comments and blank lines above it stay above."""

    def change(node: cst.CSTNode) -> cst.CSTNode:
        line = cst.ensure_type(node, cst.SimpleStatementLine)
        frame = cst.ensure_type(statement(wait.source, f"if {test}:\n    pass\n"), cst.If)
        body = cst.ensure_type(frame.body, cst.IndentedBlock).with_changes(body=[line.with_changes(leading_lines=[])])
        return frame.with_changes(leading_lines=line.leading_lines, body=body)

    return change


def _reporter(wait: Wait, call: cst.Call) -> str:
    """What a call reports by; "" where it is not known that it does nothing else."""
    if dotted(call.func) == "print":
        return "printed line" if wait.is_builtin("print") else ""
    if not isinstance(call.func, cst.Attribute):
        return ""
    method, on = call.func.attr.value, call.func.value
    made = [_maker(binding, wait) for binding in _bindings(wait, on)]
    if method in ON_A_BAR and made:
        return "look of the progress bar" if all(name.rpartition(".")[2] in BARS for name in made) else ""
    if method in LEVELS and (wait.resolve(on) == "logging" or (made and LOGGERS.issuperset(made))):
        return "logged line"
    return ""


def _bindings(wait: Wait, node: cst.BaseExpression) -> list[Binding]:
    variable = wait.places.names.variable(dotted(node) or "", wait.scope)
    return variable.scope.names[variable.name] if variable is not None else []


def _maker(binding: Binding, wait: Wait) -> str:
    """The full name of what is called to make the value of a variable, or as it is written."""
    value = binding.value if isinstance(binding.statement, cst.WithItem) else assigned(binding)
    if not isinstance(value, cst.Call):
        return "?"
    return wait.resolve(value.func) or dotted(value.func) or "?"


def _more_than_text(wait: Wait, call: cst.Call) -> CannotWrite | None:
    """Why a report may not be left out: it goes to a file, continues a line, or something is done on the way to it."""
    named = {arg.keyword.value: wait.source.tree.code_for_node(arg.value) for arg in call.args if arg.keyword}
    if dotted(call.func) == "print" and not named.get("file", "sys.stderr").startswith("sys.std"):
        return CannotWrite("it writes to a file, which something may read")
    if "end" in named and "\\r" not in wait.source.tree.code_for_node(call):
        return CannotWrite("it prints a part of a line, which other lines belong to")
    looking = _Doing(wait)
    for arg in call.args:
        arg.visit(looking)
    if not looking.found:
        return None
    code = wait.source.tree.code_for_node(looking.found[0])
    return CannotWrite(f"`{code}` in it may do more than make its text", wait.lines(looking.found[:1]))


def _may_change(call: cst.Call) -> list[cst.BaseExpression]:
    """Calls of methods that an object of the script's may have too, and loops over what may be used up by them."""
    looking = _Doubtful()
    for arg in call.args:
        arg.visit(looking)
    return looking.found


class _Doubtful(cst.CSTVisitor):
    def __init__(self) -> None:
        self.found: list[cst.BaseExpression] = []

    def visit_Call(self, node: cst.Call) -> None:
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in OF_OBJECTS and not _read(node.func.value):
            self.found.append(node)

    def visit_CompFor(self, node: cst.CompFor) -> None:
        if not isinstance(node.iter, cst.List | cst.Tuple | cst.Call):
            self.found.append(node.iter)


def _read(node: cst.BaseExpression) -> bool:
    """Whether it is what a method of a tensor gave, as in `loss.detach().mean()`."""
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in METHODS


class _Doing(cst.CSTVisitor):
    """Finds what may change something."""

    def __init__(self, wait: Wait) -> None:
        self.wait = wait
        self.found: list[cst.CSTNode] = []

    def visit_Call(self, node: cst.Call) -> None:
        name, full = dotted(node.func) or "", self.wait.resolve(node.func)
        known = full.startswith(MODULES) if full else name in FUNCTIONS and self.wait.is_builtin(name)
        if not known and (full or not isinstance(node.func, cst.Attribute) or node.func.attr.value not in METHODS):
            self.found.append(node)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self.found.append(node)

    def visit_Await(self, node: cst.Await) -> None:
        self.found.append(node)

    def visit_Yield(self, node: cst.Yield) -> None:
        self.found.append(node)


def _not_steps(wait: Wait, loop: Loop) -> CannotWrite | None:
    """Why it is not known that each turn of a loop is a step: nothing in it trains, or that in a loop further in."""
    places, scope = wait.places, wait.scope
    sites = [site.call for site in (*places.backwards, *places.root_calls) if site.scope is scope]
    trains = {site.scope for site in places.backwards}
    sites += [c for s, c in places.names.calls if s is scope and places.names.definition(c.func, s) in trains]
    if any(next(loops(wait.source, scope, call), None) is loop for call in sites):
        return None
    return CannotWrite("that each turn of this loop is a step is not known", wait.lines([loop]))
