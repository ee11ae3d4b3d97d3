"""The result of a tune, on one screen."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any, Final

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..records.diagnosis import ONE_PACE, Diagnosis
from ..records.durations import ms
from ..records.phases import PHASES
from ..records.run import Environment, Phases, Versions
from ..records.tune import Kept, OutputError, Parity, Reference, Trial, Tune, foretold
from .console import ByWidth, CommandLine, Parts, Screen, ShareBar, columns, labelled, minutes, number, plain, ratio
from .run_screen import bound_text, place_text

MOST_DROPPED: Final = 8
RESIZED: Final = 1.2
"""Rows of a step over those before, from which a lever changed how many it holds: episodes are not all as long."""
NOISY: Final = 0.1
"""Difference of two runs of the bare command, as a logarithm, above which small gains can't be told from noise."""
DRIFT: Final = 0.05
"""As a logarithm, the least difference between the bare command at first and in the pairs that is worth a word."""
WIDE_ENOUGH: Final = 64
"""Columns that the table of kept levers needs."""
RATIOS: Final = ("predicted", "measured", "leave-one-out")


def tune_screen(tune: Tune, folder: Path) -> RenderableType:
    """What a tune found: the gain with its proof, what was kept and dropped, and how to go on."""
    return Screen(
        plain(tune_headline(tune), "bold green" if _usable(tune) else "bold yellow"),
        Parts(_bounds(tune), "dim"),
        *_warnings(tune),
        Text(),
        before_and_after(tune.baseline, tune.tuned),
        *_fitted(tune),
        *_kept(tune.kept),
        *_dropped(tune),
        Text(),
        labelled(_notes(tune)),
        *_next(tune, folder),
    )


def tune_headline(tune: Tune) -> str:
    """The gain, or that there is none, in one sentence."""
    step = f"{ms(_bare_ms(tune))} a step"
    if tune.fitted and not tune.gain:
        return f"fits in memory now, where the command alone does not: {step}; beyond that {_without_gain(tune)}"
    if not tune.gain:
        return f"{_without_gain(tune)}; {step}"
    said = {"memory": _less_memory, "cost": _cheaper, "time": _faster}[tune.objective](tune)
    return f"fits in memory now, where the command alone does not, and {said}" if tune.fitted else said


def _bare_ms(tune: Tune) -> float:
    """What the ratios of the trials are of: the mean of the runs of the bare command before them."""
    runs = [trial.step_ms for trial in tune.trials if trial.purpose == "baseline" and trial.step_ms]
    return fmean(runs) if runs else tune.baseline.step_ms


def _faster(tune: Tune) -> str:
    """The speed-up."""
    steps = (tune.before_ms or tune.baseline.step_ms, tune.after_ms)
    after = " → ".join(ms(step) for step in steps if step)
    since = ", from the second epoch on" if any(kept.late for kept in tune.kept) else ""
    of = f"for the rows of a step, of which steps hold {held} times as many now" if (held := _held(tune)) else "a step"
    return f"{ratio(tune.speedup)} faster ({_interval(tune)}): {after} {of}{since}"


def _held(tune: Tune) -> str:
    """How many times as many rows a step holds as before; empty where it is as many."""
    runs = [trial for trial in tune.trials if trial.purpose in {"baseline", "confirm"} and trial.rows]
    bare, tuned = ([one.rows for one in runs if one.rows and bool(one.levers) is with_it] for with_it in (False, True))
    times = fmean(tuned) / fmean(bare) if bare and tuned else 1.0
    return f"{times:.3g}" if not 1 / RESIZED < times < RESIZED else ""


def _less_memory(tune: Tune) -> str:
    """The peaks, and what they cost in time."""
    before, after = tune.memory_before_bytes, tune.memory_after_bytes
    peaks = f"{size(before)} → {size(after)} at the peak" if before and after else "peak unknown"
    less = f"{ratio(before / after)} less memory" if before and after else "less memory"
    takes = ratio(1 / tune.speedup if tune.speedup else None)
    return f"{less}: {peaks}; a step takes {takes} of the time (speed-up: {_interval(tune)})"


