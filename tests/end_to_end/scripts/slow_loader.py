"""A loop whose samples take time to make (a sleep, so that worker processes win on any machine), in epochs longer than
a trial. Its steps sleep too, so that those with workers take about the same time in each run.

`leave-children N`: with processes that sleep for N seconds, which it leaves behind. `crash-in-workers` and
`hang-in-workers`: what the workers do. `ranks`: DDP over gloo, under torchrun. There is no optimizer: importing
what it needs takes a third of a trial.
"""

import sys
import time

import torch
from torch import nn


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        if "hang-in-workers" in sys.argv and torch.utils.data.get_worker_info() is not None:
            time.sleep(1000)
        if "crash-in-workers" in sys.argv and torch.utils.data.get_worker_info() is not None:
            raise ValueError("planted")
        time.sleep(0.01)
        return torch.full((16,), float(index)), index % 4


def by_hand(parameters):
    with torch.no_grad():
        for parameter in parameters:
            parameter -= 1e-3 * parameter.grad
            parameter.grad = None


def main():
    torch.manual_seed(0)
    if "leave-children" in sys.argv:
        import subprocess

        seconds = sys.argv[sys.argv.index("leave-children") + 1]
        subprocess.Popen(["sleep", seconds])
        subprocess.Popen(["sleep", seconds], start_new_session=True)
    model, data = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), Slow()
    sampler = torch.utils.data.RandomSampler(data)
    if "ranks" in sys.argv:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        sampler = torch.utils.data.DistributedSampler(data)
    parameters = list(model.parameters())
    for epoch in range(100):
        for x, y in torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            by_hand(parameters)
            time.sleep(0.025)
        print(epoch, repr(loss.item()), flush=True)


if __name__ == "__main__":
    main()
