"""What torch.compile could not take of the script, as findings: graph breaks, recompilations and CUDA graphs that were
not made, with their lines.

They cost nothing by themselves; what they cost is that the host launches what a graph would have held. So where the
step waits for launches, that finding is explained by them and points to their line; elsewhere their cost is unknown,
and they are told with a share of 0.
"""

import re
from functools import partial
from typing import Final

import msgspec

from hotlap.records.diagnosis import Diagnosis, Finding, Place, in_order
from hotlap.records.run import CompiledFunction, Facts

from .findings.launch import MASKS

MUCH: Final = 0.25
"""Of the run, from which it comes before what the steps are made of: those in which is compiled are not among them."""
MANY: Final = 4
"""Recompilations of a function that are worth telling: one or two come with the last batch and with evaluation."""
MOST: Final = 3
"""Findings; of many functions the worst."""
GRAPH: Final = re.compile(r"^\d+/\d+: ")
OTHER_TYPE: Final = re.compile(r"___check_type_id\((.+), \d+\)(?:, type=<class '([^']+)'>)")
RAISED: Final = "backend="
"""How what a backend raised begins."""
REMEDIES: Final = (
    ("requires_grad", "call it with inputs that always, or never, need a gradient: each case is a separate graph"),
    ("size mismatch", "pad to a few shapes, or torch.compile(dynamic=True)"),
    ("stride mismatch", "pass tensors with the same strides, for example made by .contiguous()"),
    (" == ", "pad to a few shapes, or torch.compile(dynamic=True); keep Python numbers that change out of the model"),
)
"""By what is named in the reason of a compilation; the first that is."""
OTHERWISE: Final = "keep what this guard names the same in each call"
LAUNCHED: Final = partial(Finding, bound="launch", share=0.0)
INSTALLED: Final = ("/site-packages/", "/dist-packages/", "/torch/")


def with_compiled(diagnosis: Diagnosis, facts: Facts | None) -> Diagnosis:
    """The verdict with what stands in the way of the script's own torch.compile."""
    found = _of(facts, diagnosis.compiling) if facts is not None else []
    launch = next((one for one in diagnosis.findings if one.id == "launch"), None)
    if not found or launch is None:
        findings = (*diagnosis.findings, *found)
        first = found and found[0].named
        return msgspec.structs.replace(diagnosis, findings=tuple(in_order(findings)) if first else findings)
    worst, *others = found
    explained = msgspec.structs.replace(
        worst,
        share=launch.share,
        cost_ms=launch.cost_ms,
        where=worst.where or launch.where,
        evidence=f"{launch.evidence}; {worst.evidence}",
    )
    ordered = [explained if one is launch else one for one in diagnosis.findings]
    if explained.named:
        ordered = in_order(ordered)
    return msgspec.structs.replace(diagnosis, findings=(*ordered, *others))


def _of(facts: Facts, compiling: float) -> list[Finding]:
    """The worst first. compiling: as `Diagnosis.compiling`."""
    functions = facts.compiled
    breaks = partial(_breaks, masks=any(root.mask_checks for root in facts.roots))
    again = [one for one in functions if one.recompiles >= MANY]
    broken = [one for one in functions if (one.failed or one.breaks) and one not in again]
    again.sort(key=lambda one: -one.recompiles)
    broken.sort(key=lambda one: (not one.failed, -len(one.breaks)))
    launched = [one for one in functions if one.without_graph]
    recompiles = partial(_recompiles, compiling=compiling)
    return [*map(recompiles, again), *map(breaks, broken), *map(_without_graph, launched)][:MOST]


def _crashed(function: CompiledFunction) -> Finding:
    """The compiler raised, and what is raised there reaches the script."""
    return LAUNCHED(
        id="graph-break",
        title="the compiler fails on the model",
        where=_failed(function),
        evidence=f"{function.function}: {function.failed}",
        why="torch.compile raises this into the script, which ends unless it catches or suppresses it",
        instead="exclude this function (torch.compiler.disable), or do not compile",
    )


def _breaks(function: CompiledFunction, masks: bool) -> Finding:
    if function.failed.startswith(RAISED):
        return _crashed(function)
    where = _failed(function) if function.failed else _place(function, function.breaks[0])
    lines = ", ".join(map(str, function.breaks[:5]))
    said = (
        f"{function.function} runs in eager mode: {function.failed}"
        if function.failed
        else f"{function.function} is compiled as {function.graphs} graphs; it breaks at line {lines}{_took(function)}"
    )
    return LAUNCHED(
        id="graph-break",
        title="the compiled model falls back to Python",
        where=where,
        evidence=said,
        why="a graph ends at this line: the host launches what follows separately, and nothing is fused across it",
        instead="move it out of the compiled function: print, log and branch on values outside"
        + (MASKS if masks else ""),
    )


def _recompiles(function: CompiledFunction, compiling: float) -> Finding:
    took = f" ({compiling:.0%} of the time)" if compiling >= MUCH else ""
    return LAUNCHED(
        id="recompiles",
        title=f"the model is compiled again and again{took}",
        named=bool(took),
        where=_place(function, function.line),
        evidence=f"{function.function} was recompiled {function.recompiles} times, the last time because "
        f"{_guard_of(function.reason)}{_took(function)}",
        why=f"each compilation takes seconds, and {_at_the_limit(function)}",
        instead=next((remedy for named, remedy in REMEDIES if named in function.reason), OTHERWISE),
    )


def _guard_of(reason: str) -> str:
    """Why a graph did not fit, in Dynamo's words but for the number of the graph, its notes and the stack, whose last
    lines may be hotlap's."""
    guard = reason.partition("\n")[0].partition("  # ")[0].partition(" (HINT:")[0].strip()
    guard = GRAPH.sub("", guard)
    other = OTHER_TYPE.fullmatch(guard)
    return f"{other[1]} is no longer of type {other[2]}" if other else guard


def _without_graph(function: CompiledFunction) -> Finding:
    return LAUNCHED(
        id="cudagraph-skip",
        title="the compiled model is launched kernel by kernel",
        where=_place(function, function.line),
        evidence=f"{function.function}: {function.without_graph}{_took(function)}",
        why="Inductor was asked for a CUDA graph and made none, so the host launches each kernel",
        instead="remove what torch names: inputs on the CPU, inputs that are written to, sizes that vary",
    )


def _took(function: CompiledFunction) -> str:
    return f"; compiling it took {function.seconds:.1f} s" if function.seconds >= 1 else ""


def _at_the_limit(function: CompiledFunction) -> str:
    """What comes, or came, of compiling a function too often."""
    if function.reached:
        return f"{function.limit or 'the most'} graphs are made of it; calls that fit none of them run in eager mode"
    most = f"after {function.limit} of one function" if function.limit else "after some number of them"
    return f"{most} (torch._dynamo.config.recompile_limit) torch.compile goes on in eager mode"


def _failed(function: CompiledFunction) -> Place | None:
    """The line that put a function into eager mode, if it is the user's; else where the function begins."""
    if not function.failed_in:
        return _place(function, function.failed_at)
    if any(folder in function.failed_in for folder in INSTALLED):
        return _place(function, function.line)
    return Place(file=function.failed_in, line=function.failed_at)


def _place(function: CompiledFunction, line: int | None) -> Place | None:
    """None where the function is not the user's."""
    if any(folder in function.file for folder in INSTALLED):
        return None
    return Place(file=function.file, line=line, function=function.function)
