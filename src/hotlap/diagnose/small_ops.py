"""Small operations that a Python loop in the model makes one by one, as far as a trace shows them with their lines."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from hotlap.records.diagnosis import Finding, Place
from hotlap.records.trace import HostTime, RankTrace

from .source import calls_in, loops_at, statement_at
from .statements import trains

MANY: Final = 64
"""Calls a step of one op at one line."""
LEAST: Final = 0.2
"""Of the host's time in the model, what the ops in a function's loops take."""
OF: Final = ("compute", "launch")
"""Findings that only say where this time goes."""
WHY: Final = (
    "each of them passes through Python, the dispatcher and autograd, for little work, and its backward does too"
)
INSTEAD: Final = (
    "one operation on the whole tensor in place of the loop: a batched product, `einsum`, an index, `torch.where`, "
    "`index_add_` or `scatter_reduce` for sums by group, `torch.stack` once "
    "at the end; what is the same in each step: make it once, in `__init__`, as a buffer"
)


def small_ops(rank: RankTrace, findings: Sequence[Finding]) -> Iterator[Finding]:
    """The function whose loops hold most of them, at its dearest line, with its part of what the model takes."""
    general = next((one for one in findings if one.id in OF and not one.named), None)
    whole = sum(row.ns for row in rank.model)
    if general is None or not whole:
        return
    loops: defaultdict[tuple[str, str | None], list[HostTime]] = defaultdict(list)
    for row in rank.model:
        if row.where is not None and "::" in row.name and _in_loop(row.where):
            loops[row.where.file, row.where.function].append(row)
    steps = rank.window.count
    for rows in sorted(loops.values(), key=lambda rows: -sum(row.ns for row in rows)):
        share, most = sum(row.ns for row in rows) / whole, max(rows, key=lambda row: row.count)
        if share < LEAST:
            return
        if most.count >= MANY * steps:
            yield Finding(
                id="small-ops",
                bound=general.bound if rank.device_name != "cpu" else "launch",
                share=share * general.share,
                title="small operations, one by one in a Python loop",
                where=max(rows, key=lambda row: row.ns).where,
                evidence=f"{most.count // steps:,} calls of {most.name} a step at one line; in loops of this function "
                f"the host spends {share:.0%} of its time in the model",
                why=WHY,
                instead=INSTEAD,
                levers=general.levers,
                named=True,
            )
            return


def _in_loop(place: Place) -> bool:
    """Whether the line lies in a loop of a function of the model, which is not one over its modules."""
    own, loops = statement_at(place), list(loops_at(place))
    if own is None or trains(place):
        return False
    made = [one for one in ast.walk(own) if isinstance(one, ast.comprehension)] if own not in loops else []
    targets = [one.target for one in (*loops, *made) if not isinstance(one, ast.While)]
    names = {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    called = [call.func for call in calls_in(own)]
    of_modules = any(
        isinstance(one, ast.Subscript) or (isinstance(one, ast.Name) and one.id in names) for one in called
    )
    return bool(loops or made) and not of_modules
