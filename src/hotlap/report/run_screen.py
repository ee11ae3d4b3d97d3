"""The verdict of one run, on one screen."""

import itertools
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..records.diagnosis import (
    COMPARE,
    IN_NO_PHASE,
    LEAST_NAMED,
    NOT_STEADY,
    OF_MEMORY,
    Diagnosis,
    Finding,
    bound_text,
)  # fmt: skip
from ..records.durations import ms
from ..records.errors import EXIT_CODES
from ..records.phases import PHASES
from ..records.run import REFUSED, Environment, Phases, Problem, Run, Step
from ..records.session import ENDED_HARD
from ..runs.folder import FILES, RunFolder, recipe_tune
from .console import (
    CommandLine,
    Parts,
    Screen,
    ShareBar,
    at_place,
    beside,
    between,
    columns,
    count,
    labelled,
    minutes,
    number,
    percent,
    plain,
)
from .memory_screen import memory_block
from .rates import mfu_parts, money_parts

MOST_FINDINGS: Final = 3
MOST_NAMED: Final = 4
"""Of the others, by their titles."""
ONLY_WHERE: Final = frozenset({"compute", "host-code", "launch"})
"""Findings that say where the time is: of a cause that takes more than such a one leaves no more is told of it."""
OF_STEPS: Final = frozenset({"steps-grow", "steps-jump"})
"""Findings that tell how step times change: a note that they do then says it twice."""
NO_FINDING: Final = "no finding: no cause that hotlap knows takes a notable share"
OUTSIDE_OF_MODEL: Final = frozenset({"input", "unknown"})
"""Bounds of what lies outside of the model's phases."""
SHORT: Final = 0.7
"""Of memory at the peak, from which it is told."""
MOST_OF_IT: Final = 0.5
"""Of the step: a finding that takes as much is the headline where no bound is known."""
CHANGE_STEPS: Final = frozenset({
    "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "MKL_NUM_THREADS", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS",
    "PYTHONHASHSEED", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
})  # fmt: skip
TUNE: Final = "hotlap tune COMMAND..."
"""How `Diagnosis.next` begins where it is that."""


def run_screen(
    run: Run,
    diagnosis: Diagnosis | None,
    problems: Sequence[Problem],
    folder: Path,
    why_none: str = "",
    price: float | None = None,
) -> RenderableType:
    """What a run's time is lost to. why_none: why there is no diagnosis, where that is so. price: dollars an hour."""
    judged = diagnosis if diagnosis and diagnosis.mode != "none" else None
    none = plain(f"no verdict: {why_none or 'no training or inference step was seen'}", "bold yellow")
    body = list(verdict(run, judged, price)) if judged else [none]
    if run.failed_itself and judged:
        body.insert(0, plain(f"the command {ending_text(run)}; its steps before that:", "bold red"))
    return Screen(*body, labelled(_notes(run, diagnosis, problems, folder)), *_next(run, diagnosis, folder))


def verdict(run: Run, diagnosis: Diagnosis, price: float | None = None) -> Iterator[RenderableType]:
    """Headline, phases and findings. price: of the machine, dollars an hour."""
    yield Parts(headline(diagnosis), "bold")
    yield Parts(_basis(run, diagnosis), "dim")
    if diagnosis.utilisation is not None and (diagnosis.device != "cpu" or diagnosis.utilisation.device):
        yield Parts(mfu_parts(diagnosis.utilisation))
    if money := list(money_parts(diagnosis, price)):
        yield Parts(money)
    if not diagnosis.settled:
        yield plain("unsettled: step times never became steady, so the numbers are uncertain", "yellow")
    yield Text()
    yield phase_table(diagnosis.phases, diagnosis.gpu_phases, diagnosis.unseen_ms)
    yield Text()
    if diagnosis.memory is not None:
        yield from memory_block(diagnosis.memory, run.cwd)
        yield Text()
    yield from findings_block(diagnosis.findings, run.cwd)


