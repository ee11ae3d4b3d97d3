"""Road segmentation with a weighted focal loss."""

import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = int(os.environ.get("STEPS", 80))
CLASSES = 8


class SegNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=4, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Conv2d(16, CLASSES, 1)

    def forward(self, x):
        y = self.head(self.down(x))
        return F.interpolate(y, size=x.shape[-2:], mode="nearest")


class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0):
        super().__init__()
        self.gamma = gamma

    def pixel_weights(self, logits, target):
        scores = logits.detach().cpu().numpy().astype(np.float64)
        labels = target.cpu().numpy()
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        probs = scores / scores.sum(axis=1, keepdims=True)
        p_true = np.take_along_axis(probs, labels[:, None], axis=1)[:, 0]
        counts = np.bincount(labels.ravel(), minlength=CLASSES)
        balance = labels.size / (CLASSES * np.maximum(counts, 1))
        edge = np.zeros(labels.shape)
        for c in range(CLASSES):
            mask = (labels == c).astype(np.float64)
            for axis, shift in ((1, 1), (1, -1), (2, 1), (2, -1)):
                edge += mask * (1.0 - np.roll(mask, shift, axis))
        weights = balance[labels] * (1.0 + edge) * (1.0 - p_true) ** self.gamma
        return torch.from_numpy(weights.astype(np.float32)).to(logits.device)

    def forward(self, logits, target):
        weights = self.pixel_weights(logits, target)
        ce = F.cross_entropy(logits, target, reduction="none")
        return (weights * ce).mean()


def synthetic_roads(n=24, size=96):
    g = torch.Generator().manual_seed(0)
    images = torch.rand(n, 3, size, size, generator=g)
    masks = (images.mean(1) * CLASSES).long().clamp_(0, CLASSES - 1)
    return images, masks


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images, masks = synthetic_roads()
    images, masks = images.to(device), masks.to(device)
    model = SegNet().to(device)
    criterion = FocalLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        pick = slice((step % 3) * 8, (step % 3) * 8 + 8)
        optimizer.zero_grad()
        loss = criterion(model(images[pick]), masks[pick])
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:3d}: {loss.item():.4f}")


if __name__ == "__main__":
    main()
