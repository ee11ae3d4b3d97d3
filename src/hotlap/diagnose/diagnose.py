"""The verdict of a run, from its folder alone."""

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Final

import msgspec

from hotlap.levers import answering, settled
from hotlap.memory.usage import usage
from hotlap.records.diagnosis import COMPARE, LEAST_NAMED, NOT_STEADY, Diagnosis, Finding, Spread, bound_of, in_order
from hotlap.records.durations import ms
from hotlap.records.errors import NothingMeasured, RecordError
from hotlap.records.files import read_record
from hotlap.records.memory import MemoryUsage, When
from hotlap.records.phases import PHASES
from hotlap.records.run import Environment, Facts, Phases, Problem, Step
from hotlap.records.telemetry import TelemetrySample
from hotlap.runs.folder import FILES, RankFolder, RunFolder

from .balance import Late, late_rank, straggler, without_the_wait, without_waiting
from .cpu_use import GpuUse, cpu_use, gpu_use, kept_busy
from .findings import cpu_crowded, findings_of, loader_hangs
from .findings._base import CpuUse, Measured
from .findings.long_steps import long_of
from .findings.workers_restart import without_restarts
from .jumps import jump_of, jump_text
from .shared_gpu import shared_gpu
from .steps import (
    SIXTHS,
    SteadySteps,
    block_length,
    block_means,
    growth,
    longer_in,
    mean_known,
    mean_phases,
    micro_batches,
    on_clock,
    phases_of_all,
    rows_of,
    spread,
    steady_steps,
    step_time,
    throughput,
    token_rate,
)

LEAST_STEPS = 3
LEAST_MS = 1e-6
"""The resolution of `wall_ms` on disk. A step of no time has no shares."""
WITHOUT_FACTS = "facts"
"""Where a problem of hotlap's is after which it observes the steps as before: `Agent.write_facts`."""
GOES_ON = (WITHOUT_FACTS, "profile_")
"""How all of those begin that end a part alone (`Guard.spare`)."""
UNEVEN = 1.15
DIFFERS = 1.1
"""Mean of all steps over that of those whose phases are known, from which these do not say where all of it goes."""
OTHERS = 1.25
"""The mean of the steps whose phases are known over a typical step, from which on these phases are not that one's."""
BLOCKS_APART = 1.5
"""The slowest block of steps over the fastest, from which one number does not say how long a step takes."""
WHAT_COUNTS = (
    "A step is one optimizer step; without a torch.optim.Optimizer one forward with its backward; in inference "
    "one forward of an nn.Module with parameters. Modules called only by a torch.compile'd function are not "
    "seen"
)

EARLY: Final[Mapping[When, str]] = {"start": "before the loop", "first": "in the first steps"}
"""Windows of memory, in words."""
MOST_LOST = 1000
"""Steps in a row that are not there, from which on it is no broken line of a killed job."""

NO_TORCH = (
    "None of its processes imported torch with hotlap in it. hotlap can't see isolated Python (`python -I` or "
    "`-E`), nor what a script starts with PYTHONPATH replaced: write `PYTHONPATH=.:$PYTHONPATH` in place of "
    "`PYTHONPATH=.`"
)


@dataclass(frozen=True)
class Rank:
    """One training process of a run."""

    folder: RankFolder
    steps: list[Step]
    facts: Facts | None
    steady: SteadySteps


def read_ranks(folder: Path) -> list[Rank]:
    """The processes of a run that made steps, in rank order."""
    ranks = []
    for rank in RunFolder(folder).ranks:
        steps = _of_the_rest(rank, [step for step in rank.steps if step.wall_ms >= LEAST_MS])
        facts = rank.facts
        if steps:
            ranks.append(Rank(rank, steps, facts, steady_steps(steps, facts)))
    return ranks


