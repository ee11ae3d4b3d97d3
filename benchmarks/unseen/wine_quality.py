import torch
import torch.nn as nn
import torch.nn.functional as F


class TabularResNet(nn.Module):
    def __init__(self, inputs=11, width=256, classes=7, blocks=3):
        super().__init__()
        self.stem = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(F.relu(x))


def split(n=5000, inputs=11, classes=7, frac=0.2):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, inputs, generator=g)
    w = torch.randn(inputs, classes, generator=g)
    y = (x @ w + 0.3 * torch.randn(n, classes, generator=g)).argmax(1)
    k = int(n * frac)
    return (x[k:], y[k:]), (x[:k], y[:k])


@torch.no_grad()
def evaluate(model, x, y, batch_size=250):
    model.eval()
    hits, loss = 0, 0.0
    for xb, yb in zip(x.split(batch_size), y.split(batch_size)):
        out = model(xb)
        loss += F.cross_entropy(out, yb, reduction="sum").item()
        hits += (out.argmax(1) == yb).sum().item()
    model.train()
    return loss / len(x), hits / len(x)


class EarlyStopping:
    def __init__(self, patience=200):
        self.best, self.bad, self.patience = float("inf"), 0, patience

    def __call__(self, value):
        self.bad = 0 if value < self.best else self.bad + 1
        self.best = min(self.best, value)
        return self.bad > self.patience


def main():
    torch.manual_seed(0)
    (x, y), (xv, yv) = split()
    model = TabularResNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    stopper = EarlyStopping()
    for epoch in range(4):
        for idx in torch.randperm(len(x)).split(200):
            loss = F.cross_entropy(model(x[idx]), y[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            val_loss, val_acc = evaluate(model, xv, yv)
            if stopper(val_loss):
                return
        print(f"epoch {epoch} train {loss.item():.3f} val {val_loss:.3f} acc {val_acc:.3f}")


if __name__ == "__main__":
    main()
