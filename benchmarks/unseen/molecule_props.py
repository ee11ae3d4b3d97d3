"""Multi-target property regression from fingerprints (Tox21/QM9-like setup on generated data)."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

TARGETS = {"logp": 1.0, "solubility": 0.5, "gap": 2.0, "dipole": 1.0}


class ResidualBlock(nn.Module):
    def __init__(self, dim, p=0.1):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, dim)
        self.fc2 = nn.Linear(dim, dim)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        return x + self.drop(self.fc2(torch.relu(self.fc1(self.norm(x)))))


class PropertyNet(nn.Module):
    def __init__(self, n_bits, dim, depth, targets):
        super().__init__()
        self.stem = nn.Linear(n_bits, dim)
        self.trunk = nn.Sequential(*[ResidualBlock(dim) for _ in range(depth)])
        self.heads = nn.ModuleDict({t: nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, 1)) for t in targets})

    def forward(self, x):
        h = self.trunk(self.stem(x))
        return {t: head(h).squeeze(-1) for t, head in self.heads.items()}


def synth(n, n_bits, seed):
    g = torch.Generator().manual_seed(seed)
    x = (torch.rand(n, n_bits, generator=g) < 0.08).float()
    w = torch.randn(n_bits, len(TARGETS), generator=torch.Generator().manual_seed(99)) / 8
    y = torch.tanh(x @ w) + 0.05 * torch.randn(n, len(TARGETS), generator=g)
    return TensorDataset(x, y)


class Trainer:
    def __init__(self, model, train_set, val_set, batch_size=128, lr=1e-3):
        self.model = model
        self.train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True, drop_last=True)
        self.val_loader = DataLoader(val_set, batch_size=512)
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr)
        self.criterion = nn.MSELoss()
        self.global_step = 0

    def compute_losses(self, x, y):
        out = self.model(x)
        return {name: weight * self.criterion(out[name], y[:, i]) for i, (name, weight) in enumerate(TARGETS.items())}

    def training_step(self, x, y):
        losses = self.compute_losses(x, y)
        self.opt.zero_grad()
        for name in TARGETS:
            losses[name].backward(retain_graph=True)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        return losses

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        total = {name: 0.0 for name in TARGETS}
        for x, y in self.val_loader:
            for name, value in self.compute_losses(x, y).items():
                total[name] += value.item() / len(self.val_loader)
        self.model.train()
        return total

    def fit(self, epochs):
        for epoch in range(epochs):
            for x, y in self.train_loader:
                losses = self.training_step(x, y)
                self.global_step += 1
                if self.global_step % 20 == 0:
                    line = " ".join(f"{k}={v.item():.4f}" for k, v in losses.items())
                    print(f"[{self.global_step}] {line}")
            report = self.validate()
            print(f"epoch {epoch}: " + " ".join(f"val_{k}={v:.4f}" for k, v in report.items()))


if __name__ == "__main__":
    torch.manual_seed(1)
    net = PropertyNet(n_bits=1024, dim=320, depth=3, targets=TARGETS)
    trainer = Trainer(net, synth(128 * 50, 1024, 0), synth(1024, 1024, 1))
    trainer.fit(epochs=3)
