import os
from collections import defaultdict

import torch
import torch.nn as nn

NUM_STEPS = int(os.environ.get("STEPS", 80))


def conv_block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(), nn.MaxPool2d(2))


def build():
    return nn.Sequential(
        conv_block(1, 16), conv_block(16, 32), conv_block(32, 32), nn.Flatten(), nn.Linear(32 * 4 * 4, 10)
    )


class ActivationWatch:
    """Keeps the share of dead units for each ReLU."""

    def __init__(self):
        self.dead = defaultdict(float)

    def attach(self, model):
        for name, module in model.named_modules():
            if isinstance(module, nn.ReLU):
                module.register_forward_hook(self.make_hook(name))

    def make_hook(self, name):
        def hook(module, inputs, output):
            self.dead[name] = (output.detach() <= 0).float().mean().item()

        return hook


def train_step(model, watch, optimizer, x, y):
    model.train()
    watch.attach(model)
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item(), dict(watch.dead)


def main():
    torch.manual_seed(0)
    images = torch.randn(640, 1, 32, 32)
    labels = (images.flatten(1)[:, :10]).argmax(1)
    model = build()
    watch = ActivationWatch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for i in range(NUM_STEPS):
        lo = (i * 16) % 640
        loss, dead = train_step(model, watch, optimizer, images[lo : lo + 16], labels[lo : lo + 16])
        if i % 20 == 0:
            shares = " ".join(f"{v:.2f}" for v in dead.values())
            print(f"step {i} loss {loss:.3f} dead {shares}")


if __name__ == "__main__":
    main()
