import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

config = dict(
    sample_rate=16000,
    n_fft=1024,
    hop=400,
    n_mels=128,
    n_classes=8,
    n_train=400,
    n_test=160,
    batch_size=8,
    epochs=3,
    lr=2e-3,
)


def hz_to_mel(f):
    return 2595.0 * math.log10(1.0 + f / 700.0)


def mel_to_hz(m):
    return 700.0 * (10.0 ** (m / 2595.0) - 1.0)


class LogMel(nn.Module):
    def __init__(self, sample_rate, n_fft, hop, n_mels):
        super().__init__()
        self.sample_rate, self.n_fft, self.hop, self.n_mels = sample_rate, n_fft, hop, n_mels
        self.register_buffer("window", torch.hann_window(n_fft))

    def filters(self, device):
        top = hz_to_mel(self.sample_rate / 2)
        edges = [mel_to_hz(top * i / (self.n_mels + 1)) for i in range(self.n_mels + 2)]
        freqs = torch.linspace(0, self.sample_rate / 2, self.n_fft // 2 + 1)
        fb = torch.zeros(self.n_mels, self.n_fft // 2 + 1)
        for m in range(self.n_mels):
            lo, mid, hi = edges[m], edges[m + 1], edges[m + 2]
            for k, f in enumerate(freqs.tolist()):
                if lo <= f < mid:
                    fb[m, k] = (f - lo) / (mid - lo)
                elif mid <= f < hi:
                    fb[m, k] = (hi - f) / (hi - mid)
        return fb.to(device)

    def forward(self, wave):
        spec = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True)
        power = spec.real.square() + spec.imag.square()
        mel = self.filters(wave.device) @ power
        return torch.log(mel + 1e-6).unsqueeze(1)


class SpotterNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.frontend = LogMel(cfg["sample_rate"], cfg["n_fft"], cfg["hop"], cfg["n_mels"])
        self.norm = nn.BatchNorm2d(1)
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 48, 3, padding=1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.fc = nn.Linear(48, cfg["n_classes"])

    def forward(self, wave):
        return self.fc(self.body(self.norm(self.frontend(wave))))


def synth_words(n, cfg, seed):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, cfg["n_classes"], (n,), generator=g)
    t = torch.arange(cfg["sample_rate"]) / cfg["sample_rate"]
    base = 200.0 + 90.0 * label.float() + 20 * torch.rand(n, generator=g)
    sweep = 150.0 * (label % 3 - 1).float()
    phase = 2 * math.pi * (base[:, None] * t + 0.5 * sweep[:, None] * t**2)
    wave = torch.sin(phase) + 0.4 * torch.sin(2 * phase) + 0.5 * torch.randn(n, len(t), generator=g)
    return TensorDataset(wave, label)


@torch.no_grad()
def test(model, loader):
    model.eval()
    correct = sum((model(w).argmax(1) == y).sum().item() for w, y in loader)
    model.train()
    return correct / len(loader.dataset)


def main(cfg):
    torch.manual_seed(0)
    train_loader = DataLoader(synth_words(cfg["n_train"], cfg, 1), cfg["batch_size"], shuffle=True)
    test_loader = DataLoader(synth_words(cfg["n_test"], cfg, 2), 80)
    model = SpotterNet(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg["lr"])
    step = 0
    for epoch in range(cfg["epochs"]):
        for wave, y in train_loader:
            loss = F.cross_entropy(model(wave), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 25 == 0:
                print(f"{step:5d} loss {loss.item():.4f}")
        print(f"epoch {epoch} test accuracy {test(model, test_loader):.3f}")


main(config)
