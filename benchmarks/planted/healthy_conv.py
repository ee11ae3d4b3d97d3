"""Train a convolution net as it should be: channels last, autocast, a loader that is far ahead.

cause: compute
bound: compute
needs: cpu
place: none
"""

import argparse
import contextlib

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    cuda = args.device == "cuda"
    channels, side, rows, depth = (512, 28, 64, 8) if cuda else (32, 16, 32, 3)
    torch.backends.cudnn.benchmark = True
    images, labels = torch.randn(rows * 4, 3, side, side), torch.randint(10, (rows * 4,))
    dataset = TensorDataset(images.repeat(20, 1, 1, 1), labels.repeat(20))
    workers = {"num_workers": 4, "persistent_workers": True, "prefetch_factor": 8} if cuda else {}
    loader = DataLoader(dataset, batch_size=rows, shuffle=True, pin_memory=cuda, **workers)
    layers = [nn.Conv2d(3, channels, 3, padding=1)]
    for _ in range(depth):
        layers += [nn.ReLU(inplace=True), nn.Conv2d(channels, channels, 3, padding=1, bias=False)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    model = model.to(args.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    for _ in range(20):
        for x, y in loader:
            x = x.to(args.device, memory_format=torch.channels_last, non_blocking=True)
            y = y.to(args.device, non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16) if cuda else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
