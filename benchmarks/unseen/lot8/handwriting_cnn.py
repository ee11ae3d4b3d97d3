"""Residual CNN on upscaled digits with light augmentation in loader workers."""

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset


class Handwriting(Dataset):
    def __init__(self, images, labels, train):
        images = np.kron(images, np.ones((1, 3, 3))).astype(np.float32) / 16.0
        self.images = np.pad(images, ((0, 0), (2, 2), (2, 2)))
        self.labels = labels.astype(np.int64)
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        dy, dx = np.random.randint(0, 5, 2) if self.train else (2, 2)
        crop = self.images[index, dy : dy + 24, dx : dx + 24]
        if self.train:
            crop = crop * np.float32(np.random.uniform(0.8, 1.2))
        return torch.from_numpy(np.ascontiguousarray(crop))[None], self.labels[index]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


def build_model(width=32):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, stride=2, padding=1),
        nn.ReLU(),
        Block(width),
        Block(width),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        Block(2 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 10),
    )


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    right = sum((model(x).argmax(1) == y).sum() for x, y in loader)
    model.train()
    return right.item() / len(loader.dataset)


def main():
    torch.manual_seed(0)
    digits = load_digits()
    train = Handwriting(digits.images[:1500], digits.target[:1500], train=True)
    test = Handwriting(digits.images[1500:], digits.target[1500:], train=False)
    loader = DataLoader(train, batch_size=64, shuffle=True, drop_last=True, num_workers=2, persistent_workers=True)
    test_loader = DataLoader(test, batch_size=256)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    epochs = 10
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, epochs * len(loader))
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
        if epoch % 3 == 0 or epoch == epochs - 1:
            print(f"epoch {epoch} loss {loss.item():.4f} acc {evaluate(model, test_loader):.3f}")


if __name__ == "__main__":
    main()
