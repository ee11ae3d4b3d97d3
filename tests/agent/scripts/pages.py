"""Each training step maps PAGES pages of memory anew; what is no step maps many more, but for the forwards before the
loop, of which there may be many. `forwards=N`: before it, by a model in eval mode; `every=N`: an evaluation after so
many steps; `after=N`: N times as many pages when the loop is over."""

import mmap
import sys

import torch
from common import batches, end, net, said

PAGES, STEPS = 300, 150
asked = {"forwards": 0, "every": 0, "after": 0}
asked.update((name, int(value)) for name, value in (word.split("=") for word in sys.argv[1:]))


def mapped(pages):
    """As many faults: no allocator keeps this memory, and the kernel makes no larger pages of it."""
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(pages):
            memory[page * mmap.PAGESIZE] = 1


@torch.no_grad()
def evaluate(times, pages):
    model.eval()
    for x, _ in batches(times):
        model(x)
        mapped(pages)
    model.train()


model = net()
evaluate(asked["forwards"], 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (x, y) in enumerate(batches(STEPS), 1):
    said(loss := (model(x) - y).square().mean())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    mapped(PAGES)
    if asked["every"] and step % asked["every"] == 0:
        evaluate(1, 30 * PAGES)
for _ in range(asked["after"]):
    mapped(100 * PAGES)
end(model)
