"""Deep residual network on customer tables: will the customer leave next month?"""

import os

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
CUSTOMERS = 500_000 if CUDA else 4_000
FEATURES = 96
WIDTH = 256 if CUDA else 32
DEPTH = 64 if CUDA else 8
BATCH = 4096 if CUDA else 256
EPOCHS = 7
LIMIT_STEPS = int(os.environ.get("LIMIT_STEPS", 0))


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, (beta1, beta2), decay = group["lr"], group["betas"], group["weight_decay"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                momentum = state["momentum"]
                p.mul_(1 - lr * decay)
                update = momentum.mul(beta1).add_(p.grad, alpha=1 - beta1).sign_()
                p.add_(update, alpha=-lr)
                momentum.mul_(beta2).add_(p.grad, alpha=1 - beta2)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


class ChurnNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.Sequential(*[Residual() for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.out(self.norm(self.blocks(self.inp(x)))).squeeze(-1)


def load_customers():
    generator = torch.Generator(device=device).manual_seed(6)
    table = torch.randn(CUSTOMERS, FEATURES, device=device, generator=generator)
    signal = table[:, :8].sum(1) + table[:, 8] * table[:, 9]
    noise = torch.randn(CUSTOMERS, device=device, generator=generator)
    return table, (signal + noise > 1.0).float()


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    table, left = load_customers()
    model = ChurnNet().to(device)
    opt = Lion(model.parameters(), lr=1e-4, weight_decay=0.01)
    total = torch.zeros((), device=device)
    step = 0
    for epoch in range(EPOCHS):
        order = torch.randperm(CUSTOMERS, device=device)
        for begin in range(0, CUSTOMERS - BATCH + 1, BATCH):
            rows = order[begin : begin + BATCH]
            loss = F.binary_cross_entropy_with_logits(model(table[rows]), left[rows])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            total += loss.detach()
            step += 1
            if step % 100 == 0:
                print(f"epoch {epoch} step {step} loss {total.item() / 100:.4f}", flush=True)
                total.zero_()
            if step == LIMIT_STEPS:
                return


if __name__ == "__main__":
    main()
