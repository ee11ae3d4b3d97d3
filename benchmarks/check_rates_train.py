"""The script that `check_rates.py` checks: a classifier of scikit-learn's digits, one thread, 5 to 20 ms a step.

    python benchmarks/check_rates_train.py [--slower 0.05] [--steps 200]

`--slower` adds work of its own to each step: matrix products whose results are thrown away, `PIECES` of them for all of
a step's CPU time. `--calibrate` measures what that comes to, in CPU time, in epochs by turns in one process.
With `--steps` it ends by itself and prints the mean step time of all but the first 10.
"""

import argparse
import gzip
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH, ROWS = 640, 160
PIECES = 575.0
"""Products of the additional work that take as much CPU time as a whole step."""
SMALL = 32
UNTIMED = 10
CYCLES = 200


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels from scikit-learn's file, without its import, which takes longer than all else of a start."""
    found = find_spec("sklearn")
    assert found is not None and found.origin is not None
    with gzip.open(Path(found.origin).parent / "datasets/data/digits.csv.gz") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    return torch.tensor(table[:, :-1]) / 16, torch.tensor(table[:, -1]).long()


class Training:
    """A model and all that one step needs. pieces: of additional work in each step."""

    def __init__(self, pieces: int = 0) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        rows = TensorDataset(*digits())
        self.loader = DataLoader(rows, batch_size=ROWS, shuffle=True, drop_last=True)
        self.model = nn.Sequential(
            nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.criterion = nn.CrossEntropyLoss()
        self.pieces = pieces
        self.left, self.right = torch.ones(SMALL, WIDTH), torch.ones(WIDTH, SMALL)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """One step of training; its loss."""
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        for _ in range(self.pieces):
            self.left @ self.right
        return loss.detach()


def calibrate(slower: float) -> None:
    """CPU time of steps with the additional work over that of steps without, by epochs in turn."""
    training = Training()
    ratios, seconds = [], []
    for cycle in range(CYCLES):
        took = {}
        for pieces in (0, count(slower)) if cycle % 2 else (count(slower), 0):
            training.pieces = pieces
            begun = time.process_time()
            for images, labels in training.loader:
                training.step(images, labels)
            took[pieces] = time.process_time() - begun
        ratios.append(took[count(slower)] / took[0])
        seconds.append(took[0] / len(training.loader))
    ratios.sort()
    print(
        f"{count(slower)} products, {sorted(seconds)[CYCLES // 2] * 1000:.2f} ms of CPU a step without; with them ",
        end="",
    )
    print(
        f"{ratios[CYCLES // 2] - 1:+.2%} (quarters {ratios[CYCLES // 4] - 1:+.2%} to "
        f"{ratios[CYCLES * 3 // 4] - 1:+.2%})"
    )


def count(slower: float) -> int:
    """Of products, for a slowdown as a fraction."""
    return round(slower * PIECES)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Train a classifier of digits.")
    parser.add_argument("--slower", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--calibrate", action="store_true")
    options = parser.parse_args()
    if options.calibrate:
        calibrate(options.slower or 0.05)
        return
    training = Training(count(options.slower))
    done, begun = 0, time.perf_counter()
    while done < options.steps:
        for images, labels in training.loader:
            loss = training.step(images, labels)
            done += 1
            if done == UNTIMED:
                begun = time.perf_counter()
            if done == options.steps:
                break
        if done % 550 == 0:
            print(f"step {done}, loss {loss.item():.4f}", flush=True)
    print(f"mean step {(time.perf_counter() - begun) * 1000 / (done - UNTIMED):.4f} ms", flush=True)


if __name__ == "__main__":
    main()
