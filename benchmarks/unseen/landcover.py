import torch
import torch.nn as nn
import torch.nn.functional as F

CLASSES = 6


class ConvBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)
        self.bn = nn.BatchNorm2d(cout)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class MiniUNet(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.d1 = ConvBlock(4, c)
        self.d2 = ConvBlock(c, 2 * c)
        self.u1 = ConvBlock(3 * c, c)
        self.head = nn.Conv2d(c, CLASSES, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        b = F.interpolate(b, scale_factor=2)
        return self.head(self.u1(torch.cat([a, b], dim=1)))


class SegmentationMetric:
    def __init__(self, n):
        self.n = n
        self.matrix = torch.zeros(n, n)

    def update(self, pred, target):
        for t, p in zip(target.flatten().tolist(), pred.flatten().tolist()):
            self.matrix[t, p] += 1

    def miou(self):
        inter = self.matrix.diag()
        union = self.matrix.sum(0) + self.matrix.sum(1) - inter
        return (inter / union.clamp(min=1)).mean().item()


class TileSource:
    def __init__(self, n=160, size=32):
        g = torch.Generator().manual_seed(2)
        self.tiles = torch.randn(n, 4, size, size, generator=g)
        self.masks = torch.randint(0, CLASSES, (n, size, size), generator=g)

    def batches(self, batch_size):
        order = torch.randperm(len(self.tiles))
        for idx in order.split(batch_size):
            yield self.tiles[idx], self.masks[idx]


def train(epochs=4, batch_size=8):
    torch.manual_seed(0)
    source = TileSource()
    model = MiniUNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        metric = SegmentationMetric(CLASSES)
        for tiles, masks in source.batches(batch_size):
            logits = model(tiles)
            loss = F.cross_entropy(logits, masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            metric.update(logits.argmax(1), masks)
        print(f"epoch {epoch} loss {loss.item():.3f} mIoU {metric.miou():.3f}")


if __name__ == "__main__":
    train()
