# planted: gradients alive through the forward: zeroed (set_to_none=False) right before backward (constant excess,
#     peak at the end of the forward / start of the backward)
# line: 70
# dominates at the peak: gradients and parameters, 50 MB each of 178 at the peak; the excess is the gradients
#     (activations and temporaries 77)
# held by: p.grad of every parameter
# mend: zero_grad(set_to_none=True) right after step() in place of before backward
# measured: CPU: peak 178 -> 139 MB (the peak moves to the end of the backward)
# on a GPU: gradients 0.98 GB; peak falls by up to that (not run)
"""Recommendations from shopping baskets: denoising autoencoder with a multinomial likelihood (Liang et al. 2018)."""
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Settings:
    gpu: bool = torch.cuda.is_available()
    items: int = 120_000 if gpu else 12_000
    shoppers: int = 20_000 if gpu else 3_000
    basket: int = 60
    hidden: int = 1024 if gpu else 512
    code: int = 256
    batch: int = 512 if gpu else 256
    steps: int = 400 if gpu else 150
    lr: float = 1e-3

    @property
    def device(self):
        return "cuda" if self.gpu else "cpu"


def shopping(s: Settings):
    g = torch.Generator().manual_seed(0)
    taste = torch.randint(0, s.items, (s.shoppers, 3), generator=g)
    which = torch.randint(0, 3, (s.shoppers, s.basket), generator=g)
    near = (200 * torch.randn(s.shoppers, s.basket, generator=g)).long()
    return (taste.gather(1, which) + near) % s.items


class BasketAutoencoder(nn.Module):
    def __init__(self, s: Settings):
        super().__init__()
        self.encode = nn.Sequential(nn.Dropout(0.5), nn.Linear(s.items, s.hidden), nn.Tanh(),
                                    nn.Linear(s.hidden, s.code), nn.Tanh())
        self.decode = nn.Sequential(nn.Linear(s.code, s.hidden), nn.Tanh(), nn.Linear(s.hidden, s.items))

    def forward(self, x):
        return self.decode(self.encode(F.normalize(x)))


class Experiment:
    def __init__(self, s: Settings):
        self.s = s
        self.baskets = shopping(s)
        self.model = BasketAutoencoder(s).to(s.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=s.lr * 50)

    def dense(self, rows):
        x = torch.zeros(len(rows), self.s.items, device=self.s.device)
        return x.scatter_(1, self.baskets[rows].to(self.s.device), 1.0)

    def step(self):
        x = self.dense(torch.randint(0, self.s.shoppers, (self.s.batch,)))
        scores = self.model(x)
        loss = -(F.log_softmax(scores, dim=1) * x).sum(1).mean()
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def recall(self, k=50, count=200):
        self.model.eval()
        rows = torch.arange(count)
        kept, hidden = self.baskets[rows, ::2], self.baskets[rows, 1::2].to(self.s.device)
        x = torch.zeros(count, self.s.items, device=self.s.device).scatter_(1, kept.to(self.s.device), 1.0)
        best = self.model(x).topk(k, dim=1).indices
        self.model.train()
        return (hidden.unsqueeze(2) == best.unsqueeze(1)).any(2).float().mean().item()

    def run(self):
        begin, total = time.perf_counter(), 0.0
        for step in range(1, self.s.steps + 1):
            total += self.step()
            if step % 20 == 0:
                took = (time.perf_counter() - begin) / step
                print(f"step {step} loss {total / 20:.2f} {took * 1e3:.0f} ms a step", flush=True)
                total = 0.0
        print(f"recall@50 {self.recall():.4f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    Experiment(Settings()).run()
