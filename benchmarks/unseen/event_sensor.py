import os

import torch
import torch.nn as nn
import torch.nn.functional as F

steps = int(os.environ.get("STEPS", 80))
torch.manual_seed(11)

CHANNELS = 2048
SESSIONS = 64
TICKS = 24


class GainControl(nn.Module):
    """Divides each channel by the root of its running power, tick by tick."""

    def __init__(self, channels, classes, decay=0.55):
        super().__init__()
        self.decay = decay
        self.readout = nn.Sequential(nn.Linear(channels, 128), nn.ReLU(), nn.Linear(128, classes))

    def forward(self, events, power):
        level = torch.zeros_like(power)
        for t in range(events.shape[0]):
            power = power * self.decay + events[t] ** 2
            level = level + events[t] / (power.sqrt() + 1e-3)
        return self.readout(level), power


def event_stream(n):
    # Only some of the channels are wired; the others never report anything.
    wired = CHANNELS // 8
    chunks = []
    for _ in range(n):
        events = torch.zeros(TICKS, SESSIONS, CHANNELS)
        events[:, :, :wired] = torch.randn(TICKS, SESSIONS, wired).relu()
        label = (events[:, :, :wired].sum((0, 2)) % 4).long()
        chunks.append((events, label))
    return chunks


chunks = event_stream(8)
model = GainControl(CHANNELS, classes=4)
opt = torch.optim.SGD(model.parameters(), lr=0.01)

power = torch.full((SESSIONS, CHANNELS), 1e-4)
for step in range(steps):
    events, label = chunks[step % 8]
    logits, power = model(events, power)
    loss = F.cross_entropy(logits, label)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print("step", step, "loss", round(float(loss), 4))

print("finished after", steps, "steps")
