"""A model of repeated blocks whose activations are too many: a limit on what autograd saves stands in for a device's.

The words of a sample are the first argument: with more of them the process itself takes more memory.
"""

import sys

import torch
from torch import nn

WORDS = 8 if len(sys.argv) < 2 else int(sys.argv[1])
ROWS = 64
LIMIT = 300_000 + 7_000 * ROWS * WORDS


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(8)])
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.blocks(x))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    data = torch.utils.data.TensorDataset(torch.randn(4 * ROWS, WORDS, 32), torch.randint(0, 4, (4 * ROWS, WORDS)))
    saved = [0]

    def pack(tensor):
        saved[0] += tensor.numel() * tensor.element_size()
        if saved[0] > LIMIT:
            raise torch.OutOfMemoryError("CUDA out of memory (a limit of the test)")
        return tensor

    for _ in range(100):
        for x, y in torch.utils.data.DataLoader(data, batch_size=ROWS, shuffle=True):
            saved[0] = 0
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


main()
