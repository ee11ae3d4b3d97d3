import os

import torch
from torch import nn

torch.manual_seed(4)
N_STEPS = int(os.environ.get("STEPS", 80))


class Autoencoder(nn.Module):
    def __init__(self, d_in=1536, d_hidden=1536, d_code=256):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(d_in, d_hidden), nn.ReLU(), nn.Linear(d_hidden, d_code))
        self.decoder = nn.Sequential(nn.Linear(d_code, d_hidden), nn.ReLU(), nn.Linear(d_hidden, d_in))

    def forward(self, x):
        return self.decoder(self.encoder(x))


class WeightAverage:
    def __init__(self, model, decay):
        self.decay = decay
        self.values = {k: v.detach().clone() for k, v in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        for name, param in model.named_parameters():
            old = self.values[name]
            self.values[name] = self.decay * old + (1.0 - self.decay) * param


def corrupt(x, p=0.3):
    return x * (torch.rand_like(x) > p)


def run():
    model = Autoencoder()
    averages = [WeightAverage(model, decay) for decay in (0.99, 0.999)]
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    pool = torch.randn(2048, 64) @ torch.randn(64, 1536) / 8.0
    for step in range(N_STEPS):
        clean = pool[torch.randint(0, len(pool), (4,))]
        loss = nn.functional.mse_loss(model(corrupt(clean)), clean)
        opt.zero_grad()
        loss.backward()
        opt.step()
        for average in averages:
            average.update(model)
        if step % 20 == 0:
            print(f"step={step} loss={loss.item():.4f}")
    return averages


if __name__ == "__main__":
    run()
