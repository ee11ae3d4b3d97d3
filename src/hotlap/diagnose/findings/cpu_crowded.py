"""More threads want to run than there are cores."""

from dataclasses import dataclass

from hotlap.diagnose.source import call_of
from hotlap.levers import answering
from hotlap.records.diagnosis import Finding
from hotlap.records.durations import ms
from hotlap.records.run import Facts, HostFacts

from ._base import FULL, LEAST_COST, CpuUse, Measured, counted

LEAST_OWN = 0.05
LEAST_ALL = 0.10
"""Of the step: waits of the thread that trains, and of all threads together, from which they are told."""
FOR_MODEL = "`OMP_NUM_THREADS=1`, or one for each core that is free"
FOR_BATCHES = "OMP_NUM_THREADS: 1 to 4 suffice for batches if the model is on a device"
FROM_ALL = "other findings do not include this time: it is taken from all alike"
LEAST_WORKERS = 0.10
"""Of their time: waits of loader workers."""
LEAST_SEEN_MS = 20.0
"""Of steps whose counters were read, in all: a thread is without a core for some ms at a time, so that of less one such
time would say too much."""

UNKNOWN = HostFacts(steps=0)


@dataclass(frozen=True)
class Waits:
    """Ms of a step: own: of the thread that trains; every: of all threads of its process; workers: the data phase where
    loader workers wait notably, else 0."""

    own: float
    every: float
    workers: float
    step_ms: float

    @property
    def itself(self) -> bool:
        """Whether the thread that trains waits notably."""
        return self.own >= LEAST_OWN * self.step_ms

    @property
    def cost_ms(self) -> float:
        """That a step could win back at most: threads may wait beside each other, and for nobody's sake."""
        return min(self.step_ms, self.own if self.itself else max(self.own, self.every) + self.workers)


def waits(measured: Measured) -> Waits | None:
    """What threads wait for a core, where it is notable. Threads wait for nobody's sake where the thread that trains
    never does: it is one of those that share an operation."""
    host, step, taken_ms = _host(measured), measured.step_ms, measured.taken_ms  # what workers take is in the batches
    if host is None or host.threads_waited_ms is None:
        host = UNKNOWN  # too few steps for the process's own counters: the machine's go over all of them
    all_ms = _of_all_steps(measured)
    if not measured.host_matters or (host is UNKNOWN and all_ms is None):
        return None
    part = measured.of_counted
    own, every = part * (host.waited_ms or 0.0), part * (host.threads_waited_ms or 0.0)
    if all_ms is not None:
        own, every = all_ms, max(all_ms, every - own + all_ms)
    elif host.took_ms is not None and host.steps * host.took_ms < LEAST_SEEN_MS:
        return None
    own, every = max(0.0, own - taken_ms), max(0.0, every - taken_ms)
    if (host is UNKNOWN or host.waited_ms is not None) and own < LEAST_COST * step:
        every = own
    found = Waits(own, every, (measured.phases.data or 0.0) if _workers_wait(measured) else 0.0, step)
    notable = found.itself or every >= LEAST_ALL * step or found.workers >= LEAST_OWN * step
    return found if notable else None


def _host(measured: Measured) -> HostFacts | None:
    return measured.facts.host if measured.facts else None


def _of_all_steps(measured: Measured) -> float | None:
    """What the thread that trains waits, by the machine's counters, which go over all steady steps and not over some of
    the first; None where it is not the only process."""
    use = measured.cpu
    if use is None or use.waited_ms is None or use.processes != 1:
        return None
    return min(1.0, use.waited_ms / 1000) * measured.step_ms


def find(measured: Measured) -> Finding | None:
    """Share: what the thread that trains waited itself, which no phase computes in. Else 0, and a cost at most. Waits
    because of other work of the machine are no cause of the command's: `by_others`.
    """
    facts, host, found = measured.facts, _host(measured), waits(measured)
    if facts is None or found is None or not by_itself(measured):
        return None
    together, itself = facts.threads > 1, found.itself
    fewer = []
    if together:
        fewer.append(f"fewer intra-op threads ({FOR_BATCHES if facts.device == 'cuda' else FOR_MODEL})")
    if any(loader.workers for loader in facts.loaders):
        most = measured.cpu.usable if measured.cpu is not None and _workers_crowd(measured) else 0
        fewer.append(f"fewer workers: `num_workers={most}` at most" if most else "fewer workers")
    if facts.world > 1:
        fewer.append("separate cores for each rank (torchrun --numa-binding=exclusive)")
    return Finding(
        id="cpu-crowded",
        bound="unknown",
        share=min(1.0, measured.of_step(found.own)) if itself else 0.0,
        cost_ms=found.cost_ms,
        title="threads wait for a core",
        where=call_of(facts, ("DataLoader",)) if _workers_crowd(measured) else None,
        evidence="; ".join([_waits(host, found), *_wanted(measured, facts, measured.cpu), *[FROM_ALL] * itself]),
        why="an operation ends with the last of its threads: while one has no core, the others wait for it"
        if together
        else f"{_when(measured.cpu)}more threads want to run than there are cores",
        instead=", ".join([*fewer, f"{'or ' if fewer else ''}other processes on other cores (taskset)"]),
        levers=answering("threads") if together else (),
        beneath=not itself,
        named=itself,
    )


