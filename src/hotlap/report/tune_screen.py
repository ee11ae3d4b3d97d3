"""The result of a tune, on one screen."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..records.diagnosis import NOT_STEADY, Diagnosis, bound_text
from ..records.durations import ms
from ..records.phases import PHASES
from ..records.run import Environment, Versions
from ..records.sizes import size_text
from ..records.tune import NOT_TRIED, Dropped, Interval, Open, Parity, Proof, Reference, Trial, Tune, foretold
from .console import (
    CommandLine,
    Parts,
    Screen,
    ShareBar,
    Tabled,
    at_place,
    columns,
    labelled,
    minutes,
    number,
    plain,
    ratio,
)
from .run_screen import in_environment

MOST_DROPPED: Final = 8
RESIZED: Final = 1.2
"""Rows of a step over those before, from which a lever changed how many it holds: episodes are not all as long."""
NOISY: Final = 0.1
"""Difference of two runs of the bare command, as a logarithm, above which small gains can't be told from noise."""
UNLIKE: Final = 1.1
"""A step of the run in the table over one of the proof's, or the other way round, from which it is told that these are
not the same."""
OBJECTIVES: Final = {"time": "faster", "memory": "less memory", "cost": "cheaper"}


def tune_screen(tune: Tune, folder: Path) -> RenderableType:
    """What a tune found: the gain with its proof, what was kept and dropped, and how to go on."""
    after = f"after {_bound(tune.tuned)}" if tune.tuned else ""
    return Screen(
        plain(tune_headline(tune), "bold green" if _usable(tune) else "bold yellow"),
        Parts(
            [f"before {_bound(tune.baseline)}", after, tune.baseline.device_name or tune.baseline.device],
            "dim",
        ),
        *_proofs(tune),
        *_warnings(tune),
        Text(),
        before_and_after(tune.baseline, tune.tuned),
        *_of_the_table(tune),
        *_fitted(tune),
        *_kept(tune),
        *_dropped(tune),
        *_frontier(tune),
        Text(),
        labelled(_notes(tune)),
        *_next(tune, folder),
    )


def _bound(diagnosis: Diagnosis) -> str:
    """What limits the step: the cause, where the verdict begins with one."""
    first = next(iter(diagnosis.findings), None)
    named = first is not None and first.named and (first.share > 0 or first.cost_ms is None)
    return f"{bound_text(diagnosis.bound)}, {first.title}" if first and named else bound_text(diagnosis.bound)


def tune_headline(tune: Tune) -> str:
    """What is proved; else what was measured and is not proved yet; else that there is no gain."""
    step = f"{ms(tune.before_ms or tune.baseline.step_ms)} a step"
    if tune.fitted and not tune.gain:
        return f"fits in memory now, where the command alone does not: {step}; beyond that {_without_gain(tune)}"
    if not tune.gain:
        return f"{_without_gain(tune)}; {step}"
    said = {"memory": _less_memory, "cost": _cheaper, "time": _faster}[tune.objective](tune)
    return f"fits in memory now, where the command alone does not, and {said}" if tune.fitted else said


def _faster(tune: Tune) -> str:
    """The speed-up."""
    steps = (tune.before_ms or tune.baseline.step_ms, tune.after_ms)
    after = " → ".join(ms(step) for step in steps if step)
    of = f"for the same rows; steps now have {more} times as many rows" if (more := _more(tune)) else "a step"
    return f"{ratio(tune.speedup)} faster, proved ({_evidence(tune)}): {after} {of}"


def _more(tune: Tune) -> str:
    """How many times as many rows a step holds as before; empty where it is as many, or no lever changes that: then
    the times are of steps, and the sides were at other places of the data."""
    if all(one.risk != "semantic" for one in tune.kept):
        return ""
    bare = [one.rows for one in tune.trials if one.rows and one.purpose in {"baseline", "bare"}]
    recipe = recipe_levers(tune)
    tuned = [one.rows for one in tune.trials if one.rows and one.purpose == "prove" and lever_names(one) == recipe]
    times = fmean(tuned) / fmean(bare) if bare and tuned else 1.0
    return f"{times:.3g}" if not 1 / RESIZED < times < RESIZED else ""


def recipe_levers(tune: Tune) -> set[str]:
    """Names of the levers in the recipe."""
    return {one.lever for one in tune.fitted} | {one.lever for one in tune.kept}


def lever_names(one: Trial | Proof | Open) -> set[str]:
    """Names of its levers."""
    return {lever.name for lever in one.levers}


