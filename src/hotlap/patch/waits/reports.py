"""`print`, loggers and progress bars in each step: once in EVERY steps."""

from collections.abc import Iterator
from typing import Final

import libcst as cst

from hotlap.source.places import CannotTell
from hotlap.source.scopes import Binding, dotted, is_method_call, nodes

from ..edits import under
from ._base import Change, Wait, assigned
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


def change(wait: Wait) -> Change | None:
    """Refuses where no variable counts the steps, and calls that may do more than report."""
    if wait.call is None or not (name := _reporter(wait, wait.call)):
        return None
    loop = next(loops(wait.source, wait.scope, wait.line), None)
    if loop is None:
        raise CannotTell("it is in no loop of this function, so nothing here counts the steps")
    if (rare := seldom(wait, loop, wait.line)) is not None:
        raise CannotTell("it does not run in every step", wait.lines([rare]))
    _only_text(wait, wait.call)
    _of_steps(wait, loop)
    count = counter(wait, loop)
    if count is None:
        what = "`for i, ... in enumerate(...)`" if isinstance(loop, cst.For) else "`step += 1` in each turn"
        raise CannotTell(f"nothing counts the turns of this loop; write {what}, then patch again", wait.lines([loop]))
    written = f"line {wait.source.line(wait.line)} runs where `{count} % {EVERY} == 0` only"
    note = f"1 {name} in {EVERY} steps instead of {EVERY}; its numbers stay the same"
    doubtful = [wait.source.code(node) for node in _may_change(wait.call)]
    if doubtful:
        note += f", unless `{doubtful[0]}` changes something each time"
    return Change(
        {wait.line: under(wait.source, f"if {count} % {EVERY} == 0")}, written, (note,), review=bool(doubtful)
    )


def _reporter(wait: Wait, call: cst.Call) -> str:
    """What a call reports by; "" where it is not known that it does nothing else."""
    if dotted(call.func) == "print":
        return "printed line" if wait.is_builtin("print") else ""
    if not is_method_call(call):
        return ""
    method, on = call.func.attr.value, call.func.value
    variable = wait.places.names.variable(dotted(on) or "", wait.scope)
    made = [_maker(binding, wait) for binding in variable.bindings] if variable is not None else []
    if method in ON_A_BAR and made:
        return "look of the progress bar" if all(name.rpartition(".")[2] in BARS for name in made) else ""
    if method in LEVELS and (wait.resolve(on) == "logging" or (made and LOGGERS.issuperset(made))):
        return "logged line"
    return ""


def _maker(binding: Binding, wait: Wait) -> str:
    """The full name of what is called to make the value of a variable, or as it is written."""
    value = binding.value if isinstance(binding.statement, cst.WithItem) else assigned(binding)
    if not isinstance(value, cst.Call):
        return "?"
    return wait.resolve(value.func) or dotted(value.func) or "?"


def _only_text(wait: Wait, call: cst.Call) -> None:
    """Raises CannotTell where a report may not be left out: it goes to a file, continues a line, or something is done
    on the way to it."""
    named = {arg.keyword.value: wait.source.code(arg.value) for arg in call.args if arg.keyword}
    if dotted(call.func) == "print" and not named.get("file", "sys.stderr").startswith("sys.std"):
        raise CannotTell("it writes to a file, which other code may read")
    if "end" in named and "\\r" not in wait.source.code(call):
        raise CannotTell("it prints only part of an output line")
    inner = [node for arg in call.args for node in nodes(arg, cst.Call, cst.NamedExpr, cst.Await, cst.Yield)]
    does = next((node for node in inner if not (isinstance(node, cst.Call) and _computes(wait, node))), None)
    if does is not None:
        raise CannotTell(f"`{wait.source.code(does)}` in it may do more than format text", wait.lines([does]))


def _computes(wait: Wait, call: cst.Call) -> bool:
    """Whether a call is known to change nothing."""
    name, full = dotted(call.func) or "", wait.resolve(call.func)
    if full.startswith(MODULES) if full else name in FUNCTIONS and wait.is_builtin(name):
        return True
    return not full and is_method_call(call, *METHODS)


def _may_change(call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Calls of methods that an object of the script's may have too, and loops over what may be used up by them."""
    for arg in call.args:
        for inner in nodes(arg, cst.Call):
            # Of what a method of a tensor gave, as in `loss.detach().mean()`, it is one of a tensor too.
            if is_method_call(inner, *OF_OBJECTS) and not is_method_call(inner.func.value, *METHODS):
                yield inner
        for loop in nodes(arg, cst.CompFor):
            if not isinstance(loop.iter, cst.List | cst.Tuple | cst.Call):
                yield loop.iter


def _of_steps(wait: Wait, loop: Loop) -> None:
    """Raises CannotTell where it is not known that each turn of a loop is a step: nothing in it trains, or that in a
    loop further in."""
    places, scope = wait.places, wait.scope
    sites = [site.call for site in (*places.backwards, *places.root_calls) if site.scope is scope]
    sites += [c for s, c in places.names.calls if s is scope and places.names.definition(c.func, s) in places.loops]
    if all(next(loops(wait.source, scope, call), None) is not loop for call in sites):
        raise CannotTell("a turn of this loop may not be a step", wait.lines([loop]))