def _workers_crowd(measured: Measured) -> bool:
    """Whether there are more workers than cores."""
    loader, use = measured.loader, measured.cpu
    return loader is not None and use is not None and loader.workers > use.usable


def by_itself(measured: Measured) -> bool:
    """Whether the command's own threads and workers want more cores than there are, or keep all of them busy, and are
    not all that had or wanted one where they want as many. So it is taken to be where that is not known. Workers mostly
    sleep, so that many of them may want little: what counts is what they ran."""
    facts, use = measured.facts, measured.cpu
    if facts is None or use is None:
        return True
    own, busy = _own(measured), use.used is not None and use.used >= FULL * use.usable
    if busy or facts.world * facts.threads > use.usable:
        return True
    if own > use.usable:
        return not _others_hold_the_cores(measured, use)
    return own == use.usable and use.running is not None and round(use.running) <= own + 1


def _others_hold_the_cores(measured: Measured, use: CpuUse) -> bool:
    """Whether all cores are busy, though what the command ran for a step would leave some idle if it waited for neither
    a core nor a batch meanwhile."""
    host = _host(measured)
    if host is None or use.used is None or use.busy_ms is None or use.busy_ms < FULL * 1000 * use.cores:
        return False
    waited_ms = measured.of_counted * (host.waited_ms or 0.0)
    all_ms = _of_all_steps(measured)
    unhindered_ms = measured.step_ms - (waited_ms if all_ms is None else all_ms) - (measured.phases.data or 0.0)
    return use.used * measured.step_ms < FULL * use.usable * unhindered_ms


def by_others(measured: Measured) -> bool:
    """Whether other work of the machine wants the cores: the command's own threads would each have one, or more threads
    had or wanted one than these and the one that looked."""
    facts, use = measured.facts, measured.cpu
    if facts is None or use is None:
        return False
    return not by_itself(measured) or (use.running is not None and round(use.running) > _own(measured) + 1)


def _own(measured: Measured) -> int:
    """Threads and workers of the command."""
    facts, loader = measured.facts, measured.loader
    return facts.world * (facts.threads + (loader.workers if loader else 0)) if facts else 0


def _when(use: CpuUse | None) -> str:
    """Beside a median that is not above the cores."""
    return "at times " if use is not None and use.running is not None and round(use.running) <= use.usable else ""


def _waits(host: HostFacts | None, found: Waits) -> str:
    if host is None or host.threads_waited_ms is None:
        return f"ready to run and without a core, by the machine's counters: {ms(found.own)} a step"
    own = "" if host.waited_ms is None else f"the thread that trains {ms(host.waited_ms)} a step, "
    switches = f"{host.involuntary:.0f}" if host.involuntary >= 10 else f"{host.involuntary:.2g}"
    of = f" of {ms(host.took_ms)}" if host.took_ms else ""
    return (
        f"ready to run but without a core, over {counted(host.steps, 'step')}{of}: {own}all threads of its "
        f"process together {ms(host.threads_waited_ms or 0.0)}; {switches} involuntary switches a step"
    )


def _workers_wait(measured: Measured) -> bool:
    """Whether the loader's workers, whose waits are among those of the command's processes, do so notably."""
    loader, use, host = measured.loader, measured.cpu, _host(measured)
    if loader is None or not loader.workers or use is None or use.waited_ms is None or host is None:
        return False
    own = measured.of_step(1000 * (host.waited_ms or 0.0))
    return use.waited_ms - own >= LEAST_WORKERS * 1000 * loader.workers


def _wanted(measured: Measured, facts: Facts, use: CpuUse | None) -> list[str]:
    """What of the command wants cores, and what of the machine does."""
    workers = measured.loader.workers if measured.loader else 0
    ranks = f", in each of {facts.world} ranks" if facts.world > 1 else ""
    cores = f", {counted(use.usable, 'core')}" if use else ""
    said = [f"{counted(facts.threads, 'intra-op thread')} and {counted(workers, 'worker')}{ranks}{cores}"]
    if workers and use is not None and use.waited_ms is not None:
        said.append(f"main threads of the command's processes waited for {ms(use.waited_ms)} a second")
    if use is not None and use.running is not None:
        said.append(f"in the median {counted(round(use.running), 'thread')} on the machine ran or wanted to")
    return said
