"""A convolution whose weight a hook makes before each forward, as of equalised learning rates."""

import torch
from common import batches, by_hand, said
from torch import nn

convolution = nn.Conv2d(1, 2, 2)
convolution.register_parameter("weight_orig", nn.Parameter(convolution.weight.detach()))
del convolution._parameters["weight"]
convolution.register_forward_pre_hook(lambda module, _: setattr(module, "weight", module.weight_orig * 0.5))
model = nn.Sequential(convolution, nn.Flatten())
for x, _ in batches():
    said(model(x.reshape(-1, 1, 2, 2)).square().mean()).backward()
    by_hand(model)