def _less_memory(tune: Tune) -> str:
    """The peaks, and what they cost in time."""
    before, after = tune.memory_before_bytes, tune.memory_after_bytes
    peaks = f"{size_text(before)} → {size_text(after)} at the peak" if before and after else "peak unknown"
    less = f"{ratio(before / after)} less memory" if before and after else "less memory"
    takes = ratio(1 / tune.speedup if tune.speedup else None)
    return f"{less}, proved: {peaks}; a step takes {takes} of the time (speed-up: {_evidence(tune)})"


def _cheaper(tune: Tune) -> str:
    """Dollars before and after, by the price that was given."""
    before, after = tune.cost_before, tune.cost_after
    dollars = f"${before:.4g} → ${after:.4g}" if before is not None and after is not None else "cost unknown"
    price = f"at ${tune.price:g} an hour" if tune.price else ""
    return f"{ratio(tune.speedup)} cheaper, proved ({_evidence(tune)}): {dollars} a million {tune.cost_unit} {price}"


def _usable(tune: Tune) -> bool:
    """Whether the recipe may be recommended: the gain is proved and parity did not fail."""
    proved = tune.gain or bool(tune.fitted)
    return proved and tune.recipe is not None and (tune.parity is None or tune.parity.ok)


def _without_gain(tune: Tune) -> str:
    """What was measured and is not proved yet; where nothing was, that there is no gain."""
    if tune.unproved is not None:
        return f"measured, not yet proved: {_unproved(tune, tune.unproved)}"
    if tune.speedup is not None:
        shown = f"{ratio(tune.speedup)} ({_evidence(tune)})"
        return f"no gain: {shown}" if tune.parity is None or tune.parity.ok else f"nothing kept: {shown} without parity"
    return "no gain: no lever helped" if tune.complete else "no gain yet: no lever was kept"


def _unproved(tune: Tune, found: Open) -> str:
    """What a gain was measured of, over the bare command or over what is proved."""
    compared = any((one.levers, one.ratio) == (found.levers, found.ratio) for one in tune.proofs)
    over_bare = compared or not tune.gain
    new = [lever.name for lever in found.levers if over_bare or lever.name not in recipe_levers(tune)]
    none = found.interval is not None and found.interval.low <= 1
    what = ratio(found.ratio) if none else f"{ratio(found.ratio)} {OBJECTIVES[tune.objective]}"
    if tune.objective == "memory":
        what = f"less memory, at {ratio(found.ratio)} the speed"
    over = " over the bare command" if over_bare and tune.gain else ""
    interval = f" ({interval_text(found.interval)}{': it may be none' if none else ''})" if found.interval else ""
    return f"{what}{over}{interval} with {' + '.join(new)}"


def _evidence(tune: Tune) -> str:
    """What the ratio rests on."""
    starts = f"{number(tune.starts, 'fresh start')} of each side, " if tune.starts else ""
    turns = f"{number(tune.turns, 'turn')} each" if tune.how == "turns" else tune.how
    return f"{interval_text(tune.interval)}; {starts}{turns}"


def interval_text(interval: Interval | None) -> str:
    """`95% interval 1.21–1.34`."""
    return f"95% interval {interval.low:.2f}–{interval.high:.2f}" if interval else "no interval"


def ratio_text(value: float | None, interval: Interval | None) -> str:
    """`1.27× (1.21–1.34)`, "-" where it is unknown."""
    if value is None:
        return "-"
    return f"{ratio(value)} ({interval.low:.2f}–{interval.high:.2f})" if interval else ratio(value)


def proved(tune: Tune) -> list[Proof]:
    """The proofs that became the recipe, in order."""
    found: list[Proof] = []
    for one in tune.proofs:
        if one.proved and (tune.objective == "memory" or not found or one.ratio >= found[-1].ratio):
            found.append(one)
    return found


def _proofs(tune: Tune) -> Iterator[RenderableType]:
    """What was proved when."""
    if found := proved(tune):
        yield plain("proved " + ", ".join(f"{ratio(one.ratio)} after {minutes(one.at_s)}" for one in found), "dim")


