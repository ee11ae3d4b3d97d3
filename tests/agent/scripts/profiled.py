"""A loop long enough for a profile. `own`: with a profiler of its own; `mode`: inside a dispatch mode; `compiled`; in a `thread`; `workers`, new ones
in each step; a `teacher` in inference mode, by which each step begins."""

import sys
import threading

import torch
from common import Data, end, net, said
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x  # line: own forward

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors  # line: save
        return grad * 2 * x  # line: own backward


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        x = self.drop(x)  # line: dropout
        return checkpoint(self.inner, x, use_reentrant=False)

    def inner(self, x):
        return Square.apply(self.net(x))  # line: inner


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def epochs(loader, wanted):
    for _ in range(wanted):
        yield from loader


def main(kind, wanted):
    model = Net()
    if kind == "compiled":
        model.compile(backend="eager")
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    at = 0
    loader = DataLoader(Data(), 72, num_workers=1) if kind == "workers" else DataLoader(Data(), 6)
    if kind == "teacher":
        loader, teacher = list(loader), Net()
    for x, y in epochs(loader, wanted):
        at += 1
        if kind == "teacher":
            with torch.inference_mode():
                y = teacher(x)
        if kind == "own" and at == 100:
            profiler = torch.profiler.profile()
            profiler.start()
        if kind == "own" and at == 103:
            profiler.stop()
            print("own", sum(event.name == "aten::addmm" for event in profiler.events()))
        if kind == "mode" and at == 8:
            mode = Passing()
            mode.__enter__()
        loss = (model(x) - y).square().mean()  # line: loss
        loss.backward()  # line: backward
        optimizer.step()  # line: optimizer
        optimizer.zero_grad()
        said(loss)
    if kind == "mode":
        mode.__exit__(None, None, None)
    print(torch.utils._python_dispatch._get_current_dispatch_mode_stack())
    end(model)


if __name__ == "__main__":
    if sys.argv[1] == "thread":
        thread = threading.Thread(target=main, args=("thread", int(sys.argv[2])))
        thread.start()
        thread.join()
    else:
        main(sys.argv[1], int(sys.argv[2]))
