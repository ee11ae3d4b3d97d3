"""Keyword spotting in far-field conditions: clean clips, simulated rooms, small CNN."""

import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE = 16_000
N_WORDS = 12


def synth_word(word, rng):
    t = np.arange(RATE) / RATE
    f0 = 180 + 55 * word
    sweep = f0 * t + (word % 3 - 1) * 120 * t**2
    envelope = np.exp(-(((t - rng.uniform(0.3, 0.6)) / 0.18) ** 2))
    return (envelope * (np.sin(2 * np.pi * sweep) + 0.3 * np.sin(6 * np.pi * sweep))).astype(np.float32)


def room_responses(count, rng, seconds=0.15):
    n = int(RATE * seconds)
    rooms = []
    for _ in range(count):
        rt60 = rng.uniform(0.08, 0.25)
        h = rng.normal(0, 1, n) * 10 ** (-3 * np.arange(n) / (rt60 * RATE))
        h[0] = 4.0
        rooms.append((h / np.linalg.norm(h)).astype(np.float32))
    return rooms


class FarField:
    def __init__(self, rooms, noise=0.05):
        self.rooms = rooms
        self.noise = noise

    def __call__(self, clip):
        room = self.rooms[np.random.randint(len(self.rooms))]
        wet = np.convolve(clip, room, mode="full")[: len(clip)]
        wet = wet + self.noise * np.random.standard_normal(len(wet)).astype(np.float32)
        return wet / (np.abs(wet).max() + 1e-6)


class Keywords(Dataset):
    def __init__(self, n, transform, seed=0):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, N_WORDS, n)
        self.clips = [synth_word(w, rng) for w in self.labels]
        self.transform = transform

    def __len__(self):
        return len(self.clips)

    def __getitem__(self, i):
        clip = self.transform(self.clips[i])
        return torch.from_numpy(clip.astype(np.float32)), int(self.labels[i])


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(512))
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(512, N_WORDS),
        )

    def forward(self, audio):
        spec = torch.stft(audio, 512, hop_length=256, window=self.window, return_complex=True)
        return self.cnn(torch.log1p(spec.abs()).unsqueeze(1))


def main():
    torch.manual_seed(0)
    transform = FarField(room_responses(40, np.random.default_rng(1)))
    loader = DataLoader(Keywords(1440, transform), batch_size=12, shuffle=True, num_workers=2)
    model = Spotter()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(1):
        start, total = time.time(), 0.0
        for step, (audio, label) in enumerate(loader, 1):
            optimizer.zero_grad()
            loss = loss_fn(model(audio), label)
            loss.backward()
            optimizer.step()
            total += loss.item()
            if step % 30 == 0:
                print(f"epoch {epoch} step {step} loss {total / step:.4f}", flush=True)
        print(f"epoch {epoch}: {step} steps in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
