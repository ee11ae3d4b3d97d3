"""Small convolutional classifier; the images are packed in one archive on disk."""

import os
import tempfile
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

STEPS = int(os.environ.get("STEPS", 1000))


def pack(path):
    digits = load_digits()
    images = digits.images.astype(np.uint8)
    np.savez_compressed(path, images=images, labels=digits.target.astype(np.int64))


class PackedDigits(Dataset):
    def __init__(self, path):
        self.archive = np.load(path)
        self.count = len(self.archive["labels"])

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = self.archive["images"][index]
        label = self.archive["labels"][index]
        image = torch.from_numpy(image.astype(np.float32) / 16.0).unsqueeze(0)
        return image, int(label)


class SmallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(64 * 16, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x):
        return self.head(self.features(x))


def forever(loader):
    while True:
        yield from loader


@torch.no_grad()
def accuracy(model, images, labels):
    model.eval()
    right = (model(images).argmax(1) == labels).float().mean().item()
    model.train()
    return right


def main():
    torch.manual_seed(1)
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "digits.npz")
    pack(path)
    data = PackedDigits(path)
    order = torch.randperm(len(data)).tolist()
    train, test = Subset(data, order[:1500]), Subset(data, order[1500:])
    loader = DataLoader(train, batch_size=32, shuffle=True, drop_last=True)
    test_images, test_labels = next(iter(DataLoader(test, batch_size=len(test))))
    model = SmallNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    begin = time.perf_counter()
    for step, (images, labels) in enumerate(forever(loader), 1):
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            right = accuracy(model, test_images, test_labels)
            print(f"[{step:4d}] loss {loss.item():.4f} test accuracy {right:.4f}")
        if step == STEPS:
            break
    took = time.perf_counter() - begin
    print(f"{STEPS} steps, {took / STEPS * 1e3:.2f} ms a step")
    os.remove(path)
    os.rmdir(folder)


if __name__ == "__main__":
    main()
