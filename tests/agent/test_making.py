"""What the agent tells of how batches are made, and of what the loop costs the host."""

import gc
import queue
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from hotlap.agent import host, loaders, torch_internals
from hotlap.agent.facts import loader as loader_facts
from hotlap.agent.facts.loader import describe_loader

from .harness import Runner, check_clean


class Rows(torch.utils.data.Dataset):
    def __init__(self, draws: bool = False) -> None:
        self.draws = draws
        self.names = [[f"row {i}", i] for i in range(40)]

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index + (random.random() if self.draws else 0)])


class Stream(IterableDataset):
    """Shards itself, or not."""

    def __init__(self, shards: bool) -> None:
        self.shards = shards

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        first, of = (info.id, info.num_workers) if self.shards and info is not None else (0, 1)
        return (torch.tensor([i, i * i]) for i in range(first, 64, of))


def followed(loader: Any, probing: bool = False) -> dict[str, Any]:
    """The facts of a loader after a pass over it."""
    facts = defaultdict(int, describe_loader(loader), workers=loader.num_workers)
    facts["iterable"] = isinstance(loader.dataset, IterableDataset)
    making, iterator = loaders.Making(), iter(loader)
    while True:
        making.begin(probing)
        batch = next(iterator, None)
        if batch is None:
            return facts
        making.end(iterator, facts, batch)
        facts["batches"] += 1


def test_batches_of_workers_that_are_there_when_they_are_asked_for_are_told_from_late_ones() -> None:
    there = queue.Queue[int]()
    iterator = SimpleNamespace(_task_info={3: (0,)}, _rcvd_idx=3, _data_queue=there)
    assert torch_internals.is_late(iterator)
    there.put(1)
    assert not torch_internals.is_late(iterator)
    there.get()
    iterator._task_info[3] = (0, "a batch that came before its turn")
    assert not torch_internals.is_late(iterator)


@pytest.mark.parametrize("pinned", [False, True])
def test_an_iterator_of_workers_is_as_that_expects(pinned: bool) -> None:
    loader = DataLoader(Rows(), batch_size=4, num_workers=1, pin_memory=pinned)
    iterator, late = iter(loader), []
    for _ in iterator:
        time.sleep(0.05)
        late.append(torch_internals.is_late(iterator))
    assert len(late) == 10 and not all(late), "the worker makes two ahead"
    with pytest.raises(AttributeError):
        torch_internals.is_late(iter(DataLoader(Rows())))


EPOCH = 12
"""Batches of `tested.py`."""


@pytest.mark.parametrize(
    ("kind", "epochs"), [("plain", 2), ("ahead", 2), ("before", 2), ("between", 2), ("after", 2), ("infer", 1)]
)
def test_batches_count_that_steps_were_made_of(kind: str, epochs: int, runner: Runner) -> None:
    """Not the first of workers that have just started, nor those that a test with gradients looked at, nor an epoch's
    end, at which a batch is asked for that there is not."""
    ran = runner.forked("tested.py", kind)
    check_clean(ran)
    assert ran.code == 0
    found = ran.facts.feeding
    assert found is not None
    assert found.asked == epochs * (EPOCH - 1)
    assert found.late <= found.asked


def test_a_loader_is_described_without_asking_its_dataset() -> None:
    told = describe_loader(DataLoader(TensorDataset(torch.zeros(20, 2)), batch_size=8))
    assert (told["rows"], told["epoch_batches"]) == (20, 3)
    assert told["default_collate"] and told["holds_tensors"]
    told = describe_loader(DataLoader(Rows(), batch_size=8, collate_fn=list, sampler=range(4)))
    assert (told["rows"], told["default_collate"], told["holds_tensors"]) == (None, False, False)


def test_draws_without_end_are_not_rows() -> None:
    """minGPT asks its sampler for 1e10 draws an epoch."""
    rows = Rows()
    sampler = torch.utils.data.RandomSampler(rows, replacement=True, num_samples=int(1e10))
    assert describe_loader(DataLoader(rows, batch_size=8, sampler=sampler))["rows"] == 40


def test_many_objects_are_counted_with_those_inside(monkeypatch: Any) -> None:
    assert "objects" not in describe_loader(DataLoader(Rows()))
    monkeypatch.setattr(loader_facts, "MANY_OBJECTS", 100)
    told = describe_loader(DataLoader(Rows()))
    assert (told["objects_in"], told["objects"]) == ("names", 120)


def test_random_draws_of_samples_are_seen_but_not_those_of_the_sampler() -> None:
    assert followed(DataLoader(Rows(draws=True), batch_size=8, shuffle=True), probing=True)["draws"] is True
    assert followed(DataLoader(Rows(), batch_size=8, shuffle=True), probing=True)["draws"] is False
    facts = followed(DataLoader(Rows(), batch_size=8))
    assert "draws" not in facts and 0 < facts["making_cpu"] <= 1


