"""Gradients are made row by row: as many backwards a step as a batch has rows."""

import ast
from typing import Final

from hotlap.diagnose.source import called_in, calls_in, files_of, loops_at, name_at, name_of, parsed, place_at
from hotlap.records.diagnosis import Finding, Place
from hotlap.records.durations import ms
from hotlap.records.run import Facts

from ._base import Measured
from .compute import SHORT_MS, SMALL_MS
from .launch import waits
from .micro_batches import wants_each

REPLACES = ("micro-batches", "several-backwards")
LEAST, LEAST_ROWS, MORE = 0.05, 8, 1.5
"""Of the step; rows; backwards for each row at most."""
OWN_FORWARD: Final = 0.5
"""Forwards for each backward, from which on each row has its own."""
ASKS: Final = frozenset({"grad", "autograd.grad", "torch.autograd.grad"})
ROW_BY_ROW: Final = (ast.ListComp, ast.GeneratorExp)
BY_VMAP: Final = (
    "`torch.func.vmap(torch.func.grad(loss_of_one), in_dims=(None, 0, 0))(params, x, y)`, with `loss_of_one` by "
    "`torch.func.functional_call(model, params, x[None])`, for all rows at once"
)
NORMS: Final = (
    "; if only norms are needed, one backward with hooks: for a linear layer, a row's squared norm is "
    "`x.square().sum(-1) * g.square().sum(-1)` (x its input, g the gradient of its output)"
)
OF_SUM: Final = (
    "gradients with respect to inputs of independent rows: one backward of the sum, "
    "`torch.autograd.grad(y.sum(), x)`; with respect to parameters: "
)


def find(measured: Measured) -> Finding | None:
    """Share: of the backward, and of forwards that rows have of their own, all but one, at most. Told where the source
    asks for gradients in a loop that does not train, and those of one row are small or those of all are gone through.
    """
    facts, root, rows = measured.facts, measured.root, measured.rows
    if facts is None or root is None or rows is None or not facts.optimizer_steps or rows < LEAST_ROWS:
        return None
    times = facts.backwards / facts.optimizer_steps
    if (
        not rows <= times <= MORE * rows
        or (where := _call(facts, measured.micro is None or measured.micro[0] < rows)) is None
    ):
        return None
    each = facts.forwards / max(1, facts.backwards) if facts.forwards_each is None else facts.forwards_each
    phases = ("forward", "backward") if each >= OWN_FORWARD else ("backward",)
    took = measured.took_ms(*phases)
    waiting = sum(waits(measured)[name] for name in phases) if measured.cuda else took
    small = 2 * waiting > took if measured.cuda else took / times < min(SHORT_MS, SMALL_MS * root.modules)
    if each >= OWN_FORWARD and not small:
        return None
    share = measured.share(*phases) * (1 - 1 / times)
    if share < LEAST:
        return None
    return Finding(
        id="gradients-of-each",
        bound="launch" if small else "compute",
        share=share,
        cost_ms=took * (1 - 1 / times),
        title=f"{rows:.0f} rows get one backward each",
        where=where,
        evidence=f"{times:.3g} backwards an update of {rows:.0f} rows; they take {ms(measured.took_ms('backward'))} a "
        f"step{', with forwards of their own' if len(phases) > 1 else ''}",
        why="operations on one row take longer to issue than to compute"
        if len(phases) > 1
        else "each goes through the graph of all rows, though all but one have zero gradients",
        instead=BY_VMAP + NORMS if len(phases) > 1 else OF_SUM + BY_VMAP,
        named=True,
    )


def _call(facts: Facts, returned: bool) -> Place | None:
    """The first line of the user's files where a loop that does not train asks for gradients that it uses one by one,
    itself or by a function of the file. returned: by `autograd.grad`, as no losses go backward."""
    for file in files_of(facts):
        module = parsed(file)
        calls = list(calls_in(module)) if module is not None else []
        asks = [call for call in calls if name_of(call) in ASKS]
        nodes = list(ast.walk(module)) if module is not None else []
        made = {id(call) for one in nodes if isinstance(one, ROW_BY_ROW) for call in calls_in(one)}
        functions = {place_at(file, call.lineno).function for call in asks if not _loop(file, call)}
        asks += [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in functions]
        lines = [call.lineno for call in asks if id(call) in made or _loop(file, call) is not None]
        backwards = [place_at(file, call.lineno) for call in calls if name_at(call.func) == "backward"]
        if not returned:
            lines = [one.line for one in backwards if one.line is not None and wants_each(one)]
        if lines:
            return place_at(file, min(lines))
    return None


def _loop(file: str, call: ast.Call) -> ast.stmt | None:
    """The loop around a call in its function, where that has no `step`."""
    loop = next(loops_at(Place(file=file, line=call.lineno)), None)
    return None if loop is None or "step" in called_in(loop) else loop