def _cheaper(tune: Tune) -> str:
    """Dollars before and after, by the price that was given."""
    before, after = tune.cost_before, tune.cost_after
    dollars = f"${before:.4g} → ${after:.4g}" if before is not None and after is not None else "cost unknown"
    price = f"at ${tune.price:g} an hour" if tune.price else ""
    return f"{ratio(tune.speedup)} cheaper ({_interval(tune)}): {dollars} a million {tune.cost_unit} {price}"


def _usable(tune: Tune) -> bool:
    """Whether the recipe may be recommended: the gain is proved and parity did not fail."""
    proved = tune.gain or bool(tune.fitted)
    return proved and tune.recipe is not None and (tune.parity is None or tune.parity.ok)


def _without_gain(tune: Tune) -> str:
    """Why there is no gain to report."""
    if tune.unproved:
        shown = " and ".join(ratio(one) for one in tune.unproved)
        pairs = number(tune.pairs, "ABBA pair")
        return f"no gain proved yet: {shown} in {pairs}, too few for an interval above 1"
    if tune.speedup is not None:
        shown = f"{ratio(tune.speedup)} ({_interval(tune)})"
        return f"no gain: {shown}" if tune.parity is None or tune.parity.ok else f"nothing kept: {shown} without parity"
    if not tune.complete:
        return "no gain yet: nothing is confirmed" if tune.kept else "no gain yet: no lever was kept"
    return "no gain: the levers that were kept were not compared" if tune.kept else "no gain, no lever was kept"


def _not_finished(tune: Tune) -> str:
    """Why the tune ended early."""
    return f"not finished, {tune.why_incomplete or 'the reason is unknown'}"


def _interval(measured: Tune | Reference) -> str:
    """What a ratio rests on."""
    pairs = number(measured.pairs, "ABBA pair")
    if measured.interval is None:
        return f"no interval, {pairs}"
    return f"95% interval {measured.interval.low:.2f}–{measured.interval.high:.2f}, {pairs}"


def _bounds(tune: Tune) -> Iterator[str]:
    """What limited the step, what limits it now, and on which device."""
    yield f"before {bound_text(tune.baseline)}"
    yield f"after {bound_text(tune.tuned)}" if tune.tuned else ""
    yield tune.baseline.device_name or tune.baseline.device


def _warnings(tune: Tune) -> Iterator[RenderableType]:
    """That parity failed, that the training is wrong anyway, that the tune did not finish, that one of the two sides
    never became steady, or has no one pace."""
    if tune.parity is not None and not tune.parity.ok:
        yield plain("parity failed: do not train with these levers", "bold red")
    for finding in tune.baseline.findings:
        if finding.wrong:
            yield plain(
                f"wrong, with levers and without: {finding.title or finding.id}; {finding.evidence}", "bold red"
            )
    if not tune.complete:
        yield plain(_not_finished(tune), "yellow")
    if tune.noise is not None and tune.noise > NOISY:
        apart = math.expm1(tune.noise)
        yield plain(f"a noisy machine: two runs of the bare command differ by {apart:.0%} in step time", "yellow")
    if drift := _drift(tune):
        yield plain(drift, "yellow")
    sides = (("before", tune.baseline), ("after", tune.tuned))
    if names := [name for name, side in sides if side and not side.settled]:
        yield plain(f"unsettled {' and '.join(names)}: no steady state was recognised in that run", "yellow")
    for name, side in sides:
        for text in side.unknown if side else ():
            if text.startswith(ONE_PACE):
                yield plain(f"{name}: no {text}", "yellow")


def _drift(tune: Tune) -> str:
    """That the machine was another when the bare command was first measured than in the pairs; "" where it was not."""
    bare = [trial for trial in tune.trials if trial.step_ms and not trial.asked]
    first, pairs = (
        [trial.step_ms for trial in bare if trial.purpose == purpose and trial.step_ms]
        for purpose in ("baseline", "confirm")
    )
    if not first or not pairs:
        return ""
    one, two = geometric_mean(first), geometric_mean(pairs)
    noise = max(DRIFT, *(math.log(max(runs) / min(runs)) for runs in (first, pairs)))
    if abs(math.log(one / two)) <= noise:
        return ""
    return f"the machine drifted: the bare command took {ms(one)} a step at first, {ms(two)} in the pairs, which count"


