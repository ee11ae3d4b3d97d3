# Day-ahead electricity load forecasting with an N-BEATS style stack.
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

np.random.seed(3)
torch.manual_seed(3)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

LOOKBACK, HORIZON = 168, 24
BATCH = 256
EPOCHS = 4

# %% three years of hourly load
hours = np.arange(24 * 365 * 3)
load = (
    60
    + 12 * np.sin(2 * np.pi * hours / 24)
    + 6 * np.sin(2 * np.pi * hours / 168 + 0.5)
    + 15 * np.cos(2 * np.pi * hours / 8760)
    + np.cumsum(np.random.randn(len(hours))) * 0.02
    + np.random.randn(len(hours)) * 1.5
)
load = (load - load.mean()) / load.std()

# %% sliding windows
windows = np.lib.stride_tricks.sliding_window_view(load, LOOKBACK + HORIZON)[::3]
split = int(len(windows) * 0.9)
train = torch.from_numpy(windows[:split].copy()).to(device)
valid = torch.from_numpy(windows[split:].copy()).to(device)
print("train windows", tuple(train.shape), "valid windows", tuple(valid.shape))


# %% model
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(LOOKBACK, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.backcast = nn.Linear(width, LOOKBACK)
        self.forecast = nn.Linear(width, HORIZON)

    def forward(self, x):
        h = self.body(x)
        return self.backcast(h), self.forecast(h)


class NBeats(nn.Module):
    def __init__(self, blocks=3, width=384):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, x):
        total = 0
        for block in self.blocks:
            back, fore = block(x)
            x = x - back
            total = total + fore
        return total


net = NBeats().to(device, train.dtype)
opt = torch.optim.AdamW(net.parameters(), lr=5e-4, weight_decay=1e-4, fused=True)
steps_per_epoch = len(train) // BATCH
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=2e-3, total_steps=EPOCHS * steps_per_epoch)
print("parameters", sum(p.numel() for p in net.parameters()))

# %% training
for epoch in range(EPOCHS):
    net.train()
    order = torch.randperm(len(train), device=device)
    for i in range(steps_per_epoch):
        batch = train[order[i * BATCH : (i + 1) * BATCH]]
        x, y = batch[:, :LOOKBACK], batch[:, LOOKBACK:]
        loss = F.smooth_l1_loss(net(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if i % 20 == 0:
            print(f"epoch {epoch} [{i}/{steps_per_epoch}] loss {loss.item():.4f}")

    net.eval()
    with torch.no_grad():
        mae = (net(valid[:, :LOOKBACK]) - valid[:, LOOKBACK:]).abs().mean()
    print(f"epoch {epoch} valid mae {mae.item():.4f}")