def _warnings(tune: Tune) -> Iterator[RenderableType]:
    """What is not proved, and what makes the numbers or the training doubtful."""
    if tune.unproved is not None and tune.gain:
        yield plain(f"measured on top, not proved yet: {_unproved(tune, tune.unproved)}", "yellow")
    if tune.unproved is not None and tune.unproved.why:
        yield plain(tune.unproved.why, "yellow")
    if tune.how == "one after another" and tune.proofs:
        yield plain("runs one after another, as both could not run at once", "yellow")
    if tune.parity is not None and not tune.parity.ok:
        yield plain("parity failed: do not train with these levers", "bold red")
    for finding in tune.baseline.findings:
        if finding.wrong:
            yield plain(f"wrong with and without levers: {finding.title or finding.id}; {finding.evidence}", "bold red")
    if not tune.complete:
        yield plain(f"not finished, {tune.why_incomplete or 'the reason is unknown'}", "yellow")
    if noise := _noise(tune):
        yield plain(noise, "yellow")
    sides = (("before", tune.baseline), ("after", tune.tuned))
    if names := [name for name, side in sides if side and not side.settled]:
        yield plain(f"unsettled {' and '.join(names)}: step times never became steady in that run", "yellow")
    for name, side in sides:
        for text in side.unknown if side else ():
            if text.startswith(NOT_STEADY):
                yield plain(f"{name}, in the run below: {text}", "yellow")


def _noise(tune: Tune) -> str:
    """How far runs of the bare command differ, where that is much."""
    paces = tune.proofs[-1].paces if tune.proofs else None
    if paces is not None:
        return (
            f"the machine's speed changed: the bare command's turns took {ms(paces[0])} a step at first, "
            f"{ms(paces[1])} during the comparison. The smaller gain is shown; tune again when nothing else runs "
            "here"
        )
    if tune.noise is not None and tune.noise > NOISY:
        return f"a noisy machine: two runs of the bare command differ by {math.expm1(tune.noise):.0%} in step time"
    return ""


def before_and_after(before: Diagnosis, after: Diagnosis | None) -> Table:
    """Mean ms a step in each phase, before and after, bars on one scale; device time where both sides have it."""
    on_device = before.gpu_phases is not None and (after is None or after.gpu_phases is not None)
    sides = [side for side in (before, after) if side]
    rows = []
    for side in sides:
        phases = side.gpu_phases if on_device and side.gpu_phases else side.phases
        rows.append({**msgspec.structs.asdict(phases), "not sampled": side.unseen_ms})
    scale = max(sum(value or 0.0 for value in row.values()) for row in rows)
    heads = ("before", "", "after", "")[: 2 * len(rows)]
    table = columns(f"{'device' if on_device else 'host'} time", *heads, right=("before", "after"), wide=("",))
    names = [phase for phase in PHASES if any(row[phase] is not None for row in rows)]
    for name in (*names, "not sampled") if any(side.unseen_ms for side in sides) else names:
        styled = zip(rows, ("cyan", "green"), strict=False)
        table.add_row(name, *(cell for row, style in styled for cell in _cells(row[name], scale, style)))
    return table


def _of_the_table(tune: Tune) -> Iterator[RenderableType]:
    """Of what the times by phase are, where the headline's are others."""
    sides = [side for side in (tune.baseline, tune.tuned) if side]
    quoted = [(side.step_ms, took) for side, took in zip(sides, (tune.before_ms, tune.after_ms), strict=False) if took]
    if tune.how == "turns" and any(max(pair) > UNLIKE * min(pair) for pair in quoted):
        steps = " → ".join(ms(side.step_ms) for side in sides)
        yield plain(f"measured in one run each, before the turns: a typical step took {steps}", "dim")


def _cells(value: float | None, scale: float, style: str) -> tuple[RenderableType, RenderableType]:
    """A time and its bar, of full length for a whole step; a dash where it was not measured."""
    if value is None:
        return Text("-"), Text()
    return Text(ms(value)), ShareBar(value / scale if scale > 0 else 0.0, style=style)


def _fitted(tune: Tune) -> Iterator[RenderableType]:
    """The levers without which the command does not run, and what they cost where it does."""
    if not tune.fitted:
        return
    table = columns("needed to fit", "risk", "what it does", wide=("what it does",))
    for lever in tune.fitted:
        name = plain(lever.lever, "green").append_text(plain(settings_text(lever.settings), "dim"))
        table.add_row(name, Text(lever.risk), plain(lever.meaning))
    yield Text()
    yield table
    yield plain(beside_what(tune), "dim")
    if tune.reference is not None:
        style = "" if tune.reference.parity.ok else "bold red"
        yield labelled([(name, Parts(parts, style)) for name, parts in reference_parts(tune.reference)])


