import os
import tempfile

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

STEPS = int(os.environ.get("STEPS", 80))
OUT = os.path.join(tempfile.gettempdir(), "seq_labeler_trace.json")


class GatedBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.value = nn.Linear(dim, dim)
        self.gate = nn.Linear(dim, dim)
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        h = self.norm(x)
        return x + self.scale * (self.value(h) * torch.sigmoid(self.gate(h)))


class Labeler(nn.Module):
    def __init__(self, feats=24, dim=32, depth=16, tags=9):
        super().__init__()
        self.inp = nn.Linear(feats, dim)
        self.blocks = nn.ModuleList(GatedBlock(dim) for _ in range(depth))
        self.out = nn.Linear(dim, tags)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


def make_batches(n=16):
    g = torch.Generator().manual_seed(2)
    xs = torch.randn(n, 4, 16, 24, generator=g)
    ys = xs[..., :9].argmax(-1)
    return list(zip(xs, ys))


def main():
    torch.manual_seed(0)
    model = Labeler()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss_fn = nn.CrossEntropyLoss()
    batches = make_batches()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True) as prof:
        for step in range(STEPS):
            x, y = batches[step % len(batches)]
            with record_function("train_step"):
                logits = model(x)
                loss = loss_fn(logits.flatten(0, 1), y.flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if step % 20 == 0:
                print(step, loss.item())
    prof.export_chrome_trace(OUT)


if __name__ == "__main__":
    main()
