"""Autoencoder of scikit-learn's digits, trained with a Shampoo optimizer."""

import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


class Shampoo(torch.optim.Optimizer):
    def __init__(self, params, lr=0.05, momentum=0.9, decay=0.95, eps=1e-4):
        super().__init__(params, dict(lr=lr, momentum=momentum, decay=decay, eps=eps))

    @staticmethod
    def inverse_root(matrix, eps):
        values, vectors = torch.linalg.eigh(matrix)
        values = (values.clamp_min(0) + eps) ** -0.25
        return (vectors * values) @ vectors.T

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            decay, eps = group["decay"], group["eps"]
            for p in group["params"]:
                grad, state = p.grad, self.state[p]
                if not state:
                    state["step"] = 0
                    state["momentum"] = torch.zeros_like(p)
                    if p.dim() == 2:
                        state["left"] = torch.zeros(p.shape[0], p.shape[0])
                        state["right"] = torch.zeros(p.shape[1], p.shape[1])
                if p.dim() == 2:
                    state["left"].mul_(decay).addmm_(grad, grad.T, alpha=1 - decay)
                    state["right"].mul_(decay).addmm_(grad.T, grad, alpha=1 - decay)
                    state["left_root"] = self.inverse_root(state["left"], eps)
                    state["right_root"] = self.inverse_root(state["right"], eps)
                    update = state["left_root"] @ grad @ state["right_root"]
                    update *= grad.norm() / (update.norm() + 1e-12)
                else:
                    update = grad
                state["step"] += 1
                state["momentum"].mul_(group["momentum"]).add_(update)
                p.add_(state["momentum"], alpha=-group["lr"])


class AutoEncoder(nn.Module):
    def __init__(self, wide=256, narrow=16):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Linear(64, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, narrow)
        )
        self.decode = nn.Sequential(nn.Linear(narrow, wide), nn.ReLU(), nn.Linear(wide, 64))

    def forward(self, x):
        return self.decode(self.encode(x))


def main(epochs=70, batch_size=384):
    torch.manual_seed(0)
    images = torch.from_numpy(load_digits().data).float() / 16
    model = AutoEncoder()
    optimizer = Shampoo(model.parameters())
    start = time.time()
    for epoch in range(1, epochs + 1):
        total = 0.0
        chunks = torch.randperm(len(images)).split(batch_size)[:-1]
        for chunk in chunks:
            noisy = images[chunk] + 0.1 * torch.randn(len(chunk), 64)
            loss = F.mse_loss(model(noisy), images[chunk])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        if epoch % 10 == 0:
            print(f"epoch {epoch} loss {total / len(chunks):.4f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
