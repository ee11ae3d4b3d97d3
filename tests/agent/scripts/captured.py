"""CUDA graphs that a script records itself, on a device that is made up: what is recorded runs, and its replay is work of
the script's own, in which no hook has a part."""

import gc
import sys
import threading

import torch
from common import batches, end, net, said
from torch import nn

kind, replays = sys.argv[1], int(sys.argv[2])
base = torch.cuda.CUDAGraph.__mro__[1]
running = []


class Graph(torch.cuda.CUDAGraph):
    def __new__(cls, work=None):
        graph = object.__new__(cls)
        graph._tracker = None
        return graph

    def __init__(self, work):
        self.work = work


def capture_begin(graph, **_):
    if kind == "refused":
        raise RuntimeError("no capture today")
    running.append(graph)


def capture_end(graph):
    running.remove(graph)
    if kind == "failed":
        raise RuntimeError("the capture ended before")


base.capture_begin, base.capture_end = capture_begin, capture_end
base.replay = lambda graph: graph.work()


def recorded(body, work):
    """As `torch.cuda.graph` does."""
    graph = Graph(work)
    graph.capture_begin()
    try:
        body()
    finally:
        graph.capture_end()
    return graph


def shrink(*models):
    """What a replay does."""
    with torch.no_grad():
        for p in (p for model in models for p in model.parameters()):
            p.mul_(0.999)


model, other = net(), net()
every = iter(batches(10_000))


def gradients(model=model):
    x, y = next(every)
    loss = (model(x) - y).square().mean()
    loss.backward()
    return loss


def infer():
    with torch.no_grad():
        return model(next(every)[0]).sum()


class Samples(torch.utils.data.Dataset):
    """Each passes a model that was recorded."""

    def __init__(self, count):
        self.graph = None
        self.count = count

    def __len__(self):
        return 4 * self.count

    def __getitem__(self, index):
        if self.graph is None:
            self.graph = recorded(infer, lambda: None)
        self.graph.replay()
        return torch.ones(4)


if kind in {"data", "thread"}:
    model.eval()
    loader = torch.utils.data.DataLoader(Samples(replays), 4) if kind == "data" else torch.ones(replays, 6, 4)
    if kind == "thread":
        thread = threading.Thread(target=recorded, args=(lambda: None, None))
        thread.start()
        thread.join()
    with torch.no_grad():
        for x in loader:
            print("out", model(x).sum().item())
    end(model)
    sys.exit()
if kind == "infer":
    model.eval()
    for _ in range(3):
        print("out", infer().item())
    graph = recorded(infer, lambda: shrink(model))
    for _ in range(replays):
        graph.replay()
        print("out", model[0].weight.sum().item())
    end(model)
    sys.exit()


class Recording(torch.optim.SGD):
    """Records in its own step, as levers do."""

    graph = Graph(lambda: None)

    @torch.no_grad()
    def step(self, closure=None):
        self.graph.capture_begin()
        self.graph.capture_end()
        super().step(closure)
        self.graph.replay()


optimizer = (Recording if kind == "inside" else torch.optim.SGD)(model.parameters(), lr=0.01)
second = torch.optim.SGD(other.parameters(), lr=0.01) if kind in {"two", "both"} else None


def step(model=model, optimizer=optimizer):
    optimizer.zero_grad()
    loss = gradients(model)
    optimizer.step()
    return loss


def together():
    optimizer.zero_grad()
    second.zero_grad()
    gradients()
    optimizer.step()
    second.step()


for _ in range(3):
    if kind == "both":
        together()
        continue
    if kind == "two":
        said(step())
    said(step(other, second) if kind == "two" else step())
if kind == "partial":
    graph = recorded(gradients, lambda: shrink(model))
    for _ in range(replays):
        graph.replay()
        optimizer.step()
elif kind == "two":
    graphs = recorded(step, lambda: shrink(model)), recorded(lambda: step(other, second), lambda: shrink(other))
    for _ in range(replays):
        for graph in graphs:
            graph.replay()
elif kind == "inside":
    for _ in range(replays):
        said(step())
elif kind in {"failed", "refused"}:
    try:
        recorded(step, None)
    except RuntimeError as error:
        print(error)
    for _ in range(replays):
        said(step())
elif kind == "forward":

    class Whole(nn.Module):
        """The model of a library whose forward is a step."""

        def __init__(self):
            super().__init__()
            self.inner = model
            self.graph = recorded(step, lambda: shrink(model))

        def forward(self):
            self.graph.replay()

    whole = Whole()
    for _ in range(replays):
        whole()
elif kind == "stale":

    def fails(*_):
        raise torch.OutOfMemoryError("no memory today")

    handle = optimizer.register_step_pre_hook(fails)
    try:
        step()
    except torch.OutOfMemoryError as error:
        print(error)
    handle.remove()
    graph = recorded(step, lambda: shrink(model))
    for _ in range(replays):
        graph.replay()
elif kind == "beside":
    begun, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=recorded, args=(lambda: (begun.set(), done.wait()), None))
    thread.start()
    begun.wait()
    for at in range(replays):
        if at == 4:
            done.set()
            thread.join()
        said(step())
elif kind == "both":
    graphs = [recorded(together, lambda: shrink(model)) for _ in range(3)]
    for at in range(replays):
        graphs[at % 3].replay()
    together()
elif kind == "unrolled":
    graph = recorded(lambda: [step() for _ in range(5)], lambda: shrink(model))
    for _ in range(replays):
        graph.replay()
elif kind == "dropped":

    class Freed(Graph):
        def __del__(self):
            running.remove(id(self))
            print("freed")

    base.capture_begin = lambda graph, **_: running.append(id(graph))
    graph = Freed(None)
    graph.capture_begin()
    del graph
    gc.collect()
    for _ in range(replays):
        said(step())
elif kind == "evaluation":

    def evaluate():
        model.eval()
        infer()
        model.train()

    graph = recorded(evaluate, lambda: None)
    for at in range(replays):
        said(step())
        if at % 4 == 1:
            graph.replay()
else:
    graph = recorded(step, lambda: shrink(model))
    for _ in range(replays):
        graph.replay()
    if kind == "again":
        graph = recorded(step, lambda: shrink(model))
        for _ in range(replays):
            graph.replay()
    said(step())
assert not running
end(model, other)
