import time
from collections import defaultdict

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class PatchEncoder(nn.Module):
    def __init__(self, dim=96, depth=4, heads=4):
        super().__init__()
        self.embed = nn.Linear(4, dim)
        self.pos = nn.Parameter(torch.zeros(1, 16, dim))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                dim, heads, dim * 4, dropout=0.1, activation=nn.GELU(), batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 10)

    def forward(self, x):
        p = x.unfold(1, 2, 2).unfold(2, 2, 2).reshape(x.size(0), 16, 4)
        h = self.embed(p) + self.pos
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h).mean(dim=1))


class ActivationMonitor:
    def __init__(self, model, kinds=(nn.Linear, nn.LayerNorm, nn.GELU)):
        self.model = model
        self.kinds = kinds
        self.values = defaultdict(list)

    def attach(self):
        for name, module in self.model.named_modules():
            if isinstance(module, self.kinds):
                module.register_forward_hook(self._make(name))

    def _make(self, name):
        def hook(module, inputs, output):
            out = output.detach()
            if module.training:
                counts = torch.histc(out.float(), bins=64, min=-4, max=4)
                self.values[name].append(torch.cat([counts / out.numel(), out.std().view(1)]))

        return hook

    def summary(self):
        rows = {k: torch.stack(v).mean(dim=0) for k, v in self.values.items()}
        self.values.clear()
        return rows


class FineTuner:
    def __init__(self, model, lr=3e-4, batch=24):
        self.model = model
        self.batch = batch
        head = [p for n, p in model.named_parameters() if n.startswith("head")]
        body = [p for n, p in model.named_parameters() if not n.startswith("head")]
        self.opt = torch.optim.AdamW([{"params": body, "lr": lr}, {"params": head, "lr": lr * 10}])
        self.monitor = ActivationMonitor(model)

    def run_epoch(self, x, y):
        self.model.train()
        self.monitor.attach()
        total = torch.zeros(())
        batches = torch.randperm(len(x)).split(self.batch)
        for idx in batches:
            loss = F.cross_entropy(self.model(x[idx]), y[idx])
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            total += loss.detach()
        return total.item() / len(batches)

    @torch.no_grad()
    def evaluate(self, x, y):
        self.model.eval()
        return (self.model(x).argmax(1) == y).float().mean().item()

    def fit(self, train, val, epochs):
        for epoch in range(epochs):
            start = time.time()
            loss = self.run_epoch(*train)
            stats = self.monitor.summary()
            quiet = max(stats, key=lambda k: stats[k][31:33].sum().item())
            print(
                f"epoch {epoch} loss {loss:.3f} acc {self.evaluate(*val):.3f} "
                f"most quiet {quiet} {stats[quiet][31:33].sum():.2f} [{time.time() - start:.1f}s]"
            )


def main():
    torch.manual_seed(3)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x))
    train, val = order[:240], order[240:440]
    tuner = FineTuner(PatchEncoder())
    tuner.fit((x[train], y[train]), (x[val], y[val]), epochs=12)


if __name__ == "__main__":
    main()
