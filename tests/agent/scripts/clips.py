"""The ways in which scripts clip their gradients. Says what the norm was before, at each."""

import argparse

import torch
from common import batches, end, net, said
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm

parser = argparse.ArgumentParser()
parser.add_argument("how", nargs="?", default="norm")
how = parser.parse_args().how
MOST = 0.01


def clip(parameters):
    if how == "norm":
        clip_grad_norm_(parameters, MOST)
    elif how == "keywords":
        print("returned", nn.utils.clip_grad_norm_(parameters=parameters, max_norm=MOST, norm_type=1.0).item())
    elif how == "value":
        clip_grad_value_(parameters, MOST)
    elif how == "twice":
        clip_grad_value_(parameters, MOST)
        clip_grad_norm_(parameters, MOST)
    elif how == "parts":
        total = get_total_norm([parameter.grad for parameter in parameters])
        clip_grads_with_norm_((parameter for parameter in parameters), MOST, total)
    elif how == "each":
        for parameter in parameters:
            nn.utils.clip_grad.clip_grad_norm_(parameter, MOST)
    elif how == "some":
        clip_grad_norm_(parameters[:1], MOST)
    elif how == "by hand":
        for parameter in parameters:
            parameter.grad.clamp_(-MOST, MOST)
    elif how == "compiled":
        compiled(parameters)


@torch.compile(backend="eager", fullgraph=True)
def compiled(parameters):
    clip_grad_norm_(parameters, MOST)


def main():
    model = net()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=how == "scaler")
    for x, y in batches():
        optimizer.zero_grad()
        for part in range(2 if how == "accumulated" else 1):
            scaler.scale(said((model(x[part:]) - y[part:]).square().mean())).backward()
            scaler.unscale_(optimizer)
            print("before", torch.stack([parameter.grad.double().norm() for parameter in parameters]).norm().item())
            if how in {"accumulated", "scaler"}:
                clip_grad_norm_(parameters, MOST)
            clip(parameters)
        print("after", torch.stack([parameter.grad.double().norm() for parameter in parameters]).norm().item())
        scaler.step(optimizer)
        scaler.update()
    end(model)
    if how == "norm":
        clip_grad_norm_(None, MOST)


if __name__ == "__main__":
    main()
