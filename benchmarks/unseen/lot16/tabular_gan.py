"""Synthetic patient records: a Wasserstein GAN over the breast cancer table."""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import QuantileTransformer
from torch import nn


class ResidualLayer(nn.Module):
    def __init__(self, width, grow):
        super().__init__()
        self.fc = nn.Linear(width, grow)
        self.bn = nn.BatchNorm1d(grow)

    def forward(self, x):
        return torch.cat([torch.relu(self.bn(self.fc(x))), x], dim=1)


def make_generator(noise, columns, grow=320):
    return nn.Sequential(
        ResidualLayer(noise, grow),
        ResidualLayer(noise + grow, grow),
        ResidualLayer(noise + 2 * grow, grow),
        nn.Linear(noise + 3 * grow, columns),
    )


def make_critic(columns, width=128):
    return nn.Sequential(
        nn.Linear(columns, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, 1),
    )


class Synthesizer:
    def __init__(self, table, noise=64, batch=256, n_critic=3, clip=0.03):
        self.table = table
        self.noise, self.batch, self.n_critic, self.clip = noise, batch, n_critic, clip
        self.generator = make_generator(noise, table.shape[1])
        self.critic = make_critic(table.shape[1])
        self.opt_g = torch.optim.RMSprop(self.generator.parameters(), lr=2e-4)
        self.opt_c = torch.optim.RMSprop(self.critic.parameters(), lr=5e-4)

    def real_batch(self):
        return self.table[torch.randint(len(self.table), (self.batch,))]

    def fake_batch(self):
        return self.generator(torch.randn(self.batch, self.noise))

    def critic_step(self):
        real, fake = self.real_batch(), self.fake_batch()
        gap = self.critic(real).mean() - self.critic(fake).mean()
        self.opt_c.zero_grad(set_to_none=True)
        (-gap).backward()
        self.opt_c.step()
        with torch.no_grad():
            for p in self.critic.parameters():
                p.clamp_(-self.clip, self.clip)
        return gap.item()

    def generator_step(self):
        self.critic.requires_grad_(False)
        loss = -self.critic(self.fake_batch()).mean()
        self.opt_g.zero_grad(set_to_none=True)
        loss.backward()
        self.opt_g.step()
        self.critic.requires_grad_(True)
        return loss.item()

    def fit(self, steps):
        for step in range(1, steps + 1):
            for _ in range(self.n_critic):
                gap = self.critic_step()
            loss = self.generator_step()
            if step % 100 == 0:
                print(f"{step:5d}  critic gap {gap:.4f}  generator {loss:.4f}")

    @torch.no_grad()
    def sample(self, n):
        self.generator.eval()
        return self.generator(torch.randn(n, self.noise))


if __name__ == "__main__":
    torch.manual_seed(0)
    raw = load_breast_cancer().data
    scaled = QuantileTransformer(n_quantiles=200, output_distribution="normal").fit_transform(raw)
    synth = Synthesizer(torch.tensor(scaled, dtype=torch.float32).clamp_(-3, 3))
    synth.fit(steps=600)
    rows = synth.sample(1000)
    print("column mean error", (rows.mean(0) - synth.table.mean(0)).abs().mean().item())
