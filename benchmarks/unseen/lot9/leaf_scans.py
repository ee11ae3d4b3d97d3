"""Disease grading of large synthetic leaf scans from random crops."""

import numpy as np
import torch
import torch.nn.functional as F
from scipy import ndimage
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rotate:
    def __init__(self, degrees):
        self.degrees = degrees

    def __call__(self, image):
        angle = np.random.uniform(-self.degrees, self.degrees)
        return ndimage.rotate(image, angle, reshape=False, order=1, mode="reflect")


class Blur:
    def __init__(self, max_sigma):
        self.max_sigma = max_sigma

    def __call__(self, image):
        return ndimage.gaussian_filter(image, np.random.uniform(0.3, self.max_sigma))


class Contrast:
    def __call__(self, image):
        return (image - 0.5) * np.random.uniform(0.8, 1.2) + 0.5


class RandomCrop:
    def __init__(self, size):
        self.size = size

    def __call__(self, image):
        y, x = np.random.randint(0, image.shape[0] - self.size + 1, size=2)
        return image[y : y + self.size, x : x + self.size]


class Compose:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, image):
        for step in self.steps:
            image = step(image)
        return image


class LeafScans(Dataset):
    def __init__(self, n_scans, transform, size=208, seed=0):
        rng = np.random.default_rng(seed)
        self.grades = rng.integers(0, 5, n_scans)
        self.scans = rng.normal(0.5, 0.08, (n_scans, size, size)).astype(np.float32)
        for scan, grade in zip(self.scans, self.grades):
            for y, x in rng.integers(0, size - 6, size=(60 * grade, 2)):
                scan[y : y + 6, x : x + 6] -= 0.3
        self.transform = transform

    def __len__(self):
        return len(self.scans)

    def __getitem__(self, i):
        image = np.ascontiguousarray(self.transform(self.scans[i]), dtype=np.float32)
        return torch.from_numpy(image).unsqueeze(0), int(self.grades[i])


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 5),
    )


def main(epochs=8, batch_size=16):
    torch.manual_seed(0)
    transform = Compose([Rotate(25), Blur(1.2), Contrast(), RandomCrop(64)])
    dataset = LeafScans(480, transform)
    loader = DataLoader(dataset, batch_size=batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(epochs):
        total = 0.0
        for step, (images, grades) in enumerate(loader):
            loss = F.cross_entropy(model(images), grades)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / (step + 1):.4f}")


if __name__ == "__main__":
    main()
