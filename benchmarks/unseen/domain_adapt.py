"""Unsupervised domain adaptation on sklearn digits: clean source, corrupted target, DAN-style alignment."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

torch.manual_seed(11)


def load_domains():
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x))
    src, tgt = order[:900], order[900:]
    moved = torch.roll(x[tgt], shifts=1, dims=3)
    moved = moved * 0.6 + 0.4 * torch.rand_like(moved)
    return (x[src], y[src]), (moved, y[tgt])


class Extractor(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 48, 3, padding=1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.fc = nn.Linear(48 * 16, width)

    def forward(self, x):
        return torch.relu(self.fc(self.conv(x).flatten(1)))


class MMDLoss(nn.Module):
    def __init__(self, kernel_mul=2.0, kernel_num=5):
        super().__init__()
        self.kernel_mul = kernel_mul
        self.kernel_num = kernel_num

    def gaussian_kernel(self, source, target):
        total = torch.cat([source, target], dim=0)
        n = total.size(0)
        left = total.unsqueeze(0).expand(n, n, total.size(1))
        right = total.unsqueeze(1).expand(n, n, total.size(1))
        l2 = ((left - right) ** 2).sum(2)
        bandwidth = l2.detach().sum() / (n * n - n)
        bandwidth = bandwidth / self.kernel_mul ** (self.kernel_num // 2)
        return sum(torch.exp(-l2 / (bandwidth * self.kernel_mul**i)) for i in range(self.kernel_num))

    def forward(self, source, target):
        b = source.size(0)
        k = self.gaussian_kernel(source, target)
        return (k[:b, :b] + k[b:, b:] - k[:b, b:] - k[b:, :b]).mean()


@torch.no_grad()
def accuracy(extractor, classifier, x, y):
    extractor.eval()
    acc = (classifier(extractor(x)).argmax(1) == y).float().mean().item()
    extractor.train()
    return acc


def train(epochs=8, batch=64, align=0.5):
    (xs, ys), (xt, yt) = load_domains()
    extractor, classifier = Extractor(), nn.Linear(256, 10)
    mmd = MMDLoss()
    params = list(extractor.parameters()) + list(classifier.parameters())
    opt = torch.optim.SGD(params, lr=0.02, momentum=0.9, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs)
    step = 0
    for epoch in range(epochs):
        si, ti = torch.randperm(len(xs)), torch.randperm(len(xt))
        for i in range(0, min(len(xs), len(xt)) - batch + 1, batch):
            a, b = si[i : i + batch], ti[i : i + batch]
            fs, ft = extractor(torch.cat([xs[a], xt[b]])).chunk(2)
            cls_loss = F.cross_entropy(classifier(fs), ys[a])
            loss = cls_loss + align * mmd(fs, ft)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 20 == 0:
                print(f"step {step:4d} cls {cls_loss.item():.3f} total {loss.item():.3f}")
        sched.step()
        print(f"epoch {epoch} target acc {accuracy(extractor, classifier, xt, yt):.3f}")


if __name__ == "__main__":
    train()
