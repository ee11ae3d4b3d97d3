"""Runs the in-process half of a lever on a real DataLoader, with the seams of the data and without a training loop."""

import random
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from hotlap.agent.apart import apart
from hotlap.agent.guard import Guard
from hotlap.agent.seams import Refused


class DataSeams:
    """As `agent.seams.Seams`, for loaders and batches; keeps what it was told."""

    def __init__(self) -> None:
        self.agent: Any = SimpleNamespace(guard=Guard())
        self.looks: list[Callable[[Any], None]] = []
        self.fetches: list[Callable[[Any, Callable[[], Any]], Any]] = []
        self.refused: list[str] = []

    def on_loader(self, change: Callable[[Any], None], inference: bool = False) -> None:
        self.looks.append(change)

    def on_batch(self, fetch: Callable[[Any, Callable[[], Any]], Any]) -> None:
        self.fetches.append(fetch)

    def refuse(self, lever: str, why: str) -> None:
        self.refused.append(why)

    leave_out = refuse

    def apart(self, work: Callable[[], str], seconds: float) -> str | None:
        return apart(self.agent, work, seconds)

    def look(self, loader: Any) -> None:
        """What happens before a loader is iterated. A lever that can't be put in is taken out, as the agent does."""
        for look in self.looks:
            try:
                look(loader)
            except (RuntimeError, Refused) as error:
                self.refused.append(str(error))

    def epoch(self, loader: Any) -> list[Any]:
        """One pass over a loader, as the patched iteration makes it."""
        self.look(loader)
        iterator, batches = iter(loader), []
        while True:
            fetch: Callable[[], Any] = partial(next, iterator)
            for wrap in self.fetches:
                fetch = partial(wrap, iterator, fetch)
            try:
                batches.append(fetch())
            except StopIteration:
                return batches


def bare(loader: Any, epochs: int) -> list[list[Any]]:
    """The batches of a loader that nothing touches."""
    return [list(loader) for _ in range(epochs)]


def leaves(batch: Any) -> list[Any]:
    """The tensors of a batch."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    items = batch.values() if isinstance(batch, dict) else batch
    return [leaf for item in items for leaf in leaves(item)]


def same(one: list[list[Any]], two: list[list[Any]]) -> bool:
    """Whether epochs hold the same batches, bit for bit and in the same containers."""
    if [len(epoch) for epoch in one] != [len(epoch) for epoch in two]:
        return False
    pairs = [(a, b) for left, right in zip(one, two, strict=True) for a, b in zip(left, right, strict=True)]
    return all(
        type(a) is type(b) and all(torch.equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))
        for a, b in pairs
    )


class Counted(Dataset):
    """Deterministic samples that are made each time, and counts how often (in this process)."""

    def __init__(self, rows: int = 40) -> None:
        self.rows = rows
        self.made: list[int] = []

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return torch.arange(4).float() * index, index % 3


class Augmented(Counted):
    """Draws from Python's generator now and then."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return torch.arange(4).float() + random.random(), index % 3


class Windows(Dataset):
    """Slices of a text, as language models are trained on."""

    def __init__(self) -> None:
        self.tokens = torch.arange(400)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        chunk = self.tokens[index * 9 : index * 9 + 10]
        return {"x": chunk[:-1], "y": chunk[1:]}


class Growing(Windows):
    """Of more and more windows, as something that it holds says."""

    def __init__(self) -> None:
        super().__init__()
        self.found = SimpleNamespace(windows=32)

    def __len__(self) -> int:
        return self.found.windows


def loader(dataset: Any, **options: Any) -> Any:
    """A shuffling loader whose order a seed fixes."""
    generator = torch.Generator().manual_seed(3)
    return DataLoader(dataset, **{"batch_size": 8, "shuffle": True, "generator": generator, **options})
