"""Load with far more workers than there are cores, which take these from the model.

cause: cpu-crowded on cpu
bound: unknown on cpu
needs: cpu
place: line
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 64_000

    def __getitem__(self, at):
        x = torch.randn(96, 96)
        return (x @ x)[:8].flatten(), 0.0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(768, 512), nn.ReLU(), nn.Linear(512, 1)).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for x, target in DataLoader(Rows(), batch_size=64, num_workers=12):  # planted
        out = model(x.to(args.device)).squeeze(1)
        loss = nn.functional.mse_loss(out, target.float().to(args.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