def headline(diagnosis: Diagnosis) -> Iterator[str]:
    """The verdict, in parts."""
    spread = between(diagnosis.spread.p10, diagnosis.spread.p90, " – p90 ")
    of = f" of means over {diagnosis.spread.of} steps" if diagnosis.spread.of > 1 else ""
    first = diagnosis.findings[0] if diagnosis.findings else None
    if diagnosis.bound == "unknown" and first is not None and first.share >= MOST_OF_IT:
        yield f"{percent(first.share)} {first.title}"
    else:
        yield bound_text(diagnosis.bound)
    yield f"{ms(diagnosis.step_ms)} a step (p10 {spread}{of})"
    # Some models take (length, batch): then what is counted as rows is the length, while tokens are right.
    by_tokens = diagnosis.tokens_s is not None and diagnosis.throughput_unit == "rows/s"
    if diagnosis.throughput is not None and not by_tokens:
        yield f"{count(diagnosis.throughput)} {diagnosis.throughput_unit}"
    if diagnosis.tokens_s is not None:
        yield f"{count(diagnosis.tokens_s)} tokens/s"


def _basis(run: Run, diagnosis: Diagnosis) -> Iterator[str]:
    """What the numbers rest on."""
    ranks = f", {number(diagnosis.ranks, 'rank')}" if diagnosis.ranks > 1 else ""
    yield f"{diagnosis.steady_steps} steady of {number(diagnosis.steps, 'step')}{ranks}"
    if diagnosis.phase_steps is not None and diagnosis.phase_steps < diagnosis.steady_steps:
        yield f"phases from {diagnosis.phase_steps} of them"
    if diagnosis.evaluations:
        took = percent(diagnosis.evaluating)
        yield f"{number(diagnosis.evaluations, 'step')} with an evaluation left out ({took} of the time)"
    if diagnosis.mode == "inference":
        yield "inference: a step is one forward"
    yield diagnosis.device_name or diagnosis.device
    if diagnosis.peak_bytes and diagnosis.memory_bytes and diagnosis.peak_bytes >= SHORT * diagnosis.memory_bytes:
        yield f"memory {diagnosis.peak_bytes / 2**30:.1f} of {diagnosis.memory_bytes / 2**30:.1f} GiB at the peak"
    if diagnosis.clock == "device":
        yield "the host runs ahead, so step times are the device's"
    if run.recipe:
        yield f"recipe {run.recipe}"
    if run.levers:
        yield f"levers {', '.join(lever.name for lever in run.levers)}"


def phase_table(host: Phases, device: Phases | None, unseen_ms: float = 0.0) -> Table:
    """Host and device time of each phase, mean ms a step, with its share of the step; what is in none of them."""
    heads = ("phase", "host", "share", "")
    table = columns(*heads, *(("device", "share", "") if device else ()), right=("host", "device", "share"), wide=("",))
    rows = [msgspec.structs.asdict(one) for one in (host, device) if one]
    for phase in PHASES:
        of_a_device = phase == "h2d" and device is None  # a machine without one has no copies to it
        if any(row[phase] if of_a_device else row[phase] is not None for row in rows):
            table.add_row(phase, *(cell for row in rows for cell in _cells(row[phase], row, unseen_ms)))
    if unseen_ms:
        table.add_row("not sampled", *_cells(unseen_ms, rows[0], unseen_ms))
    return table


def _cells(value: float | None, row: dict[str, float | None], unseen_ms: float) -> tuple[RenderableType, ...]:
    """Time, share and bar of a phase; blank where it was not measured."""
    whole = unseen_ms + sum(part or 0.0 for part in row.values())
    if value is None:
        return Text("-"), Text(), Text()
    share = value / whole if whole > 0 else 0.0
    return Text(ms(value)), Text(percent(share)), ShareBar(share, style="cyan")


