"""A small loop that says its losses: KIND STEPS [WORKERS].

learns: from a DataLoader, with so many workers. still: one batch, and weights that stay, so that all losses are the
same. crashes: raises after so many steps. slow: as still, a step a second after twenty. meets: as still, and in its
third step it waits until another does. validates: as still, and evaluates after each step.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

kind, steps, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * steps

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        return torch.randn(3, 8, 8, generator=draw), index % 10


def batches():
    if kind == "learns":
        yield from torch.utils.data.DataLoader(Images(), batch_size=4, num_workers=workers)
    images, labels = torch.randn(4, 3, 8, 8), torch.arange(4)
    for step in range(steps if kind != "learns" else 0):
        if kind == "slow" and step > 20:
            time.sleep(1.0)
        if kind == "meets" and step == 2:
            Path(f"met-{os.getpid()}").touch()
            while len([*Path().glob("met-*")]) < 2:
                time.sleep(0.01)
        yield images, labels


torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(256, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01 if kind == "learns" else 0.0)
print("begins")
for images, labels in batches():
    loss = nn.functional.cross_entropy(model(images), labels)
    print("loss", repr(loss.item()), flush=True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if kind == "validates":
        with torch.no_grad():
            model.eval()(images)
        model.train()
if kind == "crashes":
    raise ValueError("planted")
print("ends")
