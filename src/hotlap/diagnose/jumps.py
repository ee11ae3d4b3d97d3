"""Steps that take longer from one on: which, in which phase, and what else changed there."""

import ast
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

import numpy as np

from hotlap.records.diagnosis import Place
from hotlap.records.durations import ms
from hotlap.records.run import Environment, Facts, Step
from hotlap.records.telemetry import TelemetrySample

from .cpu_use import differing
from .findings._base import Changed, Jump
from .source import call_of, files_of, first_of, parsed, place_at
from .steps import GROWN, SteadySteps, longer_in

LEAST_STEPS: Final = 10
"""On either side."""
HIGH, LOW = 0.8, 0.2
"""Of the steps before and after: so many of the ones are shorter than as many of the others."""
NEAR, WITHIN = 8, 32
"""Steps on either side whose facts have to differ too; and after which a change that is not looked for in each step is
seen."""
DIFFERENT: Final = 1.25
LEAST_NUMBER: Final = 5
"""Of a step, that a line can be known by."""


def jump_of(
    steady: SteadySteps,
    every: Sequence[Step],
    facts: Facts | None,
    samples: Sequence[TelemetrySample],
    machine: Environment,
) -> Jump | None:
    """Where the time of a step is cut in two best, if that is a jump. samples: of the machine."""
    times = [(number, took) for number, took in steady.numbered if took > 0]
    logs = np.log([took for _, took in times])
    if len(logs) < 2 * LEAST_STEPS:
        return None
    cuts, sums = np.arange(LEAST_STEPS, len(logs) - LEAST_STEPS + 1), logs.cumsum()
    between = sums[cuts - 1] ** 2 / cuts + (sums[-1] - sums[cuts - 1]) ** 2 / (len(logs) - cuts)
    cut = int(cuts[between.argmax()])
    before, after = logs[:cut], logs[cut:]
    was, took = (float(np.exp(np.median(part))) for part in (before, after))
    if took <= GROWN * was or np.quantile(before, HIGH) >= np.quantile(after, LOW):
        return None
    step = times[cut][0]
    sides = [one for one in steady.steps if one.step < step], [one for one in steady.steps if one.step >= step]
    phase, more_ms = longer_in(sides)
    changed = _changed(sides, every, step)
    where = _compared(facts, step) or _line(facts, changed)
    rows = _was_and_is(sides, lambda one: one.tokens or one.samples)
    return Jump(step, was, took, phase, more_ms, changed, rows, where, differing(samples, sides, machine))


def _changed(sides: tuple[list[Step], list[Step]], every: Sequence[Step], step: int) -> Changed | None:
    """What else is another from that step on, and what it was and is."""
    seen = [(one.step, one.trained or 0) for one in every if one.trained is not None]
    for (_, was), (at, now) in pairwise(seen):
        if step - NEAR <= at <= step + WITHIN and now > was:
            return "trained", was, now
    backwards = _was_and_is(sides, lambda one: len(one.losses or (0,)))
    if backwards is not None and backwards[1] > backwards[0]:
        return "backwards", *backwards
    flags = [[one.evaluation for one in side if one.phases is not None] for side in sides]
    before, after = (sum(side) / max(1, len(side)) for side in flags)
    if before < LOW and after > HIGH:
        return "evaluation", 0, 1
    compiles = sum(one.compiles for one in every if step - NEAR <= one.step <= step)
    return ("compiled", 0, compiles) if compiles else None


def _was_and_is(sides: tuple[list[Step], list[Step]], number: Callable[[Step], int | None]) -> tuple[int, int] | None:
    """What a number of each step was and is, where that differs, also right there."""
    known = [[found for one in side if one.phases is not None and (found := number(one))] for side in sides]
    if not all(known):
        return None
    was, now = (int(median(side)) for side in known)
    near, there = median(known[0][-NEAR:]), median(known[1][:NEAR])
    return (was, now) if min(max(was / now, now / was), max(near / there, there / near)) >= DIFFERENT else None


def _line(facts: Facts | None, changed: Changed | None) -> Place | None:
    if changed is None or changed[0] not in {"trained", "evaluation"}:
        return None
    return first_of(facts, _thaws) if changed[0] == "trained" else call_of(facts, ("eval",))


def _thaws(node: ast.AST) -> bool:
    """Whether it has gradients made of what had none, or hands an optimizer more."""
    if isinstance(node, ast.Assign):
        to = any(isinstance(one, ast.Attribute) and one.attr == "requires_grad" for one in node.targets)
        return to and not (isinstance(node.value, ast.Constant) and not node.value.value)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    off = [one for one in (*node.args, *(given.value for given in node.keywords)) if isinstance(one, ast.Constant)]
    return node.func.attr == "add_param_group" or (node.func.attr == "requires_grad_" and all(one.value for one in off))


def _compared(facts: Facts | None, step: int) -> Place | None:
    """The line that compares the number of a step, or an epoch, with that of this one."""
    each = facts.feeding.epoch_batches if facts is not None and facts.feeding is not None else None
    epoch = round(step / each) if each and abs(step - each * round(step / each)) <= 1 else 0
    for file in files_of(facts):
        for node, name, number in _comparisons(parsed(file)):
            if "epoch" in name.lower():
                same = 0 < epoch <= number <= epoch + 1
            else:
                same = number >= LEAST_NUMBER and step - 1 <= number <= step + 2
            if same:
                return place_at(file, node.lineno)
    return None


def _comparisons(tree: ast.Module | None) -> Iterator[tuple[ast.Compare, str, int]]:
    """Of something with a whole number, that may have a name: from which number on it holds, or no more."""
    body = tree.body if tree is not None else ()
    named = {ast.unparse(one.targets[0]): one.value for one in body if isinstance(one, ast.Assign)}
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Compare) and isinstance(node.left, (ast.Name, ast.Attribute)):
            other = node.comparators[0]
            value = named.get(ast.unparse(other), other)
            if isinstance(value, ast.Constant) and type(value.value) is int:
                yield node, ast.unparse(node.left), value.value + isinstance(node.ops[0], (ast.Gt, ast.LtE))


def jump_text(jump: Jump) -> str:
    """When, by how much and in which phase, for a sentence."""
    text = f"{ms(jump.before_ms)} a step before step {jump.step}, {ms(jump.after_ms)} from then on"
    text += f" (+{ms(jump.more_ms)} in {jump.phase})" if jump.phase and jump.more_ms > 0 else ""
    text += f", with {jump.rows[1]} rows or tokens a step instead of {jump.rows[0]}" if jump.rows else ""
    at = f" ({jump.where.file}:{jump.where.line})" if jump.where and jump.changed is None else ""
    return text + jump.machine + (f"; a line compares with that number{at}" if at else "")
