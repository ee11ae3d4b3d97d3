"""Convolutional classifier for the scikit-learn digits with light augmentation."""

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self, images, labels, augment):
        padded = np.pad(images.astype(np.float32) / 16.0, ((0, 0), (2, 2), (2, 2)))
        self.images = torch.from_numpy(padded).unsqueeze(1)
        self.labels = torch.from_numpy(labels)
        self.augment = augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = self.images[i]
        if self.augment:
            dy, dx = np.random.randint(-1, 2, size=2)
            image = torch.roll(image, (int(dy), int(dx)), dims=(1, 2))
        return image, self.labels[i]


def block(n_in, n_out):
    return nn.Sequential(nn.Conv2d(n_in, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU(inplace=True))


def make_model():
    return nn.Sequential(
        block(1, 32),
        block(32, 64),
        nn.MaxPool2d(2),
        block(64, 128),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128 * 9, 10),
    )


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    hits = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return hits / len(loader.dataset)


def main(epochs=12, batch_size=64):
    torch.manual_seed(0)
    digits = load_digits()
    x_train, x_test, y_train, y_test = train_test_split(digits.images, digits.target, test_size=0.2, random_state=0)
    train = DataLoader(
        Digits(x_train, y_train, True),
        batch_size=batch_size,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        drop_last=True,
    )
    test = DataLoader(Digits(x_test, y_test, False), batch_size=128)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)

    for epoch in range(epochs):
        for images, labels in train:
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        if epoch % 3 == 0 or epoch == epochs - 1:
            print(f"epoch {epoch} loss {loss.item():.4f} test {accuracy(model, test):.3f}")


if __name__ == "__main__":
    main()
