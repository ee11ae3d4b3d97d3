"""Segment points of synthetic lidar sweeps; logs memory of the job next to the loss."""

import os
import subprocess
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

CLASSES = 4


def make_sweeps(count, points, seed=0):
    rng = np.random.default_rng(seed)
    xyz = rng.normal(0, 1, (count, points, 3)).astype(np.float32)
    label = (xyz[..., 2] > 0.3).astype(np.int64) + 2 * (xyz[..., 0] * xyz[..., 1] > 0)
    return torch.from_numpy(xyz), torch.from_numpy(label)


class PointNet(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.local = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.glob = nn.Linear(width, width)
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, CLASSES))

    def forward(self, xyz):
        local = self.local(xyz)
        pooled = self.glob(local).amax(1, keepdim=True).expand_as(local)
        return self.head(torch.cat([local, pooled], -1))


class RunLog:
    def __init__(self, path):
        self.path = path
        self.rows = []

    def usage(self):
        out = subprocess.check_output(["ps", "-o", "rss=,pcpu=", "-p", str(os.getpid())], text=True)
        rss, cpu = out.split()
        host = subprocess.check_output(["free", "-m"], text=True).splitlines()[1].split()
        return int(rss) / 1024, float(cpu), int(host[-1])

    def add(self, step, loss):
        self.rows.append((step, loss, *self.usage()))

    def last(self):
        return "step {} loss {:.3f} rss {:.0f} MB cpu {:.0f}% free {} MB".format(*self.rows[-1])

    def save(self):
        with open(self.path, "w") as f:
            for row in self.rows:
                f.write(",".join(str(v) for v in row) + "\n")


def main(steps=250, batch_size=3):
    torch.manual_seed(0)
    xyz, label = make_sweeps(120, 512)
    model = PointNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    log = RunLog("/tmp/lidar_segment.csv")
    start = time.time()
    for step in range(1, steps + 1):
        pick = torch.randint(0, len(xyz), (batch_size,))
        logits = model(xyz[pick])
        loss = F.cross_entropy(logits.flatten(0, 1), label[pick].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.add(step, loss.item())
        if step % 50 == 0:
            print(log.last())
    log.save()
    print(f"done in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