def _of_the_rest(rank: RankFolder, steps: list[Step]) -> list[Step]:
    """Steps in which a lever was still in that left itself out later are marked, so that their times are not quoted."""
    last = max((line.step for line in rank.levers if line.left_out), default=-1)
    return [msgspec.structs.replace(step, probe=True) if step.step <= last else step for step in steps]


def diagnose(folder: Path) -> Diagnosis:
    """The verdict. Raises NothingMeasured (with what was seen) where there are too few steps, RecordError."""
    run, ranks = RunFolder(folder), read_ranks(folder)
    every = ranks
    mode = "train" if any(rank.steady.mode == "train" for rank in ranks) else "inference"
    ranks = [rank for rank in ranks if rank.steady.mode == mode]
    if not ranks:
        raise NothingMeasured(_nothing(run))
    first = max(ranks, key=lambda rank: rank.steady.seen) if _separate_processes(ranks) else ranks[0]
    together = [first] if _separate_processes(ranks) else ranks
    if first.steady.seen < LEAST_STEPS:
        raise NothingMeasured("; ".join((_too_few(first), *_restarted(run))))
    record, seen = run.record, run.telemetry
    use = cpu_use(seen, first.steady.steps, record.environment)
    cards = [rank.facts.device_uuid if rank.facts else None for rank in together]
    gpus = gpu_use(seen, first.steady.steps, cards)
    unstepped: list[Facts] = []  # their memory is the command's too
    with contextlib.suppress(RecordError):
        unstepped = [read_record(path, Facts) for path in run.seen]
    if shared := shared_gpu(seen, first.steady.steps, [*(rank.facts for rank in every), *unstepped]):
        gpus = GpuUse(None, gpus.watts, shared)
    levers = tuple(lever.name for lever in record.levers)
    found = _verdict(mode, first, together, levers, use, gpus, seen, record.environment)
    return msgspec.structs.replace(found, unknown=(*_restarted(run), *found.unknown))


def _restarted(run: RunFolder) -> Iterator[str]:
    """That the ranks were started anew, where they were."""
    if run.restarts:
        yield f"torchrun restarted the ranks (restart {run.restarts}): the numbers are of the last start alone"


def _separate_processes(ranks: Sequence[Rank]) -> bool:
    """Whether these are processes that trained one after another or on their own, not ranks of one run."""
    return len(ranks) > 1 and any(rank.facts is not None and rank.facts.world != len(ranks) for rank in ranks)


def _verdict(
    mode: str,
    first: Rank,
    ranks: Sequence[Rank],
    levers: tuple[str, ...],
    use: CpuUse,
    gpus: GpuUse,
    seen: Sequence[TelemetrySample],
    machine: Environment,
) -> Diagnosis:
    steady, facts = first.steady, first.facts
    measured, paced = _measured(first, levers, use, gpus, seen, machine)
    findings = [without(finding, settled(facts, levers)) for finding in in_order(_found(measured, first, ranks))]
    slowest = max(ranks, key=lambda rank: _pace(rank.steady)).steady
    rates = [_rate(rank) for rank in ranks]
    tokens = [token_rate(rank.steady) for rank in ranks]
    on_gpu = facts is not None and facts.device == "cuda"
    return Diagnosis(
        mode="train" if mode == "train" else "inference",
        bound=bound_of(findings),
        step_ms=_pace(slowest),
        spread=_spread(slowest),
        throughput=sum(rate for rate in rates if rate) if all(rates) else None,
        tokens_s=sum(rate for rate in tokens if rate) if all(tokens) else None,
        throughput_unit="rows/s" if facts and facts.samples_from == "forward" else "samples/s",
        phases=measured.phases,
        unseen_ms=measured.unseen_ms,
        gpu_ms=mean_known([step.gpu_ms for step in steady.steps]),
        gpu_phases=measured.gpu_phases,
        gpu_paced=paced,
        gpu_busy=gpus.busy if on_gpu else None,
        gpu_watts=gpus.watts if on_gpu else None,
        gpu_shared=bool(gpus.shared),
        clock=slowest.clock,
        findings=tuple(findings),
        steps=steady.seen,
        steady_steps=len(steady.steps),
        phase_steps=sum(step.phases is not None for step in steady.steps),
        warmup_steps=steady.warmup,
        evaluations=steady.evaluations,
        evaluating=steady.evaluating,
        compiling=steady.compiling,
        settled=steady.settled,
        ranks=len(ranks),
        device=facts.device if facts else "cpu",
        device_name=facts.device_name if facts else None,
        peak_bytes=measured.memory[0] if measured.memory else None,
        memory_bytes=measured.memory[1] if measured.memory else None,
        memory=measured.usage,
        unknown=(
            *_unknown(first, slowest, measured),
            *_beside_others(findings, measured),
            *filter(None, (gpus.shared,)),
        ),
        next=next_of(findings),
    )


