"""Bearing fault diagnosis from vibration clips: log spectrum on the CPU, CNN on the GPU."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class VibrationClips(Dataset):
    """Clips of 8192 samples, kept as int16 the way the logger stores them."""

    def __init__(self, count=1024, classes=10, length=8192, seed=0):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(classes, size=count)
        t = np.arange(length, dtype=np.float32) / 12_000
        freq = 120.0 + 260.0 * self.labels[:, None]
        wave = np.sin(2 * np.pi * freq * t[None]) * 4000
        wave += rng.standard_normal((count, length), dtype=np.float32) * 3000
        self.clips = wave.astype(np.int16)
        self.window = np.hanning(256).astype(np.float32)

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, index):
        clip = self.clips[index].astype(np.float32) / 32768.0
        clip = np.roll(clip, np.random.randint(len(clip)))
        frames = np.lib.stride_tricks.sliding_window_view(clip, 256)[::128]
        spectrum = np.abs(np.fft.rfft(frames * self.window, axis=1))[:, :128]
        picture = np.log1p(spectrum).astype(np.float32)
        return torch.from_numpy(picture)[None], int(self.labels[index])


def conv(cin, cout, stride=1):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


def build_model(classes):
    return nn.Sequential(
        conv(1, 64),
        conv(64, 128, 2),
        conv(128, 128),
        conv(128, 256, 2),
        conv(256, 256),
        conv(256, 512, 2),
        conv(512, 512),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, classes),
    )


def run_epoch(loader, model, opt, loss_fn, device):
    total = torch.zeros((), device=device)
    for x, y in loader:
        x = x.to(device, non_blocking=True, memory_format=torch.channels_last)
        y = y.to(device, non_blocking=True)
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            loss = loss_fn(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        total += loss.detach()
    return total / len(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = VibrationClips()
    loader = DataLoader(
        data,
        batch_size=args.batch,
        shuffle=True,
        drop_last=True,
        num_workers=args.workers,
        pin_memory=device == "cuda",
        prefetch_factor=4,
    )
    model = build_model(10).to(device, memory_format=torch.channels_last)
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
    loss_fn = nn.CrossEntropyLoss()
    start = time.time()
    for epoch in range(args.epochs):
        loss = run_epoch(loader, model, opt, loss_fn, device)
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1} loss {loss.item():.4f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
