"""Train an attention block as it should be: fused attention in bf16 over long sequences, a fused optimizer.

cause: compute
bound: compute
needs: cpu
place: none
"""

import argparse

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    cuda = args.device == "cuda"
    batch, length, width, heads = (4, 8192, 2048, 16) if cuda else (2, 128, 256, 4)
    dtype = torch.bfloat16 if cuda else torch.float32
    model = nn.Sequential(*[Attention(width, heads) for _ in range(2)]).to(args.device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    x = torch.randn(batch, length, width, device=args.device, dtype=dtype)
    for _ in range(2000):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
