"""A loop in which something raises at a step: where (the first argument), at which (the second)."""

import sys

import torch
from common import ROWS, Data, net
from torch.utils.data import DataLoader

kind, at = sys.argv[1], int(sys.argv[2])
now = 0


def here(where):
    if where == kind and now >= at:
        raise ValueError(f"in the {where}")


class Rows(Data):
    def __len__(self):
        return ROWS * 200

    def __getitem__(self, index):
        if kind in {"dataset", "worker"} and index >= at * ROWS:
            raise KeyError(index)
        return super().__getitem__(index % super().__len__())


class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x):
        here("nested module")
        if kind == "cause" and now >= at:
            try:
                {}[now]
            except KeyError as error:
                raise RuntimeError("from another") from error
        return self.net(x)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(Inner())

    def forward(self, x):
        here("forward")
        if kind == "interrupt" and now >= at:
            raise KeyboardInterrupt
        return self.inner(x)


class Through(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        here("backward")
        return gradient


class SGD(torch.optim.SGD):
    def step(self, closure=None):
        here("step")
        return super().step(closure)


def main():
    global now
    model = Model()
    if kind == "in place":
        model.compile(backend="eager")
    run = torch.compile(model, backend="eager") if kind == "compiled" else model
    model.inner.register_forward_hook(lambda *_: here("hook"))
    model.register_forward_pre_hook(lambda *_: here("pre hook"))
    if kind == "no parameters":
        torch.optim.SGD([])
    optimizer = SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for x, y in DataLoader(Rows(), ROWS, num_workers=int(kind == "worker")):
        if kind in {"shapes", "compiled", "in place"} and now >= at:
            x = x[:, :2]
        loss = (Through.apply(run(x) if kind != "missing" or now < at else run()) - y).square().mean()
        if kind == "no gradient" and now >= at:
            loss = loss.detach()
        loss.backward()
        scaler.step(optimizer)
        optimizer.zero_grad()
        here("loop")
        now += 1
        if now > at + 4:
            return


main()
