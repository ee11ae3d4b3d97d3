# Classify synthetic spoken vowels from raw audio: log-mel front end, small GRU on top.
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from scipy.signal import get_window, lfilter

RATE = 16000
FORMANTS = {"a": (800, 1200), "e": (500, 1900), "i": (300, 2300), "o": (500, 900), "u": (320, 800)}


def synth_clip(rng, vowel, seconds=0.5):
    n = int(RATE * seconds)
    f0 = rng.uniform(90, 240)
    source = np.zeros(n)
    source[(np.arange(0, n, RATE / f0)).astype(int)] = 1.0
    source += 0.02 * rng.standard_normal(n)
    for f in FORMANTS[vowel]:
        f = f * rng.uniform(0.9, 1.1)
        r = 0.97
        source = lfilter([1.0], [1, -2 * r * np.cos(2 * np.pi * f / RATE), r * r], source)
    return (source / np.abs(source).max()).astype(np.float32)


def make_corpus(n_clips, seed):
    rng = np.random.default_rng(seed)
    names = list(FORMANTS)
    labels = rng.integers(len(names), size=n_clips)
    audio = np.stack([synth_clip(rng, names[k]) for k in labels])
    return torch.from_numpy(audio), torch.from_numpy(labels)


def mel_bank(n_mels, n_fft):
    def to_hz(m):
        return 700 * (10 ** (m / 2595) - 1)

    top = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = to_hz(np.linspace(0, top, n_mels + 2))
    freqs = np.linspace(0, RATE / 2, n_fft // 2 + 1)
    up = (freqs[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - freqs[None]) / (edges[2:] - edges[1:-1])[:, None]
    return np.maximum(0, np.minimum(up, down)).T


class LogMel(nn.Module):
    def __init__(self, n_fft=512, frame=400, hop=128, n_mels=64):
        super().__init__()
        self.n_fft, self.frame, self.hop = n_fft, frame, hop
        self.register_buffer("window", torch.from_numpy(get_window("hann", frame)))
        self.register_buffer("bank", torch.from_numpy(mel_bank(n_mels, n_fft)))

    def forward(self, audio):
        frames = audio.unfold(-1, self.frame, self.hop) * self.window
        power = torch.fft.rfft(frames, n=self.n_fft).abs().square()
        mel = torch.log(power @ self.bank + 1e-5)
        mel = (mel - mel.mean(1, keepdim=True)) / (mel.std(1, keepdim=True) + 1e-3)
        return mel.float()


class VowelNet(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.front = LogMel()
        self.conv = nn.Conv1d(64, 32, 5, stride=4, padding=2)
        self.gru = nn.GRU(32, hidden, batch_first=True)
        self.out = nn.Linear(hidden, len(FORMANTS))

    def forward(self, audio):
        x = self.front(audio).transpose(1, 2)
        x = F.relu(self.conv(x)).transpose(1, 2)
        h, _ = self.gru(x)
        return self.out(h.mean(1))


def perturb(audio, gen):
    gain = torch.empty(audio.size(0), 1).uniform_(0.3, 1.0, generator=gen)
    shift = int(torch.randint(0, audio.size(1), (1,), generator=gen))
    return (audio * gain).roll(shift, 1)


def main(steps=400, batch=32):
    torch.manual_seed(0)
    audio, labels = make_corpus(1200, seed=0)
    gen = torch.Generator().manual_seed(0)
    net = VowelNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    hits, start = 0, time.perf_counter()
    for step in range(1, steps + 1):
        idx = torch.randint(len(labels), (batch,), generator=gen)
        logits = net(perturb(audio[idx], gen))
        loss = F.cross_entropy(logits, labels[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hits += int((logits.argmax(1) == labels[idx]).sum())
        if step % 100 == 0:
            print(f"[{step}] loss={loss.item():.3f} acc={hits / (100 * batch):.3f}", flush=True)
            hits = 0
    print(f"{1000 * (time.perf_counter() - start) / steps:.2f} ms/step")


main()
