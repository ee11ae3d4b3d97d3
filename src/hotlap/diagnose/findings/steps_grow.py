"""Each step takes longer than the last."""

import ast
import re
from collections.abc import Iterator, Sequence

import msgspec

from hotlap.diagnose.source import (
    Loop,
    call_of,
    calls_in,
    files_of,
    first_of,
    function_at,
    growing,
    name_at,
    parsed,
    place_at,
)
from hotlap.records.diagnosis import Diagnosis, Finding, Place, with_findings
from hotlap.records.durations import ms
from hotlap.records.run import Facts, RootFacts

from ._base import Measured

ID, PILE_UP = "steps-grow", "hooks pile up: each step takes longer"
IN, MOSTLY = " in {})", 0.5
OUTSIDE = IN.format("other")
"""Told of the phase that grows. MOSTLY: of the share of growth, what a line takes where it may be what grows."""
DENORMAL = "; or numbers become denormal, with which CPUs compute many times slower"
FLUSH = "; if nothing does, try `torch.set_flush_denormal(True)` at the start"
HOOKS = frozenset({"register_forward_hook", "register_forward_pre_hook"})


def find(measured: Measured) -> Finding | None:
    """Share: of the mean step what it is longer than the first steps."""
    if measured.growth is None:
        return None
    first, last, steps = measured.growth
    lost = max(0.0, measured.step_ms - first)
    grown = [root for root in (measured.facts.roots if measured.facts else ()) if root.piled]
    joined = next((at for file in files_of(measured.facts) for at in growing(file)), None) if not grown else None
    registered = _registered(measured.facts, grown[0]) if grown else None
    again = _again(measured.facts, registered)
    more = "; ".join(_hooks(root) for root in grown)
    if registered is not None and again != registered:
        more += f", registered at line {registered.line}"
    phase, more_ms = measured.grown_in
    cpu = measured.facts is not None and measured.facts.device == "cpu"
    return Finding(
        id=ID,
        bound="launch" if grown and measured.cuda and measured.drained else "unknown",
        share=min(1.0, measured.of_step(lost)),
        cost_ms=lost,
        title=PILE_UP if grown else "each step takes longer than the last",
        where=again or joined,
        evidence=f"{ms(first)} a step at first, {ms(last)} {steps} steps later"
        + (f" (+{ms(min(more_ms, last - first))}{IN.format(phase)}" if phase and more_ms > 0 else "")
        + (f": {ms((last - first) / steps)} more in each" if steps else "")
        + (f"; {more}" if more else ""),
        why="a hook that is registered again without being removed runs once more in each later forward"
        if grown
        else "joining a growing tensor or array copies all of it in each step"
        if joined
        else "something grows: hooks, losses with their graphs (`total += loss`), lists, a cache"
        + (DENORMAL if cpu else ""),
        instead="register hooks once, before the loop, or `handle.remove()` each after its forward"
        if grown
        else "write into an existing tensor, `buffer[at : at + n] = new`, or use a `collections.deque(maxlen=...)`"
        if joined
        else "`total += loss.detach()`; bound what is kept; `del` what keeps a graph alive" + (FLUSH if cpu else ""),
        named=True,
    )


def with_hooks(diagnosis: Diagnosis, facts: Facts | None) -> Diagnosis:
    """The verdict without what else is told of the hooks that pile up: they compute the same again, as often as they
    are registered, and mostly for nothing."""
    hooks = {(root.hook[0], root.hook[2]) for root in (facts.roots if facts else ()) if root.piled and root.hook}
    if not any(one.id == ID and one.title == PILE_UP for one in diagnosis.findings):
        return diagnosis
    kept = [one for one in diagnosis.findings if one.where is None or not one.named or _at(one.where) not in hooks]
    return with_findings(diagnosis, kept)


def at_its_line(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Growth outside of the model with the line that takes most of the loop's own time."""
    own = [one for one in findings if one.id == "host-code" and one.where is not None]
    most = max(own, key=lambda one: one.share, default=None)
    for one in findings:
        outside = one.id == ID and one.where is None and OUTSIDE in one.evidence
        if not outside or most is None or most.share < MOSTLY * one.share:
            yield one
            continue
        yield msgspec.structs.replace(
            one,
            where=most.where,
            evidence=f"{one.evidence}; most of the loop's own time is at this line"
            + (f": {most.title}" if most.named else ""),
            why="what it goes through, or writes, is more in each step",
            instead="handle only what is new: append one line to a file, update a running value; bound what is kept; "
            "or do it every n steps",
        )


def _at(place: Place) -> tuple[str, str | None]:
    return place.file, place.function


def _hooks(root: RootFacts) -> str:
    called = f" ({root.hook[2]})" if root.hook is not None else ""
    return (
        f"hooks on the forwards of {root.name}: {root.hooks[0]}, then {root.hooks[1]}; up to {root.alike[1]} of the "
        f"same function{called} on one module"
    )


def _again(facts: Facts | None, registered: Place | None) -> Place | None:
    """The line of a loop that calls the function that registers, where there is one: there it can be taken out."""
    function = function_at(registered) if registered is not None else None
    if registered is None or function is None:
        return registered
    for file in dict.fromkeys((*files_of(facts), registered.file)):
        loops = (one for one in ast.walk(parsed(file) or ast.Module([], [])) if isinstance(one, Loop))
        lines = [call.lineno for one in loops for call in calls_in(one) if name_at(call.func) == function.name]
        if lines:
            return place_at(file, min(lines))
    return registered


def _registered(facts: Facts | None, root: RootFacts) -> Place | None:
    """The line that registers the hook: one that names it, or what makes it, or holds it; else the hook's own where
    that is known, else the first that registers any."""
    if root.hook is None:
        return call_of(facts, HOOKS)
    names = set(re.findall(r"\w+", root.hook[2].replace("<locals>", ""))) - {"lambda"}
    at = root.hook[1]

    def registers(node: ast.AST) -> bool:
        if not isinstance(node, ast.Call) or name_at(node.func) not in HOOKS:
            return False
        given = (*node.args, *(keyword.value for keyword in node.keywords))
        inside = (one for argument in given for one in ast.walk(argument))
        return any(getattr(one, "id", getattr(one, "attr", "")) in names or is_it(one) for one in inside)

    def is_it(node: ast.AST) -> bool:
        return isinstance(node, ast.Lambda) and node.lineno <= at <= (node.end_lineno or 0)

    return first_of(facts, registers, root.hook[:1]) or Measured.place_at(root.hook)
