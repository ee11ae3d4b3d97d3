"""Convolutional denoiser for scanned digits."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class Denoiser(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, padding=1, stride=2)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.leave = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x):
        a = F.relu(self.enter(x))
        b = F.relu(self.down(a))
        b = b + F.relu(self.middle(b))
        return x + self.leave(F.relu(self.up(b)) + a)


def load_images(size=16):
    x = torch.tensor(load_digits().data, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    return F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)


def main():
    torch.manual_seed(0)
    images = load_images()
    train, test = images[:1536], images[1536:]
    noisy_test = test + 0.3 * torch.randn_like(test)
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(5):
        total = torch.zeros(())
        order = torch.randperm(len(train))
        for step, rows in enumerate(order.split(32)):
            clean = train[rows]
            noisy = clean + 0.3 * torch.randn_like(clean)
            loss = F.mse_loss(model(noisy), clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        with torch.no_grad():
            error = F.mse_loss(model(noisy_test), test).item()
        print(f"epoch {epoch} train {total.item() / (step + 1):.5f} test {error:.5f}", flush=True)


if __name__ == "__main__":
    main()
