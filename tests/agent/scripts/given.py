"""Attention with a causal mask as a tensor, and autocast around the loss alone."""

import torch
import torch.nn.functional as F
from common import end, said
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("mask", torch.ones(64, 64, dtype=torch.bool).tril())

    def forward(self, x):
        q, k, v = self.qkv(x).view(2, 64, 3, 1, 8).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask).sum(1)  # line: attention


def main():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(160):
        out = model(torch.randn(2, 64, 8))
        with torch.autocast("cpu", torch.bfloat16):  # line: autocast
            loss = (out @ out.transpose(1, 2)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        said(loss)
    end(model)


if __name__ == "__main__":
    main()