def _measured(
    rank: Rank,
    levers: tuple[str, ...],
    use: CpuUse,
    gpus: GpuUse,
    seen: Sequence[TelemetrySample],
    machine: Environment,
) -> tuple[Measured, Phases | None]:
    """What findings are made from; and what the host paces on the device, which they do not get of a device that is
    busy all the same."""
    steady, facts = rank.steady, rank.facts
    in_all = rank.steps[-1].step - rank.steps[0].step + 1
    usual, run_ms = without_restarts(steady.steps, facts.feeding if facts else None, in_all)
    if (long := long_of(usual, steady.clock)) is not None:
        usual = tuple(step for step in usual if step.step not in long.steps)
    device, paced = mean_phases(usual, "gpu_phases"), mean_phases(usual, "gpu_paced")
    host, unseen, unseen_ms = _host_phases(steady, usual, device)
    backlogs = [step.backlog_ms for step in steady.steps if step.backlog_ms is not None]
    whole = not _left_out(rank.steps)
    grown = growth(steady.numbered, facts is not None and any(root.piled for root in facts.roots)) if whole else None
    sixth = len(steady.steps) // SIXTHS
    ends = steady.steps[:sixth], steady.steps[-sixth:]
    measured = Measured(
        step_ms=fmean(steady.times),
        phases=host,
        gpu_phases=device,
        backlog_ms=median(backlogs) if backlogs else None,
        facts=facts,
        levers=levers,
        cpu=use,
        run_ms=run_ms,
        unseen_ms=unseen_ms,
        unseen=unseen,
        growth=grown,
        memory_bytes=machine.memory_gib * 2**30,
        evaluating=steady.evaluating,
        evaluates=any(step.evaluation for step in steady.steps),
        gpu_paced=Phases() if kept_busy(paced, device, gpus.busy) else paced,
        gpu_busy=gpus.busy,
        long=long,
        micro=micro_batches(usual),
        rows=rows_of(usual),
        jump=jump_of(steady, rank.steps, facts, seen, machine) if whole and grown is None else None,
        grown_in=longer_in(ends) if grown else ("", 0.0),
        usage=used(rank.folder),
        early={said: usage(window) for when, said in EARLY.items() if (window := rank.folder.memory(when)) is not None},
        series=rank.folder.memory_series,
    )
    return measured, paced


def used(rank: RankFolder) -> MemoryUsage | None:
    """Memory of the steady steps in which that was looked at, if any were. Raises RecordError."""
    window = rank.memory()
    return None if window is None else usage(window)


def _found(measured: Measured, first: Rank, ranks: Sequence[Rank]) -> list[Finding]:
    """What findings there are of the first rank, without its waits for the others, and of the one that is late."""
    found = findings_of(measured)
    late = straggler([rank.steady.steps for rank in ranks])
    if late is None:
        return without_waiting(found, [mean_phases(rank.steady.steps, "gpu_phases") for rank in ranks])
    return [*without_the_wait(found, late, ranks[late.index] is first), _straggler(late, ranks[late.index])]


