import math

import torch
import torch.nn as nn
import torch.nn.functional as F

TEXT = "the quick brown fox jumps over the lazy dog while the cat sleeps in the warm afternoon sun. " * 200


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) + mask
        y = F.softmax(att, dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = SelfAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, mask):
        x = x + self.attn(self.ln1(x), mask)
        return x + self.mlp(self.ln2(x))


class CharLM(nn.Module):
    def __init__(self, vocab, dim=64, heads=4, depth=2, context=96):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.zeros(context, dim))
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.head = nn.Linear(dim, vocab)

    def causal_mask(self, t):
        mask = torch.zeros(t, t)
        for i in range(t):
            for j in range(i + 1, t):
                mask[i, j] = float("-inf")
        return mask

    def forward(self, idx):
        t = idx.size(1)
        x = self.tok(idx) + self.pos[:t]
        mask = self.causal_mask(t)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def get_batch(data, context, batch_size):
    starts = torch.randint(0, len(data) - context - 1, (batch_size,))
    window = data[starts.unsqueeze(1) + torch.arange(context + 1)]
    return window[:, :-1], window[:, 1:]


if __name__ == "__main__":
    torch.manual_seed(1337)
    chars = sorted(set(TEXT))
    stoi = {c: i for i, c in enumerate(chars)}
    data = torch.tensor([stoi[c] for c in TEXT])
    model = CharLM(len(chars))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for it in range(80):
        xb, yb = get_batch(data, 96, 6)
        loss = F.cross_entropy(model(xb).flatten(0, 1), yb.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if it % 20 == 0:
            print(f"iter {it}: loss {loss.item():.4f}")
