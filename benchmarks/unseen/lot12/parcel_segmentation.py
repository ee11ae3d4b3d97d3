"""Land-cover segmentation of synthetic parcels."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

CLASSES = 40
SIZE = 80


class Parcels(Dataset):
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.palette = torch.from_numpy(rng.uniform(0, 1, (CLASSES, 3)).astype(np.float32))
        cells = rng.integers(0, CLASSES, size=(count, SIZE // 8, SIZE // 8))
        self.masks = np.kron(cells, np.ones((1, 8, 8), dtype=np.int64)).astype(np.uint8)

    def __len__(self):
        return len(self.masks)

    def __getitem__(self, index):
        mask = torch.from_numpy(self.masks[index]).long()
        if torch.rand(()) < 0.5:
            mask = mask.flip(1)
        image = self.palette[mask].permute(2, 0, 1)
        image = image + 0.1 * torch.randn(3, SIZE, SIZE)
        target = F.one_hot(mask, CLASSES).permute(2, 0, 1).float()
        return image, target


class SegNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.down = nn.Conv2d(3, width, 5, stride=2, padding=2)
        self.body = nn.Sequential(nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x):
        x = self.body(self.down(x))
        return F.interpolate(self.head(x), scale_factor=2, mode="nearest")


def main():
    torch.manual_seed(0)
    dataset = Parcels(count=600, seed=0)
    loader = DataLoader(dataset, batch_size=12, shuffle=True, num_workers=2, persistent_workers=True)
    model = SegNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    step = 0
    for epoch in range(4):
        for image, target in loader:
            loss = F.cross_entropy(model(image), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