def beside_what(tune: Tune) -> str:
    """With what the levers that make a command fit were compared, or why with nothing."""
    told = tune.reference
    if told is None:
        why = f": {tune.no_reference}" if tune.no_reference else ""
        return f"their parity and cost were not measured, since the command does not run without them{why}"
    names = " + ".join(lever.name for lever in told.levers)
    return f"{names} against the command alone, both with 1/{told.parts} of the batch, which fits without levers"


def reference_parts(told: Reference) -> Iterator[tuple[str, list[str]]]:
    """What levers cost a command that needs them to fit: parts by label."""
    interval = told.interval
    none = "no difference shown: " if interval is None or interval.low <= 1 <= interval.high else ""
    rests_on = f"{interval_text(interval)}, {number(told.turns, 'turn')} each"
    takes = f"{none}a sample takes {ratio(told.time_ratio)} of the time ({rests_on})"
    yield "time", [takes, f"{ms(told.before_ms)} → {ms(told.after_ms)} a step"]
    if told.memory_before_bytes and told.memory_after_bytes:
        yield "peak", [f"{size_text(told.memory_before_bytes)} → {size_text(told.memory_after_bytes)}"]
    yield "parity", [*parity_parts(told.parity), told.parity.why]


def _kept(tune: Tune) -> Iterator[RenderableType]:
    """The levers in the recipe; ratios of step times, above 1 is faster."""
    if not tune.kept:
        return
    right = ("predicted", "worth (95%)")
    table = columns("kept", "risk", *right, "measured by", right=right, wide=("kept",))
    for lever in tune.kept:
        predicted, worth = foretold(lever.predicted), lever.worth
        table.add_row(
            plain(lever.lever, "green").append_text(plain(settings_text(lever.settings), "dim")),
            lever.risk,
            "-" if predicted is None else f"≤ {ratio(predicted)}",
            ratio_text(worth.ratio, worth.interval) if worth else "-",
            worth.by if worth else "",
        )
    yield Text()
    yield Tabled(table)
    yield from (plain(line, "dim") for line in worth_notes(tune))


def worth_notes(tune: Tune) -> Iterator[str]:
    """What the column says, and of which levers it says nothing, or something else."""
    unknown = [lever.lever for lever in tune.kept if lever.worth is None]
    if len(tune.kept) == 1:
        if unknown:
            yield "worth -: the only lever, so the whole gain is its own"
        return
    yield "worth: step time without the lever divided by step time with it, beside the others"
    if unknown:
        why = "was not measured" if tune.complete else "not measured before the budget ended"
        yield f"worth -: {', '.join(unknown)} {why}"
    for lever in tune.kept:
        others = recipe_levers(tune) - {lever.lever}
        if lever.worth is not None and {*lever.worth.beside} != others:
            beside = ", ".join(lever.worth.beside)
            yield f"{lever.lever} was measured {f'beside {beside} only' if beside else 'alone'}"


def settings_text(settings: dict[str, Any]) -> str:
    """` workers=4 pin=true`: each with a blank before it."""
    return "".join(f" {name}={json.dumps(value, default=str)}" for name, value in settings.items())


def _dropped(tune: Tune) -> Iterator[RenderableType]:
    """The levers that are not in the recipe: those that were measured first, then others that a trial was made with,
    then those for which no time was left."""
    dropped, tried = tune.dropped, {lever.name for trial in tune.trials for lever in trial.requested}
    if not dropped:
        return
    table = columns("dropped", "measured", "why", right=("measured",), wide=("why",))
    failed = {trial.id: trial for trial in tune.trials if trial.outcome not in {"measured", "refused"}}

    def order(one: Dropped) -> tuple[bool, bool, bool]:
        return one.ratio is None, one.lever not in tried, not one.why.endswith(NOT_TRIED)

    for lever in sorted(dropped, key=order)[:MOST_DROPPED]:
        trial = failed.get(lever.trial) if lever.trial is not None else None
        measured = Text(ratio_text(lever.ratio, lever.interval))
        seen = (
            f" ({'; '.join(filter(None, (at_place(trial.where), f'see {trial.folder}/output.txt')))})" if trial else ""
        )
        table.add_row(plain(lever.lever), measured, plain(f"{lever.why}{seen}"))
    yield Text()
    yield table
    if len(dropped) > MOST_DROPPED:
        yield plain(f"and {len(dropped) - MOST_DROPPED} more in tune.json", "dim")


