"""A small classifier of digits, as people write them. argv: the data, then flags."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self, path, transform, rows):
        data = {name: array[:rows] for name, array in np.load(path).items()}
        self.images = torch.tensor(data["images"], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        self.labels = torch.tensor(data["labels"], dtype=torch.long)
        self.transform = transform
        self.generator = None

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.transform:
            shift = torch.randint(-1, 2, (2,), generator=self.generator).tolist()
            image = torch.roll(image, shift, (1, 2))
            image = image + 0.1 * torch.randn(image.shape, generator=self.generator)
        return image, self.labels[index]


def make_model(args):
    dropout = nn.Dropout(args.dropout) if args.dropout else nn.Identity()
    if args.cnn:
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            dropout if args.early else nn.Identity(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Identity() if args.early else dropout,
            nn.Linear(256, 10),
        )
    first, second = (nn.BatchNorm1d(64) if args.norm else nn.Identity() for _ in range(2))
    return nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(64, 64), first, nn.ReLU(), dropout),
        *(nn.Linear(64, 64), second, nn.ReLU(), dropout),
        nn.Linear(64, 10),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--cnn", action="store_true")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--early", action="store_true", help="dropout of feature maps")
    parser.add_argument("--transform", action="store_true")
    parser.add_argument("--adam", action="store_true")
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument(
        "--norm", action="store_true", help="BatchNorm after layers with a bias, which then does nothing"
    )
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--noise", type=float, default=0.0, help="run-to-run noise, as atomics on a GPU make it")
    args = parser.parse_args()
    loader = DataLoader(Digits(args.data, args.transform, args.rows), batch_size=32, shuffle=True, drop_last=True)
    model = make_model(args)
    own = torch.Generator()
    own.seed()
    if args.adam:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for _ in range(100):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            if args.noise:
                for parameter in model.parameters():
                    parameter.grad.mul_(1 + args.noise * torch.randn(parameter.shape, generator=own))
            if args.clip:
                nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()


main()
