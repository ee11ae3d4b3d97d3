"""Conversion model on the length-prefixed event log."""

import os
import struct
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

FEATURES = 2048


def write_shards(folder, shards, records):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(FEATURES)
    paths = []
    for shard in range(shards):
        path = os.path.join(folder, f"events-{shard:02d}.bin")
        with open(path, "wb") as file:
            for _ in range(records):
                x = rng.standard_normal(FEATURES, dtype=np.float32)
                body = struct.pack("<f", float(x @ weights > 0)) + x.tobytes()
                file.write(struct.pack("<I", len(body)) + body)
        paths.append(path)
    return paths


class EventLog(IterableDataset):
    def __init__(self, paths):
        self.paths = paths

    def records(self, path):
        with open(path, "rb") as file:
            data = file.read()
        while data:
            (size,) = struct.unpack("<I", data[:4])
            body = data[4 : 4 + size]
            data = data[4 + size :]
            yield body

    def __iter__(self):
        for path in self.paths:
            for body in self.records(path):
                label = struct.unpack("<f", body[:4])[0]
                x = np.frombuffer(body, dtype=np.float32, offset=4)
                yield torch.from_numpy(x.copy()), label


def build_model():
    return nn.Sequential(nn.Linear(FEATURES, 384), nn.ReLU(), nn.Linear(384, 256), nn.ReLU(), nn.Linear(256, 1))


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        paths = write_shards(folder, shards=2, records=4400)
        loader = DataLoader(EventLog(paths), batch_size=32)
        model = build_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        loss_fn = nn.BCEWithLogitsLoss()
        for step, (x, label) in enumerate(loader):
            loss = loss_fn(model(x).squeeze(1), label.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 25 == 0:
                print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
