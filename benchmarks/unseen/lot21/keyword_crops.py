"""Keyword spotting from raw waveforms with a strided 1-D CNN and random-length crops.

The clips are synthesised: every keyword is a sequence of three formant-like chirps.
"""
import math
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
RATE = 16000
LONGEST = 16000 if CUDA else 2000
SHORTEST = 8000 if CUDA else 1200
HOP = 20
N_CLIPS = 6000 if CUDA else 40
BATCH = 64 if CUDA else 4
WIDTH = 128 if CUDA else 8
STEPS = 400 if CUDA else 4
KEYWORDS = 30


def setup(seed=0):
    random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True


def synthesise():
    g = torch.Generator().manual_seed(2)
    recipe = 200 + 3000 * torch.rand(KEYWORDS, 3, 2, generator=g)
    label = torch.randint(0, KEYWORDS, (N_CLIPS,), generator=g)
    clips = torch.zeros(N_CLIPS, LONGEST)
    third = LONGEST // 3
    t = torch.arange(third).float() / RATE
    for part in range(3):
        low, high = recipe[label, part].unbind(1)
        pitch = 1 + 0.05 * torch.randn(N_CLIPS, 1, generator=g)
        sweep = low[:, None] + (high - low)[:, None] * t / t[-1]
        clips[:, part * third:(part + 1) * third] = torch.sin(2 * math.pi * sweep * pitch * t)
    clips += 0.1 * torch.randn(clips.shape, generator=g)
    return clips, label


class Stage(nn.Module):
    def __init__(self, c_in, c_out, kernel, stride):
        super().__init__()
        self.down = nn.Conv1d(c_in, c_out, kernel, stride, kernel // 2, bias=False)
        self.norm1 = nn.BatchNorm1d(c_out)
        self.mix = nn.Conv1d(c_out, c_out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm1d(c_out)

    def forward(self, x):
        x = F.relu(self.norm1(self.down(x)))
        return x + F.relu(self.norm2(self.mix(x)))


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        w = WIDTH
        self.stages = nn.Sequential(
            Stage(1, w, 81, 4), Stage(w, w, 9, 4), Stage(w, 2 * w, 9, 2), Stage(2 * w, 4 * w, 9, 2),
        )
        self.head = nn.Linear(4 * w, KEYWORDS)

    def forward(self, wave):
        return self.head(self.stages(wave[:, None]).mean(-1))


def random_crop(clips, rng):
    """One crop length for the batch, so that the model sees words cut at either end."""
    length = HOP * rng.randint(SHORTEST // HOP, LONGEST // HOP)
    first = rng.randint(0, LONGEST - length)
    return clips[:, first:first + length]


def main():
    setup()
    rng = random.Random(4)
    clips, labels = synthesise()
    clips, labels = clips.to(device), labels.to(device)
    net = Spotter().to(device)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.02, fused=CUDA)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
    stats = torch.zeros(2, device=device)
    start = time.time()
    for step in range(1, STEPS + 1):
        pick = torch.randint(0, N_CLIPS, (BATCH,), device=device)
        x, y = random_crop(clips[pick], rng), labels[pick]
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = net(x)
        loss = F.cross_entropy(logits.float(), y, label_smoothing=0.05)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        stats += torch.stack([loss.detach(), (logits.argmax(1) == y).float().mean()])
        if step % 50 == 0 or step == STEPS:
            mean_loss, mean_acc = (stats / 50).tolist()
            print(f"step {step} loss {mean_loss:.4f} acc {mean_acc:.3f} "
                  f"{(time.time() - start) / step * 1e3:.1f} ms", flush=True)
            stats.zero_()


if __name__ == "__main__":
    main()
