"""Text by a model without a cache: each call gets one token more. `cached`: the new token alone, with a mask."""

import sys

import torch
from common import end
from torch import nn


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 4), nn.Linear(4, 11)

    def forward(self, ids, mask=None):
        return self.head(self.embed(ids).cumsum(1))


model = Words().eval()
with torch.no_grad():
    for text in range(3):
        ids = torch.randint(11, (2, 3))
        for _ in range(8):
            mask = torch.ones_like(ids)
            logits = model(ids[:, -1:], mask=mask) if "cached" in sys.argv else model(ids)
            ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
        print(text, ids.tolist())
end(model)
