"""GRU tagger for machine states, with validation during training."""

import argparse
import os

import torch
import torch.nn as nn


def parse_args():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--steps", type=int, default=int(os.environ.get("STEPS", 80)))
    p.add_argument("--val-every", type=int, default=4)
    p.add_argument("--hidden", type=int, default=64)
    return p.parse_args()


class Tagger(nn.Module):
    def __init__(self, features, hidden, tags):
        super().__init__()
        self.rnn = nn.GRU(features, hidden, batch_first=True)
        self.out = nn.Linear(hidden, tags)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


def make_split(n, seed, length=40, features=16, tags=5):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, length, features, generator=g)
    y = x.cumsum(1)[..., :tags].argmax(-1)
    return x, y


@torch.no_grad()
def validate(model, x, y, batch=64):
    model.eval()
    right = 0
    for lo in range(0, len(x), batch):
        pred = model(x[lo : lo + batch]).argmax(-1)
        right += (pred == y[lo : lo + batch]).sum().item()
    model.train()
    return right / y.numel()


def main():
    args = parse_args()
    torch.manual_seed(0)
    train_x, train_y = make_split(4096, seed=1)
    val_x, val_y = make_split(1536, seed=2)
    model = Tagger(16, args.hidden, 5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    loss_fn = nn.CrossEntropyLoss()
    best = 0.0
    for step in range(args.steps):
        pick = torch.randint(0, len(train_x), (64,))
        logits = model(train_x[pick])
        loss = loss_fn(logits.flatten(0, 1), train_y[pick].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % args.val_every == 0:
            accuracy = validate(model, val_x, val_y)
            best = max(best, accuracy)
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f} best {best:.3f}")


if __name__ == "__main__":
    main()
