"""Small residual network on upscaled digits."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(h)))


class DigitNet(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.Sequential(Residual(width), nn.MaxPool2d(2), Residual(width))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        h = self.blocks(F.relu(self.stem(x)))
        return self.head(h.mean(dim=(2, 3)))


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        acc = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return acc


def main():
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.images / 16.0, dtype=torch.float32)[:, None]
    x = F.interpolate(x, size=(20, 20), mode="bilinear", align_corners=False)
    y = torch.tensor(digits.target)
    x_train, y_train, x_test, y_test = x[:1600], y[:1600], x[1600:], y[1600:]

    model = DigitNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for epoch in range(5):
        order = torch.randperm(len(x_train))
        for step, idx in enumerate(order.split(32)):
            loss = F.cross_entropy(model(x_train[idx]), y_train[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 25 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        print(f"epoch {epoch} test accuracy {evaluate(model, x_test, y_test):.3f}", flush=True)


if __name__ == "__main__":
    main()
