import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = device == "cuda"
SESSIONS = 24 if ON_GPU else 4
FRAMES = 320
SIDE = 64
WINDOW = 8
CLASSES = 11
BATCH = 64 if ON_GPU else 8
EPOCHS = 4
ITEMS = 5760 if ON_GPU else 64
WORKERS = 8 if ON_GPU else 1
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


def write_sessions(folder):
    rng = np.random.default_rng(5)
    paths = []
    yy, xx = np.mgrid[0:SIDE, 0:SIDE]
    for s in range(SESSIONS):
        t = np.arange(FRAMES)[:, None, None]
        cx = 32 + 20 * np.sin(t / (9.0 + s % 5))
        cy = 32 + 20 * np.cos(t / (7.0 + s % 3))
        blob = 180 * np.exp(-((xx - cx) ** 2 + (yy - cy) ** 2) / 90.0)
        frames = (blob + rng.integers(0, 24, blob.shape)).astype(np.uint8)
        path = os.path.join(folder, f"session_{s:03d}.npz")
        np.savez_compressed(path, frames=frames, label=np.int64(s % CLASSES))
        paths.append(path)
    return paths


class GestureWindows(Dataset):
    def __init__(self, paths, length):
        self.sessions = [np.load(p) for p in paths]
        self.labels = [int(s["label"]) for s in self.sessions]
        for s in self.sessions:
            s.close()
        self.paths = paths
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        k = int(rng.integers(len(self.paths)))
        start = int(rng.integers(FRAMES - WINDOW))
        with np.load(self.paths[k]) as session:
            clip = session["frames"][start : start + WINDOW]
        return torch.from_numpy(np.ascontiguousarray(clip)), self.labels[k]


class Block(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.skip = nn.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.skip(x), inplace=True)


class GestureNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            Block(WINDOW, 64), Block(64, 64), Block(64, 128, 2), Block(128, 128), Block(128, 256, 2), Block(256, 256)
        )
        self.head = nn.Linear(256, CLASSES)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        data = GestureWindows(write_sessions(folder), ITEMS)
        loader = DataLoader(
            data, BATCH, shuffle=True, num_workers=WORKERS, pin_memory=ON_GPU, persistent_workers=True, drop_last=True
        )
        model = GestureNet().to(device, memory_format=torch.channels_last)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=ON_GPU)
        step = 0
        for epoch in range(EPOCHS):
            for clips, labels in loader:
                clips = clips.to(device, non_blocking=True)
                labels = labels.to(device, non_blocking=True)
                x = clips.float().div_(255).contiguous(memory_format=torch.channels_last)
                with torch.autocast(device, torch.bfloat16):
                    loss = F.cross_entropy(model(x), labels)
                opt.zero_grad(set_to_none=True)
                loss.backward()
                opt.step()
                step += 1
                if step % 100 == 0:
                    print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
                if step == LIMIT:
                    return


if __name__ == "__main__":
    main()
