"""Contrastive embedding of handwritten digits, trained with a Shampoo optimizer of our own."""

import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.optim import Optimizer


def matrix_power(m, p):
    u, s, vh = torch.linalg.svd(m)
    return u @ torch.diag(s.pow(p)) @ vh


class Shampoo(Optimizer):
    """Gupta et al. 2018, with momentum."""

    def __init__(self, params, lr=0.05, momentum=0.9, decay=0.95, eps=1e-4):
        super().__init__(params, dict(lr=lr, momentum=momentum, decay=decay, eps=eps))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["buf"] = torch.zeros_like(p)
                    for d, size in enumerate(p.shape):
                        state[f"pre{d}"] = group["eps"] * torch.eye(size)
                state["step"] += 1
                g = grad
                for d, size in enumerate(p.shape):
                    pre = state[f"pre{d}"]
                    flat = grad.transpose(0, d).reshape(size, -1)
                    pre.mul_(group["decay"]).addmm_(flat, flat.t(), alpha=1 - group["decay"])
                    root = matrix_power(pre, -1 / (2 * p.dim()))
                    g = (root @ g.transpose(0, d).reshape(size, -1)).view_as(g.transpose(0, d)).transpose(0, d)
                g = g * (grad.norm() / (g.norm() + 1e-12))
                state["buf"].mul_(group["momentum"]).add_(g)
                p.add_(state["buf"], alpha=-group["lr"])


class Encoder(nn.Module):
    def __init__(self, width=96, out=32):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(64, width, bias=False), nn.ReLU(), nn.Linear(width, width, bias=False), nn.ReLU()
        )
        self.proj = nn.Linear(width, out, bias=False)

    def forward(self, x):
        return F.normalize(self.proj(self.body(x)), dim=1)


def two_views(images):
    for _ in range(2):
        n = len(images)
        x = images.roll((int(torch.randint(-1, 2, (1,))), int(torch.randint(-1, 2, (1,)))), (1, 2))
        keep = (torch.rand(n, 8, 8) > 0.15).float()
        yield (x * keep + 0.05 * torch.randn(n, 8, 8)).flatten(1)


def info_nce(a, b, temperature=0.2):
    scores = a @ b.t() / temperature
    target = torch.arange(len(a))
    return 0.5 * (F.cross_entropy(scores, target) + F.cross_entropy(scores.t(), target))


@torch.no_grad()
def nearest_label_accuracy(model, images, labels):
    z = model(images.flatten(1))
    sim = z[1000:] @ z[:1000].t()
    return (labels[:1000][sim.argmax(1)] == labels[1000:]).float().mean().item()


torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images / 16.0, dtype=torch.float32)
labels = torch.tensor(digits.target)
model = Encoder()
optimizer = Shampoo(model.parameters())
steps, batch = 1200, 256
begin = time.perf_counter()
for step in range(1, steps + 1):
    pick = torch.randint(1000, (batch,))
    left, right = two_views(images[pick])
    loss = info_nce(model(left), model(right))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 200 == 0:
        print(f"{step:4d} loss {loss.item():.4f} 1-nn {nearest_label_accuracy(model, images, labels):.3f}", flush=True)
print(f"{1000 * (time.perf_counter() - begin) / steps:.2f} ms/step")
