"""A model, a part of it that is also called by itself, and another one."""

import torch
from common import batches, by_hand, said
from torch import nn


class Encoder(nn.Linear):
    pass


class Other(nn.Linear):
    pass


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Encoder(4, 3), nn.Linear(3, 4)

    def forward(self, x):
        return self.decoder(self.encoder(x))


whole, other = Whole(), Other(3, 1)
for x, _ in batches():
    said((whole(x) - x).square().mean() + other(whole.encoder(x)).square().mean()).backward()
    by_hand(whole)
    by_hand(other)
