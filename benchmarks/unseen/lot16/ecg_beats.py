"""Beat classification on simulated ECG leads, with early stopping."""

import argparse
import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def simulate(n, length, classes, seed):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(classes, (n,), generator=g)
    t = torch.linspace(-1, 1, length)
    shift = 0.1 * torch.randn(n, 1, generator=g)
    width = 0.04 + 0.02 * label[:, None]
    qrs = torch.exp(-(((t - shift) / width) ** 2))
    twave = 0.3 * torch.exp(-(((t - shift - 0.4) / 0.15) ** 2)) * (1 - 0.35 * label[:, None])
    lead1 = qrs + twave + 0.3 * torch.randn(n, length, generator=g)
    lead2 = 0.7 * qrs - 0.2 * twave + 0.3 * torch.randn(n, length, generator=g)
    return TensorDataset(torch.stack([lead1, lead2], dim=1), label)


class Block(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv1 = nn.Conv1d(cin, cout, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm1d(cout)
        self.conv2 = nn.Conv1d(cout, cout, 5, padding=2, bias=False)
        self.bn2 = nn.BatchNorm1d(cout)
        self.skip = nn.Conv1d(cin, cout, 1, stride=2, bias=False)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.skip(x))


class BeatNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.blocks = nn.Sequential(Block(2, 16), Block(16, 32), Block(32, 32))
        self.out = nn.Linear(32, classes)

    def forward(self, x):
        return self.out(self.blocks(x).mean(dim=-1))


@torch.no_grad()
def validate(model, loader):
    model.eval()
    loss, hits, seen = 0.0, 0, 0
    for x, y in loader:
        logits = model(x)
        loss += F.cross_entropy(logits, y, reduction="sum").item()
        hits += (logits.argmax(1) == y).sum().item()
        seen += len(y)
    model.train()
    return loss / seen, hits / seen


def train(args):
    torch.manual_seed(args.seed)
    data = simulate(args.beats, args.length, args.classes, args.seed)
    held = int(0.35 * len(data))
    train_set, val_set = random_split(data, [len(data) - held, held])
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set)
    model = BeatNet(args.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
    best, best_state, patience, step = float("inf"), None, args.patience, 0
    while step < args.steps and patience > 0:
        for x, y in train_loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
        val_loss, acc = validate(model, val_loader)
        print(f"step {step:5d}  train {loss.item():.4f}  val {val_loss:.4f}  acc {acc:.3f}")
        if val_loss < best:
            best, best_state, patience = val_loss, copy.deepcopy(model.state_dict()), args.patience
        else:
            patience -= 1
    model.load_state_dict(best_state)
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--beats", type=int, default=3200)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=40)
    parser.add_argument("--steps", type=int, default=1924)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--patience", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())