def before_and_after(before: Diagnosis, after: Diagnosis | None) -> Table:
    """Mean ms a step in each phase, before and after, bars on one scale; device time where both sides have it."""
    on_device = before.gpu_phases is not None and (after is None or after.gpu_phases is not None)
    first = _row(before.gpu_phases if on_device else before.phases)
    second = _row((after.gpu_phases if on_device else after.phases) if after else None)
    scale = max(_total(first) + before.unseen_ms, _total(second) + (after.unseen_ms if after else 0.0))
    name = "device" if on_device else "host"
    heads = ("before", "", *(("after", "") if after else ()))
    table = columns(f"{name} time", *heads, right=("before", "after"), wide=("",))
    for phase in PHASES:
        if first.get(phase) is not None or second.get(phase) is not None:
            cells = _cells(first.get(phase), scale, "cyan")
            table.add_row(phase, *cells, *(_cells(second.get(phase), scale, "green") if after else ()))
    if before.unseen_ms or (after and after.unseen_ms):
        cells = _cells(before.unseen_ms, scale, "cyan")
        table.add_row("not looked at", *cells, *(_cells(after.unseen_ms, scale, "green") if after else ()))
    return table


def _row(phases: Phases | None) -> dict[str, float | None]:
    """Phases by name."""
    return msgspec.structs.asdict(phases) if phases else {}


def _total(row: dict[str, float | None]) -> float:
    """The whole step, ms: what a bar of full length stands for."""
    return sum(value or 0.0 for value in row.values())


def _cells(value: float | None, scale: float, style: str) -> tuple[RenderableType, RenderableType]:
    """A time and its bar; a dash where it was not measured."""
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
    return f"{names} beside the command alone, both with 1/{told.parts} of the batch, where that runs too"


def reference_parts(told: Reference) -> Iterator[tuple[str, list[str]]]:
    """What levers cost a command that needs them to fit: parts by label."""
    none = "no difference shown: " if told.interval.low <= 1 <= told.interval.high else ""
    takes = f"{none}a sample takes {ratio(told.time_ratio)} of the time ({_interval(told)})"
    yield "time", [takes, f"{ms(told.before_ms)} → {ms(told.after_ms)} a step"]
    if told.memory_before_bytes and told.memory_after_bytes:
        yield "peak", [f"{size(told.memory_before_bytes)} → {size(told.memory_after_bytes)}"]
    yield "parity", [*parity_parts(told.parity), told.parity.why]


def _kept(kept: tuple[Kept, ...]) -> Iterator[RenderableType]:
    """The levers in the recipe; ratios of step times, above 1 is faster."""
    if not kept:
        return
    yield Text()
    yield ByWidth(WIDE_ENOUGH, _kept_table(kept), _kept_list(kept))
    for line in _not_alone(kept):
        yield plain(line, "dim")
    for lever in kept:
        if lever.output_error is not None:
            yield plain(f"{lever.lever} {output_error_text(lever.output_error)}", "bold yellow")


def _not_alone(kept: tuple[Kept, ...]) -> Iterator[str]:
    """Why levers have no leave-one-out ratio: the last one in was measured just so; others were not measured."""
    last = kept[-1]
    without = [lever.lever for lever in kept if lever.leave_one_out is None]
    if last.leave_one_out is None and last.measured is not None and not last.together:
        beside = "alone" if len(kept) == 1 else "beside all others"
        yield f"leave-one-out -: {without.pop()} came in last and was measured {beside}, which is the same"
    if without:
        yield f"leave-one-out -: not measured of {', '.join(without)}"


def output_error_text(error: OutputError) -> str:
    """By how much a lever changes what the model returns."""
    seen = f"relative, mean of {number(error.forwards, 'forward')}; largest {error.largest:.2%}"
    return f"changes outputs by {error.relative:.2%} ({seen})"


def _kept_table(kept: tuple[Kept, ...]) -> Table:
    """A row a lever."""
    table = columns("kept", "risk", *RATIOS, right=RATIOS, wide=("kept",))
    for lever in kept:
        table.add_row(_lever_name(lever), Text(lever.risk), *map(Text, _ratios(lever)))
    return table


def _kept_list(kept: tuple[Kept, ...]) -> Table:
    """Two lines or more a lever, for a narrow terminal."""
    table = columns("kept", wide=("kept",))
    for lever in kept:
        table.add_row(_lever_name(lever))
        numbers = (f"{name} {value}" for name, value in zip(RATIOS, _ratios(lever), strict=True))
        table.add_row(Padding(Parts([lever.risk, *numbers]), (0, 0, 0, 2)))
    return table


