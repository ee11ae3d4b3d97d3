"""A model of repeated blocks with dropout and running statistics. Says what autograd keeps for the backward."""

import argparse
import copy
import io

import torch
from common import batches, end, said
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--counts", action="store_true", help="blocks count their forwards")
parser.add_argument("--hooked", action="store_true", help="a layer inside a block has a forward hook")
parser.add_argument("--normed", action="store_true", help="a layer inside a block has its weight normalised by a hook")
parser.add_argument("--evaluate", action="store_true")
parser.add_argument("--varied", action="store_true", help="batches of two sizes")
args = parser.parse_args()
WIDE = 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(WIDE), nn.Dropout(0.25)
        self.up, self.down = nn.Linear(WIDE, 2 * WIDE), nn.Linear(2 * WIDE, WIDE)
        self.register_buffer("calls", torch.zeros(()))
        if args.hooked:
            self.up.register_forward_hook(lambda module, inputs, output: None)

    def forward(self, x):
        if args.counts:
            self.calls += 1
        return x + self.drop(self.down(torch.relu(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, WIDE), nn.Linear(WIDE, 1)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def main():
    model = Net()
    average = copy.deepcopy(model)
    if args.normed:
        for block in model.blocks:
            nn.utils.weight_norm(block.up)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    kept = 0

    def keep(tensor):
        nonlocal kept
        kept += tensor.numel()
        return tensor

    for step, (x, y) in enumerate(batches()):
        if args.varied and step % 2:
            x, y = x[:4], y[:4]
        optimizer.zero_grad()
        kept = 0
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = said(nn.functional.mse_loss(model(x), y))
        loss.backward()
        optimizer.step()
        if args.evaluate:
            model.eval()
            with torch.no_grad():
                print("evaluated", model(x).sum().item())
            model.train()
    if args.normed:  # such a model can't be copied
        for block in model.blocks:
            nn.utils.remove_weight_norm(block.up)
    again = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    for copied in (again, loaded):
        copied.load_state_dict({name: torch.ones_like(value) for name, value in model.state_dict().items()})
        print("copied", copied.eval()(x).sum().item())
    end(model, average)
    print("kept", kept)


if __name__ == "__main__":
    main()
