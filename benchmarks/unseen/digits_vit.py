"""Tiny ViT on the scikit-learn digits, with per-sample learning dynamics kept for later analysis."""

import json
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class TinyViT(nn.Module):
    def __init__(self, dim=80, depth=2, heads=4, n_classes=10):
        super().__init__()
        self.embed = nn.Linear(4, dim)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(0.02 * torch.randn(1, 17, dim))
        layer = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, n_classes)

    def forward(self, x):
        b = x.shape[0]
        patches = x.view(b, 4, 2, 4, 2).transpose(2, 3).reshape(b, 16, 4)
        tokens = torch.cat([self.cls.expand(b, -1, -1), self.embed(patches)], dim=1)
        return self.head(self.encoder(tokens + self.pos)[:, 0])


class DynamicsLog:
    """Per-sample loss and confidence over training (for dataset cartography plots)."""

    def __init__(self, path):
        self.path = path
        self.records = []

    def add(self, epoch, step, idx, losses, probs):
        for i, l, p in zip(idx.tolist(), losses.tolist(), probs.tolist()):
            self.records.append(
                {"epoch": epoch, "step": step, "sample": i, "loss": round(l, 5), "confidence": round(p, 5)}
            )
        self.save()

    def save(self):
        with open(self.path, "w") as f:
            json.dump(self.records, f)


class Trainer:
    def __init__(self, out_dir, batch_size=64, lr=1e-3):
        torch.manual_seed(0)
        digits = load_digits()
        x = torch.tensor(digits.data, dtype=torch.float32) / 16
        y = torch.tensor(digits.target)
        perm = torch.randperm(len(x))
        self.train_x, self.train_y = x[perm[297:]], y[perm[297:]]
        self.test_x, self.test_y = x[perm[:297]], y[perm[:297]]
        self.batch_size = batch_size
        self.model = TinyViT()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=lr, fused=True)
        self.dynamics = DynamicsLog(os.path.join(out_dir, "dynamics.json"))
        self.step = 0

    def train_epoch(self, epoch):
        self.model.train()
        for idx in torch.randperm(len(self.train_x)).split(self.batch_size):
            target = self.train_y[idx]
            logits = self.model(self.train_x[idx])
            losses = F.cross_entropy(logits, target, reduction="none")
            self.opt.zero_grad(set_to_none=True)
            losses.mean().backward()
            self.opt.step()
            self.step += 1

            probs = logits.detach().softmax(1).gather(1, target[:, None]).squeeze(1)
            self.dynamics.add(epoch, self.step, idx, losses.detach(), probs)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        return (self.model(self.test_x).argmax(1) == self.test_y).float().mean().item()

    def fit(self, epochs):
        begin = time.perf_counter()
        for epoch in range(epochs):
            self.train_epoch(epoch)
            print(f"epoch {epoch}: test accuracy {self.evaluate():.3f}")
        print(f"{(time.perf_counter() - begin) * 1e3 / self.step:.1f} ms/step")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as out:
        Trainer(out).fit(epochs=5)