def _straggler(late: Late, rank: Rank) -> Finding:
    """The rank that the others wait for, at what makes it late."""
    measured = Measured(1.0, Phases(), None, None, rank.facts)
    where = measured.place_of(measured.loader if late.phase in {"data", "h2d"} else measured.root)
    return late_rank(late, rank.facts.rank if rank.facts else late.index, where)


def without(finding: Finding, levers: Collection[str]) -> Finding:
    """The finding without levers that are in already, or ruled out, and without advice of the same."""
    said = {item for name, items in _advice_of().items() if name in levers for item in items}
    parts = re.split(r"(; |, (?!so ))", finding.instead) if said else [finding.instead]
    kept = [at for at in range(0, len(parts), 2) if parts[at] not in said]
    instead = "".join("".join(parts[at : at + 2]) for at in kept).rstrip(",; ")
    names = tuple(name for name in finding.levers if name not in levers)
    return msgspec.structs.replace(finding, levers=names, instead=instead)


def _advice_of() -> dict[str, tuple[str, ...]]:
    """Advice, as findings give it in a list, by the lever that it is."""
    return {
        answering("kernels")[0]: ("compile, so that chains of them become one kernel",),
        answering("precision")[0]: ("lower precision", "smaller types"),
        answering("attention")[0]: ("fused attention",),
        answering("optimizer")[0]: ("fused optimizer", "fuse the optimizer"),
    }


def next_of(findings: Sequence[Finding]) -> str:
    """What to do next: the first finding's change, where no lever answers it; else a tune with the levers of the
    dearest finding that has some, and the best one of each other that takes a notable share."""
    if findings and not findings[0].levers and (findings[0].named or findings[0].instead):
        where = findings[0].where
        at = (
            f"make the change at {Path(where.file).name}:{where.line}"
            if where and where.line
            else "do what the first finding says"
        )
        return f"{at}, {COMPARE}"
    helped = [finding for finding in findings if finding.levers]
    if not helped:
        return "hotlap found nothing that it can change; see the findings"
    others = [one.levers[0] for one in helped[1:] if one.share >= LEAST_NAMED]
    tried = dict.fromkeys([*helped[0].levers[:4], *others])
    return f"hotlap tune COMMAND...   (tries {', '.join(tried)} and what else applies, with proof)"


def _pace(steady: SteadySteps) -> float:
    return step_time(steady.times, steady.period)


def _unknown(rank: Rank, slowest: SteadySteps, measured: Measured) -> list[str]:
    said = []
    facts, problems = rank.facts, rank.folder.problems
    if facts is None:
        why = "hotlap had a problem of its own" if problems else "the process died"
        said.append(f"the model and loaders are unknown: {why} before hotlap wrote them down (facts.json)")
    elif facts.samples_from == "none":
        said.append("samples/s is unknown: no batch with a first dimension was seen")
    if not rank.steady.settled:
        said.append("the step time was still changing, so a long run may differ")
    if facts is not None and facts.replayed:
        replayed = ", ".join(facts.replayed)
        said.append(f"{replayed} can't be timed separately: the script replays them as one CUDA graph")
    if left_out := _left_out(rank.steps):
        said.append(
            f"{left_out:,} steps are not in the numbers: hotlap keeps the first and the last steps of a long run"
        )
    said += [f"{NOT_STEADY}: {jump_text(measured.jump)}"] if measured.jump is not None else _uneven(slowest)
    if measured.unseen and not measured.unseen_ms:
        said.append(f"phases are of sampled steps: {measured.unseen} (--every-step records all)")
    if facts is not None and facts.device == "cuda" and measured.gpu_phases is None:
        said.append("device time is unknown: no CUDA events could be recorded in this loop")
    series = rank.folder.memory_series
    if series is not None and rank.folder.memory() is None:
        said.append(f"memory was not looked at: {series.note or 'the run ended before enough steady steps were made'}")
    if any(problem.where != WITHOUT_FACTS and not problem.lever for problem in problems):
        said.append("hotlap had a problem of its own and may have missed what came later (problems.jsonl)")
    return said


