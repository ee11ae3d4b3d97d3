"""Assign topics to patent abstracts with a small transformer encoder."""

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
GPU = device == "cuda"
VOCAB = 16000 if GPU else 200
TOPICS = 128 if GPU else 8
LENGTH = 256 if GPU else 16
BATCH = 32 if GPU else 4
WIDTH = 1024 if GPU else 64
LAYERS = 4 if GPU else 2
HEADS = 16 if GPU else 4
ABSTRACTS = 20000 if GPU else 100
STEPS = 350 if GPU else 5


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, w = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, w // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, t, w))
        hidden = F.gelu(self.up(self.norm2(x)))
        return x + self.down(hidden)


class TopicModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*[Block(WIDTH, HEADS) for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, TOPICS)

    def forward(self, tokens):
        x = self.words(tokens) + self.places
        x = self.blocks(x)
        return self.head(self.norm(x).mean(dim=1))


def make_corpus():
    gen = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, VOCAB, (ABSTRACTS, LENGTH), generator=gen)
    topics = (torch.rand(ABSTRACTS, TOPICS, generator=gen) < 0.05).float()
    return tokens.to(device), topics.to(device)


def main():
    torch.manual_seed(0)
    tokens, topics = make_corpus()
    model = TopicModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.05, fused=True)
    for step in range(STEPS):
        rows = torch.randint(0, ABSTRACTS, (BATCH,), device=device)
        logits = model(tokens[rows])
        loss = F.binary_cross_entropy_with_logits(logits, topics[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