def _frontier(tune: Tune) -> Iterator[RenderableType]:
    """Memory against time of what was tried."""
    if len(tune.frontier) < 2:
        return
    right = ("a step", "peak")
    table = columns(
        "nothing tried beats these in both", *right, right=right, wide=("nothing tried beats these in both",)
    )
    for one in tune.frontier:
        names = " + ".join(f"{use.name}{settings_text(use.settings)}" for use in one.levers) or "without levers"
        table.add_row(plain(names), ms(one.step_ms), size_text(one.memory_bytes))
    yield Text()
    yield table
    yield plain("of single starts, which prove nothing: for a recipe of another of these, tune with --only", "dim")


def _notes(tune: Tune) -> Iterator[tuple[str, RenderableType]]:
    """What stands behind the numbers."""
    if tune.parity is not None:
        style = "" if tune.parity.ok else "bold red"
        risk = any(one.risk != "exact" for one in tune.kept) and tune.parity.level == "bitwise"
        here = ["what these levers may change stayed the same"] if risk and tune.parity.ok else []
        yield "parity", Group(Parts([*parity_parts(tune.parity), *here], style), plain(tune.parity.why, style))
    if tune.reused:
        yield "reused", Group(*(plain(line) for line in tune.reused))
    if tune.complete and not tune.gain and not tune.unproved and tune.baseline.findings:
        yield "limit", plain(_limit(tune))
    yield "cost", Parts(_cost_parts(tune))
    yield "machine", Parts(environment_parts(tune.environment, tune.versions))


def _cost_parts(tune: Tune) -> Iterator[str]:
    """What the tune took, and when the recipe's longer start (compiling) has paid for itself."""
    yield f"tune took {minutes(tune.wall_s)} for {number(len(tune.trials), 'start')} of the command"
    if tune.seed is not None:
        yield f"the script sets no seed, so hotlap set {tune.seed}"
    if tune.break_even_steps is not None:
        yield f"the recipe's start pays off after {number(tune.break_even_steps, 'step')}"


def _limit(tune: Tune) -> str:
    """What holds the step back where no lever helped."""
    first = tune.baseline.findings[0]
    return f"{bound_text(tune.baseline.bound)}: {first.title or first.id}{at_place(first.where, before=', ')}"


def parity_parts(parity: Parity) -> Iterator[str]:
    """Whether learning is unchanged, and the numbers that say so."""
    yield f"{'holds' if parity.ok else 'FAILED'}, {parity.level}"
    yield f"{number(parity.steps, 'step')} compared"
    if parity.loss_gap is not None:
        allowed = "no bound known" if parity.allowed is None else f"{parity.allowed:.3g} allowed"
        yield f"loss gap {parity.loss_gap:.3g}, {allowed}"
    if parity.weak and parity.weakness not in parity.why:
        yield parity.weakness
    yield f"samples: {parity.samples}" if parity.samples else ""


def environment_parts(environment: Environment, versions: Versions | None = None) -> Iterator[str]:
    """The machine and the source tree, in parts."""
    for name in dict.fromkeys(gpu.name for gpu in environment.gpus):
        yield f"{sum(gpu.name == name for gpu in environment.gpus)} × {name}"
    if environment.driver:
        yield f"driver {environment.driver}"
    yield f"{environment.cpu}, {number(environment.cores, 'core')}, {environment.memory_gib:.0f} GiB"
    yield f"Python {versions.python if versions else environment.python.split(' ')[0]}"
    if versions is not None:
        yield f"torch {versions.torch}"
        libraries = (("CUDA", versions.cuda), ("cuDNN", versions.cudnn), ("NCCL", versions.nccl))
        yield ", ".join(f"{name} {version}" for name, version in libraries if version)
    if environment.git_commit:
        yield f"git {environment.git_commit[:10]}" + (" with changes" if environment.git_dirty else "")


def _next(tune: Tune, folder: Path) -> Iterator[RenderableType]:
    """The lines to type next, flush left so that they can be copied."""
    usable = tune.recipe is not None and _usable(tune)
    if usable:
        recipe = folder / Path(tune.recipe or "").name
        yield plain("next: train with the recipe", "dim")
        yield in_environment(tune.environment, "hotlap", "run", "--recipe", str(recipe), *tune.command)
        yield plain("or: write it into the source, or see what to set", "dim")
        yield CommandLine(("hotlap", "patch", str(recipe)))
    if not tune.complete:
        yield plain("or: continue this tune" if usable else "next: continue this tune", "dim")
        yield in_environment(tune.environment, "hotlap", "tune", "--resume", str(folder), *tune.command)
    elif not usable:
        yield plain("next: what else to try", "dim")
        yield CommandLine(("hotlap", "advise", str(folder)))
