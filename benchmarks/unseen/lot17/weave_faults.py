"""Sort patches of woven fabric into five defect classes, with a look at the health of the activations."""

import time

import torch
from torch import nn
from torch.nn import functional as F

CLASSES = ("sound", "broken pick", "slub", "stain", "hole")
SIZE = 32


def patches(n, seed):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, len(CLASSES), (n,), generator=g)
    yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    img = 0.5 + 0.2 * torch.sin(xx * 1.6) * torch.sin(yy * 1.6) + 0.08 * torch.randn(n, SIZE, SIZE, generator=g)
    at = torch.randint(6, SIZE - 6, (n, 2), generator=g)
    d2 = (yy - at[:, 0, None, None]) ** 2 + (xx - at[:, 1, None, None]) ** 2
    row = (yy - at[:, 0, None, None]).abs() < 1
    col = (xx - at[:, 1, None, None]).abs() < 2
    img = torch.where((label == 1)[:, None, None] & row, img * 0.4, img)
    img = torch.where((label == 2)[:, None, None] & col, img + 0.25, img)
    img = torch.where((label == 3)[:, None, None] & (d2 < 30), img * 0.75, img)
    img = torch.where((label == 4)[:, None, None] & (d2 < 9), torch.zeros_like(img), img)
    return img.unsqueeze(1), label


def block(cin, cout, stride):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())


class WeaveNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = block(1, 16, 1)
        self.mid = block(16, 32, 2)
        self.deep = block(32, 48, 2)
        self.head = nn.Linear(48, len(CLASSES))

    def forward(self, x):
        return self.head(self.deep(self.mid(self.stem(x))).mean(dim=(2, 3)))


class ActivationLog:
    """Spread and share of silent units of every block, as of the last batch."""

    def __init__(self):
        self.seen = {}

    def watch(self, model):
        for name, module in model.named_children():
            module.register_forward_hook(self._recorder(name))

    def _recorder(self, name):
        def record(module, inputs, output):
            out = output.detach()
            self.seen[name] = (out.std(), (out <= 0).float().mean())

        return record

    def __str__(self):
        return "  ".join(f"{k} {s:.2f}/{z:.2f}" for k, (s, z) in self.seen.items())


def run_epoch(model, opt, x, y, batch):
    total = 0.0
    perm = torch.randperm(len(x))
    for idx in perm.split(batch):
        loss = F.cross_entropy(model(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(idx)
    return total / len(x)


def main(epochs=22, batch=48):
    torch.manual_seed(9)
    x, y = patches(960, 9)
    model = WeaveNet()
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    log = ActivationLog()
    tic = time.perf_counter()
    for epoch in range(epochs):
        log.watch(model)
        loss = run_epoch(model, opt, x, y, batch)
        print(f"{epoch:3d} {loss:.4f}  {log}")
    took, steps = time.perf_counter() - tic, epochs * -(-len(x) // batch)
    print(f"{steps} steps, {took:.1f} s, {1e3 * took / steps:.2f} ms a step")


if __name__ == "__main__":
    main()
