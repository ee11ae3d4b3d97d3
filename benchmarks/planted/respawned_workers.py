"""Train on the digits in short epochs, with workers that are started anew for each.

cause: workers-restart
bound: input
needs: cpu
place: function
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self):
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images, dtype=torch.float32) / 16
        self.labels = torch.tensor(labels)

    def __len__(self):
        return 512

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    loader = DataLoader(Digits(), batch_size=256, shuffle=True, num_workers=4)  # planted: no persistent_workers
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(200):
        for x, y in loader:
            x, y = x.to(args.device), y.to(args.device)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
