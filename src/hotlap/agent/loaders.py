"""How batches are made, what the worker processes of a loader do, and which batch never came."""

import os
import random
import sys
import time
import weakref
from typing import Any, Final

import torch

from .lines import Places
from .probe import leaves, row_digests
from .process_tree import read, stat, threads
from .torch_internals import FETCHER, MapFetcher, awaited_worker, is_dense, is_plain, worker_pids

HUNG_S: Final = 10.0
"""That an unfinished wait for a batch lasted at least, to be told."""
LEAST_BUSY_S: Final = 0.1
"""Of the busiest thread of a worker, ten ticks of the clock by which the system counts."""
LOOKED_AT: Final = 64
"""Batches of which the processor time is taken."""


def hung(iterator: Any, asked_ns: int, places: Places) -> dict[str, Any] | None:
    """Whose batch was waited for, and where, when an error such as Ctrl-C ended a long wait; None where none did.
    asked_ns: when the batch was asked for."""
    waited_s = (time.perf_counter_ns() - asked_ns) / 1e9
    if waited_s < HUNG_S or isinstance(sys.exception(), StopIteration):
        return None
    at = dict(zip(("file", "line", "function"), places.caller() or (), strict=False))
    if (awaited := awaited_worker(iterator)) is None:
        return {"waited_s": waited_s, **at}
    number, worker = awaited
    return {"waited_s": waited_s, "worker": number, "worker_pid": worker.pid, "alive": worker.is_alive(), **at}


class Making:
    """Follows how batches are made: random draws, processor time, rows that several workers deliver alike."""

    def __init__(self) -> None:
        self.followed = False
        """Whether the batches that come now are looked at: those that begin an iteration."""
        self._cpu = self._wall = 0
        self._states: Any = None
        self._first_rows: set[Any] = set()
        self._iterator: Any = lambda: None
        self._before: tuple[float, list[float], int, dict[str, float]] | None = None

    def begin(self, probing: bool) -> None:
        """A batch is asked for."""
        self._states = _states() if probing else None
        self._cpu, self._wall = time.thread_time_ns(), time.perf_counter_ns()

    def end(self, iterator: Any, facts: dict[str, Any], batch: Any) -> None:
        """It is there. Facts count the batches before it."""
        seen = facts["batches"]
        if facts["workers"]:
            self._of_workers(iterator, facts, batch)
            self.followed = seen <= 1
            return
        self.followed = seen < LOOKED_AT
        if seen == 0 and self._states is not None and facts["default_collate"]:
            _look_at_samples(iterator, facts)
        if 0 < seen <= LOOKED_AT:  # the first one begins the epoch: the sampler draws
            wall = max(1, time.perf_counter_ns() - self._wall)
            share = min(1.0, (time.thread_time_ns() - self._cpu) / wall)
            facts["making_cpu"] = (facts["making_cpu"] * (seen - 1) + share) / seen
            if self._states is not None:
                facts["draws"] = bool(facts["draws"]) or self._states != _states()

    def _of_workers(self, iterator: Any, facts: dict[str, Any], batch: Any) -> None:
        if self._iterator() is not iterator:
            self._iterator, self._before = weakref.ref(iterator), None
        if not facts["iterable"] or facts["workers"] < 2 or facts["batches"] > 1:
            return
        rows = set(zip(*[row_digests(leaf) for leaf in leaves(batch) if is_dense(leaf)], strict=False))
        if facts["batches"] == 0:
            self._first_rows = rows
        elif len(rows) > 1:  # a stream of equal rows says nothing
            facts["repeated_rows"] = len(rows & self._first_rows)

    def look_at_workers(self, facts: dict[str, Any]) -> None:
        """What the worker processes have used since the first look: processor time, memory of their own."""
        iterator = self._iterator()
        workers = worker_pids(iterator)
        if not workers or len(workers) != facts["workers"]:
            return
        used = [_cpu_s(pid) for pid in workers]
        own = _private_bytes(workers[0]) if facts["objects"] else 0
        took_s = _threads_s(workers[-1])  # in a profiled run the first has a thread of ours (`samples.WorkerSamples`)
        now = time.perf_counter()
        if self._before is None:
            self._before = now, used, own, took_s
            return
        since, before, owned, threads_before = self._before
        if now > since:
            busy = sum(b - a for a, b in zip(before, used, strict=True)) / ((now - since) * len(workers))
            facts["making_cpu"] = min(1.0, max(0.0, busy))
        facts["worker_growth_bytes"] = max(0, own - owned)
        took = [s - threads_before.get(thread, 0.0) for thread, s in took_s.items()]
        busiest = max(took, default=0.0)
        facts["worker_threads"] = sum(s >= busiest / 4 for s in took) if busiest >= LEAST_BUSY_S else 0


def _look_at_samples(iterator: Any, facts: dict[str, Any]) -> None:
    """See the samples of the next batch on their way into `collate_fn`, once, and without keeping one."""
    fetcher: Any = getattr(iterator, FETCHER, None)
    if type(fetcher) is not MapFetcher:
        return
    collate = fetcher.collate_fn

    def look(samples: Any) -> Any:
        fetcher.collate_fn = collate
        facts["views"] = _are_views(samples)
        return collate(samples)

    fetcher.collate_fn = look


def _are_views(samples: Any) -> bool | None:
    """Whether each tensor of the samples lies in the same memory as its like in the first; None of less than two."""
    if type(samples) is not list or len(samples) < 2:
        return None
    homes = [_homes(sample) for sample in (samples[0], samples[1], samples[-1])]
    return bool(homes[0]) and all(home == homes[0] for home in homes)


def _homes(sample: Any) -> list[int]:
    """Where the memory begins that each plain tensor of a sample is a view of; empty where it holds anything else."""
    items = sample.values() if isinstance(sample, dict) else sample if isinstance(sample, (list, tuple)) else [sample]
    found: list[int] = []
    for item in items:
        inner = [_homes(item)] if isinstance(item, (dict, list, tuple)) else []
        if is_plain(item):
            inner = [[item.untyped_storage().data_ptr()]]
        if not inner or not inner[0]:
            return []
        found += inner[0]
    return found


def _states() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    drawn = None if numpy is None else numpy.random.get_state()
    own = None if drawn is None else (drawn[1].tobytes(), *drawn[2:])
    return bytes(torch.get_rng_state().tolist()), random.getstate(), own


def _threads_s(pid: int) -> dict[str, float]:
    """Processor time of each thread of a process that computes, s, by its number; none where the system does not tell.
    Those that hand batches and files over read and write, which threads of an operation do not."""
    computing = (one for one in threads(pid) if one == str(pid) or not _transferred(f"{pid}/task/{one}"))
    return {thread: _cpu_s(f"{pid}/task/{thread}") for thread in computing}


def _transferred(task: str) -> int:
    """Bytes that a thread has read and written; 0 where the system does not tell."""
    lines = (line.partition(":") for line in read(f"/proc/{task}/io").splitlines())
    return sum(int(number) for name, _, number in lines if name in {"rchar", "wchar"})


def _cpu_s(task: int | str) -> float:
    """Processor time of a process, or of `PROCESS/task/THREAD`, s; 0 where the system does not tell."""
    user, system = [*stat(task)[11:13], "0", "0"][:2]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _private_bytes(pid: int) -> int:
    """Memory that a process shares with none; a forked worker owns what it, or its reference counts, wrote to."""
    lines = read(f"/proc/{pid}/smaps_rollup").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty:"))
