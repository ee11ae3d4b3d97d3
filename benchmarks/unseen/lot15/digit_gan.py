"""GAN on sklearn's digits with a small home-grown metrics writer."""

import json
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class MetricsWriter:
    def __init__(self, path, bins=60):
        self.file, self.bins = open(path, "w"), bins

    def scalar(self, tag, value, step):
        self.file.write(json.dumps({"tag": tag, "step": step, "value": value}) + "\n")

    def histogram(self, tag, tensor, step):
        counts, edges = np.histogram(tensor.detach().numpy(), bins=self.bins)
        row = {"tag": tag, "step": step, "counts": counts.tolist(), "edges": edges.tolist()}
        self.file.write(json.dumps(row) + "\n")

    def close(self):
        self.file.close()


def mlp(*sizes, last=None):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    layers.pop()
    return nn.Sequential(*layers, *([last] if last else []))


class GanTrainer:
    latent = 32

    def __init__(self, writer):
        self.writer = writer
        self.gen = mlp(self.latent, 320, 320, 64, last=nn.Sigmoid())
        self.disc = mlp(64, 320, 320, 1)
        self.opt_g = torch.optim.Adam(self.gen.parameters(), lr=2e-4, betas=(0.5, 0.99))
        self.opt_d = torch.optim.Adam(self.disc.parameters(), lr=2e-4, betas=(0.5, 0.99))

    def discriminator_step(self, real):
        with torch.no_grad():
            fake = self.gen(torch.randn(len(real), self.latent))
        loss = F.softplus(-self.disc(real)).mean() + F.softplus(self.disc(fake)).mean()
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss

    def generator_step(self, count):
        loss = F.softplus(-self.disc(self.gen(torch.randn(count, self.latent)))).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        return loss

    def record(self, step, d_loss, g_loss):
        self.writer.scalar("loss/d", d_loss.item(), step)
        self.writer.scalar("loss/g", g_loss.item(), step)
        for part, net in (("gen", self.gen), ("disc", self.disc)):
            for name, p in net.named_parameters():
                self.writer.histogram(f"{part}/{name}", p, step)
                self.writer.histogram(f"{part}/{name}.grad", p.grad, step)

    def train(self, data, steps, batch=128):
        clock = time.perf_counter()
        for step in range(1, steps + 1):
            real = data[torch.randint(len(data), (batch,))]
            d_loss = self.discriminator_step(real)
            g_loss = self.generator_step(batch)
            self.record(step, d_loss, g_loss)
            if step % 50 == 0:
                now = time.perf_counter()
                print(f"{step} d {d_loss.item():.3f} g {g_loss.item():.3f} {(now - clock) * 20:.1f} ms", flush=True)
                clock = now


if __name__ == "__main__":
    torch.manual_seed(0)
    digits = torch.from_numpy(load_digits().data).float() / 16
    with tempfile.TemporaryDirectory() as folder:
        writer = MetricsWriter(f"{folder}/metrics.jsonl")
        GanTrainer(writer).train(digits, steps=1700)
        writer.close()
