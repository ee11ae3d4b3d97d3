"""Residual denoising CNN (DnCNN-like) on upscaled sklearn digits."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class DnCNN(nn.Module):
    def __init__(self, width=32, depth=4):
        super().__init__()
        layers = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU(inplace=True)]
        for _ in range(depth):
            layers += [
                nn.Conv2d(width, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
        layers.append(nn.Conv2d(width, 1, 3, padding=1))
        self.net = nn.Sequential(*layers)

    def forward(self, noisy):
        return noisy - self.net(noisy)


class Experiment:
    def __init__(self, batch_size=24, sigma=0.3, epochs=2, lr=1e-3):
        torch.manual_seed(5)
        images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 16
        images = F.interpolate(images, size=32, mode="bilinear", align_corners=False)
        images = images[torch.randperm(len(images))]
        self.train_x, self.val_x = images[:1440], images[1440:1632]
        self.val_noise = sigma * torch.randn(self.val_x.shape)
        self.batch_size, self.sigma, self.epochs = batch_size, sigma, epochs
        self.model = DnCNN().to(memory_format=torch.channels_last)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=lr, fused=True)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, step_size=1, gamma=0.5)

    def train_epoch(self, epoch):
        self.model.train()
        running = torch.zeros(())
        for i, idx in enumerate(torch.randperm(len(self.train_x)).split(self.batch_size), 1):
            clean = self.train_x[idx].contiguous(memory_format=torch.channels_last)
            noisy = clean + self.sigma * torch.randn_like(clean)
            loss = F.mse_loss(self.model(noisy), clean)
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            running += loss.detach()
            if i % 30 == 0:
                print(f"epoch {epoch} batch {i} mse {running.item() / i:.5f}")

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        total = 0.0
        for clean, noise in zip(self.val_x.split(64), self.val_noise.split(64)):
            total += F.mse_loss(self.model(clean + noise), clean, reduction="sum").item()
        mse = total / self.val_x.numel()
        return 10 * torch.log10(torch.tensor(1.0 / mse)).item()

    def run(self):
        for epoch in range(self.epochs):
            self.train_epoch(epoch)
            self.sched.step()
            print(f"epoch {epoch} val psnr {self.validate():.2f} dB")


if __name__ == "__main__":
    Experiment().run()