def _lever_name(lever: Kept) -> Text:
    """The lever and its settings."""
    return plain(lever.lever, "green").append_text(plain(settings_text(lever.settings), "dim"))


def _ratios(lever: Kept) -> list[str]:
    """What was predicted, what was measured, and what the recipe loses without the lever."""
    predicted = foretold(lever.predicted, lever.predicted_by)
    most = "≤ " if lever.predicted_by == "share" else ""
    return [
        "-" if predicted is None else f"{most}{ratio(predicted)}",
        *("-" if value is None else ratio(value) for value in (lever.measured, lever.leave_one_out)),
    ]


def settings_text(settings: dict[str, Any]) -> str:
    """` workers=4 pin=true`: each with a blank before it."""
    return "".join(f" {name}={json.dumps(value, default=str)}" for name, value in settings.items())


def _dropped(tune: Tune) -> Iterator[RenderableType]:
    """The levers that are not in the recipe: those that were measured first, then others that a trial was made with."""
    dropped, tried = tune.dropped, {lever.name for trial in tune.trials for lever in trial.asked}
    if not dropped:
        return
    table = columns("dropped", "measured", "why", right=("measured",), wide=("why",))
    failed = {trial.id: trial for trial in tune.trials if trial.outcome not in {"measured", "refused"}}
    for lever in sorted(dropped, key=lambda one: (one.ratio is None, one.lever not in tried))[:MOST_DROPPED]:
        measured = "-" if lever.ratio is None else ratio(lever.ratio)
        trial = failed.get(lever.trial) if lever.trial is not None else None
        table.add_row(plain(lever.lever), Text(measured), plain(f"{lever.why}{_seen_at(trial) if trial else ''}"))
    yield Text()
    yield table
    if len(dropped) > MOST_DROPPED:
        yield plain(f"and {len(dropped) - MOST_DROPPED} more in tune.json", "dim")


def _seen_at(trial: Trial) -> str:
    """Where a trial failed, and where it can be read."""
    where = f"at {place_text(trial.where, '')}; " if trial.where else ""
    return f" ({where}see {trial.folder}/output.txt)"


def _notes(tune: Tune) -> Iterator[tuple[str, RenderableType]]:
    """What stands behind the numbers."""
    if tune.parity is not None:
        style = "" if tune.parity.ok else "bold red"
        yield "parity", Group(Parts(parity_parts(tune.parity), style), plain(tune.parity.why, style))
    if tune.reused:
        yield "reused", Group(*(plain(line) for line in tune.reused))
    if tune.complete and not tune.gain and tune.baseline.findings:
        yield "limit", plain(_limit(tune))
    yield "cost", Parts(_cost_parts(tune))
    yield "machine", Parts(environment_parts(tune.environment, tune.versions))


def _cost_parts(tune: Tune) -> Iterator[str]:
    """What the tune took, and when the recipe's longer start (compiling) has paid for itself."""
    yield f"tune took {minutes(tune.wall_s)} for {number(len(tune.trials), 'trial')}"
    if tune.compile_cache:
        yield f"compile cache {'cold' if tune.compile_cache == 'cold' else 'not empty'} at the start"
    if tune.seed is not None:
        yield f"seed {tune.seed} set from outside"
    if tune.break_even_steps is not None:
        yield f"the recipe's start pays off after {number(tune.break_even_steps, 'step')}"


def _limit(tune: Tune) -> str:
    """What holds the step back where no lever helped."""
    first = tune.baseline.findings[0]
    where = f", at {place_text(first.where, '')}" if first.where else ""
    return f"{bound_text(tune.baseline)}: {first.title or first.id}{where}"


def size(value: float) -> str:
    """Bytes, as MiB or GiB; 1000 MiB are GiB already, as three digits would not hold them."""
    return f"{value / 2**30:.3g} GiB" if value >= 999.5 * 2**20 else f"{value / 2**20:.3g} MiB"


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
        yield CommandLine(("hotlap", "run", "--recipe", str(recipe), *tune.command))
    if not tune.complete:
        yield plain("or: search on where it stopped" if usable else "next: search on where it stopped", "dim")
        yield CommandLine(("hotlap", "tune", "--resume", str(folder)))
    elif not usable:
        yield labelled([("records", plain(folder))])
