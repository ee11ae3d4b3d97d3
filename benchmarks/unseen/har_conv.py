"""Activity recognition from wrist-worn IMU windows (6 channels, 100 Hz)."""

import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, Subset

torch.manual_seed(0)
rng = np.random.default_rng(0)

N_WINDOWS, WINDOW, N_CLASSES = 360, 128, 8
EPOCHS, BATCH = 5, 16

# ---- build the recording file -------------------------------------------------
data_dir = tempfile.mkdtemp(prefix="imu_")
data_file = os.path.join(data_dir, "windows.npz")

t = np.arange(WINDOW) / 100.0
labels = rng.integers(0, N_CLASSES, N_WINDOWS)
freq = 0.8 + 0.6 * labels[:, None, None]
phase = rng.uniform(0, 2 * np.pi, (N_WINDOWS, 6, 1))
signal = np.sin(2 * np.pi * freq * t + phase) + 0.3 * rng.standard_normal((N_WINDOWS, 6, WINDOW))
np.savez_compressed(data_file, signal=(signal * 2048).astype(np.int16), label=labels)
print(f"wrote {data_file}: {os.path.getsize(data_file) / 1e6:.1f} MB")


class ImuWindows(Dataset):
    def __init__(self, path, scale=2048.0):
        self.rec = np.load(path)
        self.label = torch.from_numpy(self.rec["label"])
        self.scale = scale

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        x = self.rec["signal"][i].astype(np.float32) / self.scale
        return torch.from_numpy(x), self.label[i]


full = ImuWindows(data_file)
order = torch.randperm(len(full)).tolist()
train_set, val_set = Subset(full, order[40:]), Subset(full, order[:40])
train_loader = DataLoader(train_set, batch_size=BATCH, shuffle=True, drop_last=True)
val_loader = DataLoader(val_set, batch_size=40)


# ---- model --------------------------------------------------------------------
def block(cin, cout, stride):
    return nn.Sequential(
        nn.Conv1d(cin, cout, 7, stride=stride, padding=3, bias=False),
        nn.BatchNorm1d(cout),
        nn.ReLU(inplace=True),
    )


model = nn.Sequential(
    block(6, 96, 1),
    block(96, 128, 2),
    block(128, 192, 2),
    nn.AdaptiveAvgPool1d(1),
    nn.Flatten(),
    nn.Linear(192, N_CLASSES),
)
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

# ---- train --------------------------------------------------------------------
step = 0
t0 = time.perf_counter()
for epoch in range(EPOCHS):
    model.train()
    for x, y in train_loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        step += 1
        if step % 50 == 0:
            print(f"step {step:4d} loss {loss.item():.3f}")
    model.eval()
    with torch.no_grad():
        correct = sum((model(x).argmax(1) == y).sum() for x, y in val_loader)
    print(f"epoch {epoch} val acc {correct.item() / len(val_set):.3f}")
print(f"{(time.perf_counter() - t0) / step * 1e3:.1f} ms/step over {step} steps")
