"""A model of blocks into which the script looks, and in which it changes something, from the fourth step to the sixth."""

import torch
from common import batches, end, said
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        query = self.norm(x)
        weights = (query @ query.transpose(-2, -1) / 8**0.5).softmax(-1)
        return x + self.down(torch.relu(self.up(weights @ query)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 64), nn.Linear(64, 1)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x):
        x = self.first(x).unflatten(-1, (8, 8))
        for block in self.blocks:
            x = block(x)
        return self.last(x.flatten(1))


def main():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = []
    hooks = []
    for step, (x, y) in enumerate(batches(10)):
        if step == 3:
            hooks.append(model.blocks[1].up.register_forward_hook(lambda module, inputs, output: seen.append(1)))
            hooks.append(model.blocks[2].register_forward_hook(lambda module, inputs, output: output * 0.5))
        if step == 6:
            for hook in hooks:
                hook.remove()
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        said(loss)
    print("seen", len(seen))
    end(model)


main()