def _beside_others(findings: Sequence[Finding], measured: Measured) -> Iterator[str]:
    """That the numbers are those of a machine that others keep busy, where it took a notable share of the step. A quota
    is the command's own, and holds the next time too."""
    waits = cpu_crowded.waits(measured) if cpu_crowded.by_others(measured) else None
    stolen = measured.of_step(sum(one.cost_ms or 0.0 for one in findings if one.id == "cpu-steal"))
    waited = measured.of_step(waits.cost_ms) if waits is not None else 0.0
    if max(waited, stolen) >= LEAST_NAMED:
        what = (
            ": cores were taken away"
            if stolen > waited
            else f": threads waited for a core for {waited:.0%} of the time"
        )
        if waits is not None and cpu_crowded.by_itself(measured):
            what = " too"  # whose waits are whose is not known
        threads = measured.facts.threads if measured.facts and measured.facts.device == "cpu" else 1
        fewer = "; with `OMP_NUM_THREADS=1` no operation waits for another thread" if threads > 1 else ""
        yield f"the machine was busy with other work{what}; run again when it is idle{fewer}"


def _host_phases(steady: SteadySteps, usual: Sequence[Step], device: Phases | None) -> tuple[Phases, str, float]:
    """Means of those of the usual steps whose phases are known; what is to be said where these are too few to say
    where the time of all goes: a script that does something long every so many steps may do it in others; and how many
    ms a step may then be spent on anything.

    On the CPU, where they take longer than a step is said to, the phases are shares of that."""
    found = mean_phases(usual, "phases") or Phases()
    looked_at = sum(step.phases is not None for step in usual)
    total = sum(getattr(found, name) or 0.0 for name in PHASES)
    times = [took for step in usual if (took := on_clock(step, steady.clock)) is not None]
    mean, typical = fmean(times), _pace(steady)
    scaled = device is None and OTHERS * typical < total
    if looked_at == len(usual) or not total:
        return phases_of_all(usual, typical) if scaled else found, "", 0.0
    if not scaled and 1 / DIFFERS < mean / total < DIFFERS:
        return found, "", 0.0
    said = f"the {looked_at} sampled steps take {ms(total)} on average, all {len(usual)} steps {ms(mean)}"
    if scaled:
        typically = f"{said}, a typical step {ms(typical)}; phases are shares of the latter"
        return phases_of_all(usual, typical), typically, 0.0
    return found, said, max(0.0, mean - total)


def _rate(rank: Rank) -> float | None:
    return throughput(rank.steady, from_loader=rank.facts is not None and rank.facts.samples_from == "loader")


def _uneven(steady: SteadySteps) -> Iterator[str]:
    """Whether one number says how long a step takes, and what that number is where no single step is near to it."""
    blocks = block_means(steady.times, steady.period)
    mean, typical, low, high = fmean(steady.times), median(blocks), min(blocks), max(blocks)
    if rare := _rare(typical, spread(steady.times)):
        each = block_length(len(steady.times), steady.period)
        yield (
            f"{NOT_STEADY}: {rare}; {ms(typical)} a step is the median over {len(blocks)} blocks of {each} "
            f"steps, the mean of all {len(steady.times)} steps is {ms(mean)}"
        )
    elif max(mean, typical) > UNEVEN * min(mean, typical):
        yield f"{NOT_STEADY}: a typical step takes {ms(typical)}, the mean of all is {ms(mean)}"
    elif high > BLOCKS_APART * low:
        yield f"{NOT_STEADY}: {ms(low)} in one part of the run, {ms(high)} in another"


