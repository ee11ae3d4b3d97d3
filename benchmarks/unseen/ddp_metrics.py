"""Run with: torchrun --nproc-per-node 2 26_ddp_metrics.py"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CLASSES = 40
STEPS = int(os.environ.get("STEPS", 80))


def mean_over_ranks(value):
    t = torch.tensor(float(value))
    dist.all_reduce(t)
    return t.item() / dist.get_world_size()


class Meter:
    def __init__(self):
        self.history = []

    def update(self, loss, logits, y):
        pred = logits.argmax(1)
        hit = torch.bincount(y[pred == y], minlength=CLASSES).tolist()
        seen = torch.bincount(y, minlength=CLASSES).tolist()
        dist.barrier()
        row = {"loss": mean_over_ranks(loss.detach())}
        for c in range(CLASSES):
            row[f"hit_{c}"] = mean_over_ranks(hit[c])
            row[f"seen_{c}"] = mean_over_ranks(seen[c])
        self.history.append(row)
        return row


def build_model():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, CLASSES),
    )


def main():
    dist.init_process_group(backend="gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    images = torch.randn(256, 3, 32, 32)
    labels = torch.randint(0, CLASSES, (256,))
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    meter = Meter()
    for step in range(STEPS):
        pick = torch.randint(0, 256, (32,))
        logits = model(images[pick])
        loss = nn.functional.cross_entropy(logits, labels[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        row = meter.update(loss, logits.detach(), labels[pick])
        if rank == 0 and step % 20 == 0:
            print(f"step {step} mean loss {row['loss']:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