def findings_block(findings: Sequence[Finding], cwd: str) -> Iterator[RenderableType]:
    """What is wrong with the training, all of it; then the first findings, as the diagnosis has them; what lies beneath
    them, all of it; how many more."""
    if not findings:
        yield plain(NO_FINDING, "dim")
        return
    shown = _shown(findings)
    yield beside((finding_head(one), Group(*finding_lines(one, cwd, _is_rest(one, shown)))) for one in shown)
    if left := [one for one in findings if one not in shown]:
        told = [
            f"{percent(_known(one))} {one.title or one.id}{at_place(one.where, cwd, ', ')}" for one in left[:MOST_NAMED]
        ]
        yield Parts([f"and {len(left)} more (hotlap show --json has them in full)", *told], "dim")


def _is_rest(finding: Finding, shown: Sequence[Finding]) -> bool:
    """Whether it only says where the time is, and a cause of the same time takes as much as is left of that."""
    if finding.id not in ONLY_WHERE or any(one.named and one.id == finding.id for one in shown):
        return False  # what is left of one that was divided lies beside the cause
    causes = (one for one in shown if one.named and one.id not in IN_NO_PHASE and one.share >= LEAST_NAMED)
    outside = finding.bound in OUTSIDE_OF_MODEL
    return any(one.share >= finding.share and (one.bound in OUTSIDE_OF_MODEL) == outside for one in causes)


def _known(finding: Finding) -> float | None:
    """Its share of the step; None where 0 only says that it is not known."""
    return None if not finding.share and finding.cost_ms is None and finding.id not in ONLY_WHERE else finding.share


def _shown(findings: Sequence[Finding]) -> list[Finding]:
    """What is wrong, then the first ones, then what lies beneath, or is of memory."""
    wrong = [finding for finding in findings if finding.wrong]
    slow = [
        finding for finding in findings if not finding.wrong and not finding.beneath and finding.id not in OF_MEMORY
    ]
    beneath = [finding for finding in findings if (finding.beneath or finding.id in OF_MEMORY) and not finding.wrong]
    return [*wrong, *slow[: max(1, MOST_FINDINGS - len(wrong))], *beneath]


def finding_head(finding: Finding) -> Text:
    """Its share of the step, where it is known; of what lies beneath other findings the most that it costs of them."""
    if finding.wrong:
        return Text("wrong", "bold red")
    if finding.beneath:
        return Text("within" if finding.cost_ms is None else f"≤ {ms(finding.cost_ms)}", "bold yellow")
    if finding.id in OF_MEMORY:
        return Text("memory", "bold yellow")
    if finding.named and not finding.share:
        return Text("cause", "bold yellow")
    return Text(percent(finding.share or None), "bold yellow")


def finding_lines(finding: Finding, cwd: str, brief: bool = False) -> Iterator[RenderableType]:
    """A finding: title, what it rests on, where and which levers help, why it costs and what to do instead. brief: no
    more than the place and the first of what it rests on."""
    yield plain(finding.title or finding.id, "bold")
    if brief:
        yield Parts([finding.evidence.split("; ")[0], at_place(finding.where, cwd)])
        return
    yield Parts(
        [
            finding.evidence,
            at_place(finding.where, cwd),
            f"levers: {', '.join(finding.levers)}" if finding.levers else "",
        ]
    )
    instead = f"instead: {finding.instead}" if finding.instead else ""
    if finding.why or instead:
        yield Parts([finding.why, instead], "dim")


def _notes(
    run: Run, diagnosis: Diagnosis | None, problems: Sequence[Problem], folder: Path
) -> Iterator[tuple[str, RenderableType]]:
    """The last lines: how the command ended, what the numbers do not tell, hotlap's own problems, what to do next."""
    stands_first = run.failed_itself and diagnosis is not None and diagnosis.mode != "none"
    if (ending := ending_text(run)) and not stands_first:
        yield "command", plain(ending, "yellow")
    for one in run.left_out:
        yield "not in", plain(f"{one.lever.name}: {one.why}", "yellow")
    told = {one.lever.name for one in run.left_out}
    problems = [problem for problem in problems if not (problem.lever in told and problem.what.startswith(REFUSED))]
    told_steps = any(one.id in OF_STEPS for one in _shown(diagnosis.findings)) if diagnosis else False
    for text in diagnosis.unknown if diagnosis else ():
        if not (told_steps and text.startswith(NOT_STEADY)):
            yield "note", plain(text)
    if problems:
        yield "problems", plain(problem_text(problems, folder), "yellow")
    if diagnosis and len(others := RunFolder(folder).observed) > diagnosis.ranks:
        which = "the one with the most" if diagnosis.ranks == 1 else f"{diagnosis.ranks} of them"
        steps = RunFolder(folder).start / "rank-*" / FILES[Step]
        yield (
            "processes",
            plain(f"{len(others)} made training steps; this screen is of {which}. All are in {steps}", "yellow"),
        )
    if diagnosis and diagnosis.next and not diagnosis.next.startswith(TUNE) and not diagnosis.next.endswith(COMPARE):
        yield "next", plain(diagnosis.next, "bold")
    yield "records", plain(folder)


