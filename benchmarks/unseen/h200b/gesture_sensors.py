"""Hand gestures from a wristband: five sensor streams per recording."""

import os
import resource
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
TICKS = 128 if CUDA else 32
WIDTH = 256 if CUDA else 16
BATCH = 96 if CUDA else 4
RECORDINGS = 9600 if CUDA else 80
EPOCHS = 4
GESTURES = 18
CHANNELS = {"accel": 3, "gyro": 3, "magnet": 3, "emg": 8, "pressure": 1}
WORKERS = 10 if CUDA else 1
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))

torch.backends.cudnn.benchmark = True
torch.set_float32_matmul_precision("high")
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))


class Recordings(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(5)
        self.streams = {k: torch.randn(RECORDINGS, c, TICKS, generator=g) for k, c in CHANNELS.items()}
        self.labels = torch.randint(GESTURES, (RECORDINGS,), generator=g)

    def __len__(self):
        return RECORDINGS

    def __getitem__(self, i):
        shift = int(torch.randint(0, 8, ()))
        sample = {k: s[i].roll(shift, -1) for k, s in self.streams.items()}
        sample["label"] = self.labels[i]
        return sample


def collate(samples):
    return samples


class GestureNet(nn.Module):
    def __init__(self, depth=6):
        super().__init__()
        self.stems = nn.ModuleDict({k: nn.Conv1d(c, WIDTH // 4, 5, padding=2) for k, c in CHANNELS.items()})
        self.mix = nn.Conv1d(len(CHANNELS) * (WIDTH // 4), WIDTH, 1)
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(nn.Conv1d(WIDTH, WIDTH, 5, padding=2, bias=False), nn.BatchNorm1d(WIDTH), nn.GELU())
                for _ in range(depth)
            ]
        )
        self.head = nn.Linear(WIDTH, GESTURES)

    def forward(self, streams):
        x = self.mix(torch.cat([self.stems[k](streams[k]) for k in CHANNELS], 1))
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean(-1))


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        Recordings(),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        collate_fn=collate,
        pin_memory=CUDA,
        persistent_workers=True,
    )
    model = GestureNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=CUDA)
    step, began = 0, time.time()
    for epoch in range(EPOCHS):
        total = torch.zeros((), device=device)
        for samples in loader:
            batch = {k: torch.stack([s[k] for s in samples]) for k in samples[0]}
            batch = {k: v.to(device, non_blocking=True) for k, v in batch.items()}
            with torch.autocast(device, dtype=torch.bfloat16):
                logits = model(batch)
            loss = F.cross_entropy(logits.float(), batch["label"])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            step += 1
            if LIMIT and step >= LIMIT:
                print("loss", loss.item())
                return
        print(f"epoch {epoch} loss {total.item() / len(loader):.4f} {time.time() - began:.1f}s", flush=True)


if __name__ == "__main__":
    main()
