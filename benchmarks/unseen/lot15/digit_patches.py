"""Small vision transformer with learned relative position bias on sklearn's digits."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


class BiasedAttention(nn.Module):
    def __init__(self, dim, heads, side):
        super().__init__()
        self.heads, self.side = heads, side
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.bias_table = nn.Parameter(torch.zeros((2 * side - 1) ** 2, heads))

    def position_bias(self):
        side, n = self.side, self.side**2
        index = torch.zeros(n, n, dtype=torch.long)
        for i in range(n):
            for j in range(n):
                dy = i // side - j // side + side - 1
                dx = i % side - j % side + side - 1
                index[i, j] = dy * (2 * side - 1) + dx
        return self.bias_table[index].permute(2, 0, 1)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.position_bias()[None])
        return self.proj(out.transpose(1, 2).reshape(b, n, d))


class Layer(nn.Module):
    def __init__(self, dim, heads, side):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = BiasedAttention(dim, heads, side)
        self.mlp = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class DigitTransformer(nn.Module):
    def __init__(self, dim=48, heads=4, depth=3, side=8):
        super().__init__()
        self.embed = nn.Linear(1, dim)
        self.place = nn.Parameter(torch.randn(side * side, dim) * 0.1)
        self.layers = nn.ModuleList([Layer(dim, heads, side) for _ in range(depth)])
        self.head = nn.Linear(dim, 10)

    def forward(self, images):
        x = self.embed(images.flatten(1)[:, :, None]) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        right = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return right


def run():
    torch.manual_seed(1)
    digits = load_digits()
    xa, xb, ya, yb = train_test_split(digits.images / 16.0, digits.target, test_size=0.2, random_state=0)
    xa, xb = torch.tensor(xa, dtype=torch.float32), torch.tensor(xb, dtype=torch.float32)
    ya, yb = torch.tensor(ya), torch.tensor(yb)
    model = DigitTransformer()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step, seen_at = 0, time.perf_counter()
    for epoch in range(10):
        for part in torch.randperm(len(xa)).split(32):
            loss = F.cross_entropy(model(xa[part]), ya[part])
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 45 == 0:
                now = time.perf_counter()
                print(f"step {step} loss {loss.item():.3f} {(now - seen_at) / 45 * 1e3:.1f} ms", flush=True)
                seen_at = now
        print(f"epoch {epoch} accuracy {accuracy(model, xb, yb):.3f}")


if __name__ == "__main__":
    run()
