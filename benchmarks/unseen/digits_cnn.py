"""Classify scikit-learn's digits with a small residual network."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self, images, labels, train):
        self.images = images
        self.labels = labels
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.train:
            dy, dx = torch.randint(-1, 2, (2,)).tolist()
            image = image.roll((dy, dx), (1, 2))
        return image, self.labels[index]


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


def build_model(width=96):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        Block(width),
        Block(width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 10),
    )


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    hits = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    return hits / len(loader.dataset)


def main():
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    train, test = order[:1500], order[1500:]
    train_loader = DataLoader(
        Digits(images[train], labels[train], True), batch_size=32, shuffle=True, num_workers=2, persistent_workers=True
    )
    test_loader = DataLoader(Digits(images[test], labels[test], False), batch_size=99)
    model = build_model()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for epoch in range(5):
        model.train()
        for step, (x, y) in enumerate(train_loader):
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")
        print(f"epoch {epoch} test accuracy {evaluate(model, test_loader):.3f}")


if __name__ == "__main__":
    main()
