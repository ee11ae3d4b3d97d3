import os
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

KINDS = ["pump", "valve", "fan", "motor", "heater"]
FIELDS = ["temperature", "pressure", "vibration", "current"]


class Records(Dataset):
    def __init__(self, n=2000, length=48):
        rng = random.Random(1)
        self.items = []
        for i in range(n):
            kind = rng.choice(KINDS)
            readings = [{f: rng.gauss(KINDS.index(kind), 1.0) for f in FIELDS} for _ in range(length)]
            self.items.append({"id": f"unit-{i}", "kind": kind, "readings": readings, "fault": rng.random() < 0.3})

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate_records(batch):
    rows, kinds, labels = [], [], []
    for item in batch:
        series = []
        for reading in item["readings"]:
            values = [reading[f] for f in FIELDS]
            mean = sum(values) / len(values)
            series.append([torch.tensor(v - mean) for v in values])
        rows.append(torch.stack([torch.stack(s) for s in series]))
        kinds.append(KINDS.index(item["kind"]))
        labels.append(float(item["fault"]))
    return torch.stack(rows), torch.tensor(kinds), torch.tensor(labels)


class FaultNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.kind = nn.Embedding(len(KINDS), 16)
        self.conv = nn.Sequential(nn.Conv1d(4, 64, 5, padding=2), nn.ReLU(), nn.Conv1d(64, 64, 5, padding=2), nn.ReLU())
        self.out = nn.Linear(64 + 16, 1)

    def forward(self, x, kind):
        h = self.conv(x.transpose(1, 2)).mean(-1)
        return self.out(torch.cat([h, self.kind(kind)], 1)).squeeze(1)


def forever(loader):
    while True:
        for batch in loader:
            yield batch


def main(steps):
    torch.manual_seed(0)
    loader = DataLoader(Records(), batch_size=32, shuffle=True, drop_last=True, collate_fn=collate_records)
    net = FaultNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    stream = forever(loader)
    for step in range(steps):
        x, kind, y = next(stream)
        loss = nn.functional.binary_cross_entropy_with_logits(net(x, kind), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, round(loss.item(), 4))


if __name__ == "__main__":
    main(int(os.environ.get("STEPS", 80)))