BUSY = """
import hashlib, os, sys, threading
def work(file=None):
    while True:
        hashlib.sha256(bytes(1 << 20))
        if file:
            os.write(file, b"x")
for _ in range(int(sys.argv[1])):
    threading.Thread(target=work, daemon=True).start()
threading.Thread(target=work, args=[os.open(os.devnull, os.O_WRONLY)], daemon=True).start()
print("busy", flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_of_a_worker_that_compute(threads: int) -> None:
    """Its main thread, which waits here, is none of them, nor is one that hands batches over."""
    with subprocess.Popen([sys.executable, "-c", BUSY, str(threads)], stdout=subprocess.PIPE) as worker:
        try:
            assert worker.stdout is not None and worker.stdout.readline() == b"busy\n"
            iterator = SimpleNamespace(_workers=[worker])
            making, facts = loaders.Making(), {"workers": 1, "objects": 0, "worker_threads": 0}
            making._iterator = lambda: iterator
            making.look_at_workers(facts)
            assert facts["worker_threads"] == 0
            limit = time.monotonic() + 60
            while facts["worker_threads"] < threads and time.monotonic() < limit:
                time.sleep(0.1)
                making.look_at_workers(facts)
            assert facts["worker_threads"] == threads
        finally:
            worker.kill()


def test_rows_that_two_workers_deliver_alike() -> None:
    assert followed(DataLoader(Stream(shards=False), batch_size=4, num_workers=2))["repeated_rows"] == 4
    assert followed(DataLoader(Stream(shards=True), batch_size=4, num_workers=2))["repeated_rows"] == 0


def looked_at(counted: host.Host, steps: int) -> dict[str, Any] | None:
    """What is told after so many steps more, of which the last one is looked at."""
    counted.passed(steps, "train", evaluated=False, disturbed=False)
    counted.look(evaluated=False)
    return counted.cost.facts()


def test_pauses_and_faults_are_counted_from_the_warm_step_on() -> None:
    counted = host.Host()
    counted.install()
    try:
        assert looked_at(counted, 3) is None
        assert looked_at(counted, host.WARM_STEPS - 3) is None
        gc.collect()
        kept = bytearray(64 * 2**20)
        found = looked_at(counted, host.SURE[0] - host.WARM_STEPS)
    finally:
        gc.callbacks.remove(counted.pauses.callback)
    assert found is not None and found["steps"] == (steps := host.SURE[0] - host.WARM_STEPS)
    assert found["collections"] >= 1 and found["gc_ms"] > 0
    assert found["faults"] * steps * 4096 >= 0.5 * len(kept) or found["faults"] > 1  # huge pages make fewer
    assert found["major"] >= 0 and found["involuntary"] >= 0
    assert found["waited_ms"] is None or 0 <= found["waited_ms"] <= found["threads_waited_ms"]


def test_waits_for_a_core_are_counted_by_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that end meanwhile, and kernels that do not count, are passed over."""
    told = {"7": "900 2500000000 3\n", "8": "1 0 1\n", "9": "", "12": "0 0 0\n"}
    monkeypatch.setattr(host, "threads", lambda pid: [*told])
    monkeypatch.setattr(host, "read", lambda path: told[path.split("/")[-2]])
    assert host.waited() == {7: 2.5, 8: 0.0}
    told.clear()
    assert host.waited() == {}


def test_waits_of_threads_are_told_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the thread that trains, and of all that are there, those that began later from nothing."""
    mine = threading.get_native_id()
    told = [{mine: 1.0, 5: 2.0, 6: 9.0}, {mine: 1.1, 5: 2.5, 7: 0.4}, {}]
    monkeypatch.setattr(host, "waited", lambda: told.pop(0))
    counted = host.Host()
    assert looked_at(counted, host.WARM_STEPS) is None
    found = looked_at(counted, host.SURE[0] - host.WARM_STEPS)
    assert found is not None
    assert (found["waited_ms"], found["threads_waited_ms"]) == (pytest.approx(10.0), pytest.approx(100.0))
    found = looked_at(counted, host.SURE[1] - host.SURE[0])
    assert found is not None and found["waited_ms"] is None and found["threads_waited_ms"] is None


@pytest.mark.parametrize(
    ("sample", "views"),
    [
        (lambda self, i: self.x[i], True),
        (lambda self, i: (self.x[i], {"y": self.y[i]}), True),
        (lambda self, i: self.x[i] / 255, False),
        (lambda self, i: (self.x[i], i), False),
        (lambda self, i: self.x[i].numpy(), False),
    ],
)
def test_samples_that_are_views_are_known_from_the_second_batch(sample: Any, views: bool) -> None:
    class Held(Rows):
        x, y = torch.zeros(40, 2), torch.zeros(40)
        __getitem__ = sample

    loader = DataLoader(Held(), batch_size=8)
    assert followed(loader, probing=True).get("views") is views
    assert "views" not in followed(loader), "only where evidence is taken"
    assert followed(DataLoader(Held(), batch_size=1), probing=True).get("views") is None


def test_the_look_at_the_samples_leaves_the_batches_as_they_are() -> None:
    loader = DataLoader(TensorDataset(torch.arange(40.0)), batch_size=8)
    facts = defaultdict(int, describe_loader(loader))
    making, iterator, got = loaders.Making(), iter(loader), []
    for _ in range(5):
        making.begin(True)
        got.append(next(iterator))
        making.end(iterator, facts, got[-1])
        facts["batches"] += 1
    assert torch.cat([x for (x,) in got]).tolist() == list(range(40)) and facts["views"] is True
    assert iterator._dataset_fetcher.collate_fn is loader.collate_fn