def _spread(steady: SteadySteps) -> Spread:
    """Deciles of single steps; where the step time lies outside of them, of the means that it is the median of."""
    single = spread(steady.times)
    if not _rare(step_time(steady.times, steady.period), single):
        return single
    means = spread(block_means(steady.times, steady.period))
    return msgspec.structs.replace(means, of=block_length(len(steady.times), steady.period))


def _rare(typical: float, single: Spread) -> str:
    """Which steps take a step time out of the deciles of single steps, as far as that shows."""
    if typical > single.p90 and ms(typical) != ms(single.p90):
        return f"90% of the steps take {ms(single.p90)} or less, the rest longer"
    if typical < single.p10 and ms(typical) != ms(single.p10):
        return f"90% of the steps take {ms(single.p10)} or more, the rest less"
    return ""


def _nothing(folder: RunFolder) -> str:
    """Why there is nothing to measure, from what every process said at its end."""
    seen = [read_record(path, Facts) for path in folder.seen]
    seen += filter(None, (rank.facts for rank in folder.ranks))
    run = folder.record
    command = f"`{' '.join(run.command)[:200]}`"
    if not seen and (error := folder.agent_error) is not None:
        return f"nothing was measured in {command}: hotlap's agent could not start: {error}"
    why = [*filter(None, map(_hung, seen)), *_switched_off(folder)][:1]
    trained = [facts for facts in seen if facts.forwards or facts.backwards or facts.optimizer_steps]
    if run.exit_code and not trained and not why:  # what it printed says more than we could
        return f"{command} ended with exit code {run.exit_code} before it trained"
    counts = (
        f"process {facts.pid} ({' '.join(facts.argv)[:80]}): {facts.forwards} forwards of a module with parameters, "
        f"{facts.backwards} backwards, {facts.optimizer_steps} optimizer steps"
        for facts in seen[:4]
    )
    said = "; ".join([*counts, *why]) or NO_TORCH
    how = f" before it ended with exit code {run.exit_code}" if run.exit_code else ""
    return f"no training step was seen in {command}{how}. {said}. {WHAT_COUNTS}"


def _left_out(steps: Sequence[Step]) -> int:
    """Steps between the first and the last ones that a long run did not keep."""
    missing = max((after.step - before.step - 1 for before, after in pairwise(steps)), default=0)
    return missing if missing >= MOST_LOST else 0


def _hung(facts: Facts | None) -> str:
    """A wait for a batch in which the loop ended, in words; "" where it did not."""
    if facts is None or facts.hung is None:
        return ""
    said = loader_hangs.said(facts.hung)
    return f"{said}; {loader_hangs.LOCKS}" if facts.hung.alive else said


def _too_few(rank: Rank) -> str:
    """What there is to say of too few steps: one of LBFGS may be a whole training."""
    one = rank.steady.seen == 1
    said = (
        f"only {rank.steady.seen} step{' was' if one else 's were'} seen before the command ended; at least "
        f"{LEAST_STEPS} are needed, the first as warm-up"
    )
    longest = max((step for step in rank.steps if step.phases is not None), key=lambda step: step.wall_ms, default=None)
    if hung := _hung(rank.facts):
        said += f". Then {hung}"
    if longest is None:
        return said
    times = ((name, getattr(longest.phases, name)) for name in PHASES)
    told = ", ".join(f"{name} {ms(took)}" for name, took in times if took)
    return f"{said}. {'It' if one else 'The longest'} took {ms(longest.wall_ms)}, warm-up included: {told}"


def _switched_off(folder: RunFolder) -> Iterator[str]:
    """What made hotlap end its work in a process, while the command went on."""
    for rank in folder.ranks:
        for problem in rank.problems:
            if not problem.lever and not problem.where.startswith(GOES_ON):
                what, file = problem.what[:200], f"{rank.path.name}/{FILES[Problem]}"
                yield f"hotlap switched itself off after a problem of its own in {problem.where}: {what} ({file})"
