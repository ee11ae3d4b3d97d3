import torch
import torch.nn as nn
import torch.nn.functional as F


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token_mlp = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channel_mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.token_mlp(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel_mlp(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, patch=4, dim=64, depth=2, classes=10):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, patch)
        self.blocks = nn.Sequential(*[MixerBlock(64, dim) for _ in range(depth)])
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.head(self.blocks(x).mean(dim=1))


class ActivationStats:
    def __init__(self):
        self.stats = {}

    def attach(self, model):
        for name, module in model.named_modules():
            if isinstance(module, (nn.Linear, nn.LayerNorm)):
                module.register_forward_hook(self.make_hook(name))

    def make_hook(self, name):
        def hook(module, inputs, output):
            out = output.detach()
            self.stats[name] = (out.mean().item(), out.std().item())

        return hook

    def dead(self):
        return [n for n, (_, s) in self.stats.items() if s < 1e-6]


def train_step(model, batch, optimizer, monitor):
    images, labels = batch
    monitor.attach(model)
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    torch.manual_seed(0)
    images, labels = torch.randn(512, 3, 32, 32), torch.randint(0, 10, (512,))
    model, monitor = Mixer(), ActivationStats()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(80):
        idx = torch.randint(0, 512, (16,))
        loss = train_step(model, (images[idx], labels[idx]), optimizer, monitor)
        if step % 20 == 0:
            print(f"step {step} loss {loss:.3f} dead {monitor.dead()}")


if __name__ == "__main__":
    main()
