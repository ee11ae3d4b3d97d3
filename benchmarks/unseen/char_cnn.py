"""Character CNN for domain names, with a record of how the weights spread."""

import os

import numpy as np
import torch
import torch.nn as nn

STEPS = int(os.environ.get("STEPS", 80))
ALPHABET = 40
LENGTH = 32


class CharCNN(nn.Module):
    def __init__(self, dim=32, channels=128):
        super().__init__()
        self.embed = nn.Embedding(ALPHABET, dim)
        self.conv1 = nn.Conv1d(dim, channels, 5, padding=2)
        self.conv2 = nn.Conv1d(channels, channels, 3, padding=1)
        self.fc1 = nn.Linear(channels * 8, 1536)
        self.fc2 = nn.Linear(1536, 2)

    def forward(self, ids):
        x = self.embed(ids).transpose(1, 2)
        x = torch.relu(self.conv1(x))
        x = nn.functional.max_pool1d(torch.relu(self.conv2(x)), 4)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


class WeightLog:
    def __init__(self, bins=64):
        self.bins = bins
        self.rows = []

    def add(self, model, step):
        row = {"step": step}
        for name, weight in model.named_parameters():
            values = weight.detach().cpu().numpy()
            row[name] = np.histogram(values, bins=self.bins)
        self.rows.append(row)


def batch(gen, n=16):
    ids = torch.randint(0, ALPHABET, (n, LENGTH), generator=gen)
    return ids, (ids[:, 0] > ids[:, -1]).long()


def train(steps):
    gen = torch.Generator().manual_seed(1)
    model = CharCNN()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    criterion = nn.CrossEntropyLoss()
    log = WeightLog()
    for step in range(steps):
        ids, y = batch(gen)
        loss = criterion(model(ids), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.add(model, step)
        if step % 20 == 0:
            print("step", step, "loss", f"{loss.item():.4f}")
    return log


if __name__ == "__main__":
    torch.manual_seed(0)
    train(STEPS)
