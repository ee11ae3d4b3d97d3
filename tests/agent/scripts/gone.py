"""A model that is gone before the script ends. From the 41st step on a hook is registered in each; a later one is long."""

import time

import torch
from common import batches, end, net, said


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(batches(50)):
        if step > 40:
            model[0].register_forward_hook(lambda *_: None)
        if step == 47:
            time.sleep(1.1)
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said(loss)
    end(model)


train(net())