def _next(run: Run, diagnosis: Diagnosis | None, folder: Path) -> Iterator[RenderableType]:
    """The commands that are to be typed next, flush left so that they can be copied: a tune; or the run once more after
    a change, and what came of it."""
    if diagnosis and diagnosis.next.startswith(TUNE):
        tries, begun = diagnosis.next.removeprefix(TUNE).strip(), _unfinished_tune(run)
        if begun is not None:
            yield plain(f"next: continue the recipe's tune {tries}", "dim")
            yield in_environment(run.environment, "hotlap", "tune", "--resume", str(begun), *run.command)
            return
        yield plain(f"next: a tune {'of the command without the recipe ' if run.recipe else ''}{tries}", "dim")
        yield in_environment(run.environment, "hotlap", "tune", *run.command)
    elif diagnosis and diagnosis.next.endswith(COMPARE):
        yield plain(f"next: {diagnosis.next}", "dim")
        again = next(str(path) for at in itertools.count(2) if not (path := Path(f"{folder}-{at}")).exists())
        options = run.options or (("--recipe", run.recipe) if run.recipe else ())  # a record may be older than these
        yield in_environment(run.environment, "hotlap", "run", *options, "--out", again, *run.command)
        yield CommandLine(("hotlap", "diff", str(folder), again))


def _unfinished_tune(run: Run) -> Path | None:
    """The folder of the tune that made the run's recipe, where that is there, was of this command, and can go on."""
    tune = recipe_tune(run)
    goes_on = tune is not None and tune.command == run.command and not tune.complete
    return Path(run.recipe).parent if run.recipe and goes_on else None


def in_environment(environment: Environment, *words: str) -> CommandLine:
    """A line with the variables in front that change what a step takes: a shell forgets those that stood before the
    command."""
    given = [f"{name}={value}" for name, value in environment.variables.items() if name in CHANGE_STEPS]
    return CommandLine(("env", *given, *words) if given else words)


def ending_text(run: Run) -> str:
    """How the command ended, where that was not simply its own end with exit code 0."""
    if run.status == "finished" and not run.exit_code and run.signal is None:
        return ""
    after = "" if run.wall_s is None else f" after {minutes(run.wall_s)}"
    if run.signal is not None:
        return f"{run.status}{after}, ended by {_signal_name(run.signal)}"
    if run.exit_code == ENDED_HARD:
        return f"ended by hotlap{after}: {EXIT_CODES[ENDED_HARD]}; exit code {ENDED_HARD}"
    return f"{run.status}{after}" + ("" if run.exit_code is None else f", exit code {run.exit_code}")


def _signal_name(value: int) -> str:
    """`SIGKILL`; the number where this system has no such signal."""
    try:
        return signal.Signals(value).name
    except ValueError:
        return f"signal {value}"


def problem_text(problems: Sequence[Problem], folder: Path) -> str:
    """hotlap's own problems: how many, the first one, and where all of them are."""
    first = problems[0]
    lever = f"lever {first.lever}, " if first.lever else ""
    return (
        f"{number(len(problems), 'problem')} of hotlap's own, not the command's; first: {lever}{first.where}: "
        f"{first.what}; see {RunFolder(folder).start / 'rank-*' / FILES[Problem]}"
    )
