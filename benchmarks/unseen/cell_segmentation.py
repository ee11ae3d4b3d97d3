"""Segment round cells in synthetic microscope fields."""

import numpy as np
import torch
from scipy import ndimage
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIELD, CROP = 256, 64


def draw_field(rng):
    mask = np.zeros((FIELD, FIELD), bool)
    yy, xx = np.mgrid[:FIELD, :FIELD]
    for _ in range(40):
        y, x, r = rng.integers(0, FIELD, 2).tolist() + [rng.integers(5, 14)]
        mask |= (yy - y) ** 2 + (xx - x) ** 2 < r * r
    image = ndimage.gaussian_filter(mask.astype(np.float32), 1.5)
    return image + 0.3 * rng.normal(size=mask.shape).astype(np.float32), mask.astype(np.float32)


class Augment:
    """Elastic deformation and a random crop."""

    def __init__(self, alpha=30.0, sigma=6.0):
        self.alpha = alpha
        self.sigma = sigma

    def warp(self, image, mask, rng):
        h, w = image.shape
        grid = np.mgrid[:h, :w].astype(np.float32)
        for axis in range(2):
            field = rng.uniform(-1, 1, (h, w)).astype(np.float32)
            grid[axis] += self.alpha * ndimage.gaussian_filter(field, self.sigma)
        image = ndimage.map_coordinates(image, grid, order=1, mode="reflect")
        mask = ndimage.map_coordinates(mask, grid, order=0, mode="reflect")
        return image, mask

    def crop(self, image, mask, rng):
        top, left = rng.integers(0, FIELD - CROP, 2)
        window = slice(top, top + CROP), slice(left, left + CROP)
        return image[window], mask[window]

    def __call__(self, image, mask, rng):
        image, mask = self.warp(image, mask, rng)
        return self.crop(image, mask, rng)


class Fields(Dataset):
    def __init__(self, fields, length, augment):
        rng = np.random.default_rng(0)
        self.fields = [draw_field(rng) for _ in range(fields)]
        self.length = length
        self.augment = augment

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        image, mask = self.fields[index % len(self.fields)]
        image, mask = self.augment(image, mask, rng)
        return torch.from_numpy(image.copy())[None], torch.from_numpy(mask.copy())[None]


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 1)
    )


def main():
    torch.manual_seed(0)
    data = Fields(16, 6 * 120, Augment())
    loader = DataLoader(data, batch_size=6, shuffle=True, num_workers=2, persistent_workers=True)
    model = build_model()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(2):
        for step, (image, mask) in enumerate(loader):
            loss = nn.functional.binary_cross_entropy_with_logits(model(image), mask)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 30 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
