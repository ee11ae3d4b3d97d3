"""Train a small convolution net on pictures that are decoded in Python, pixel by pixel.

cause: input
bound: input
needs: cpu
place: function
"""

import argparse
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE = 64


class Pictures(Dataset):
    def __init__(self, count=4096, files=64):
        self.count = count
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randint(0, 255, (files, 3 * SIZE * SIZE), generator=generator, dtype=torch.uint8)
        self.blobs = [zlib.compress(row.numpy().tobytes(), 1) for row in pixels]

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        left, pixels = 0, []
        for byte in zlib.decompress(self.blobs[index % len(self.blobs)]):
            left = (left + byte) & 255
            pixels.append(left / 255)  # planted
        return torch.tensor(pixels).view(3, SIZE, SIZE), index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    cuda = args.device == "cuda"
    loader = DataLoader(Pictures(), batch_size=64 if cuda else 16, num_workers=2, pin_memory=cuda)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)).to(args.device)
    model(torch.zeros(1, 3, SIZE, SIZE, device=args.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(10):
        for images, labels in loader:
            images, labels = images.to(args.device, non_blocking=True), labels.to(args.device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
