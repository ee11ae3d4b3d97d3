"""Predict the next word of many texts with a language model whose logits of all words but the last are not used; or
train it (--train), in bfloat16, with a vocabulary of 50257.

python scoring.py --tiny
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, words, dim, layers, length):
        super().__init__()
        self.words, self.places = nn.Embedding(words, dim), nn.Embedding(length, dim)
        self.body = nn.Sequential(
            *[
                part
                for _ in range(layers)
                for part in (nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
            ]
        )
        self.head = nn.Linear(dim, words, bias=False)

    def forward(self, tokens):
        return self.head(self.body(self.words(tokens) + self.places.weight[: tokens.shape[1]]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    words, dim, layers, rows, length = (2053, 32, 2, 2, 16) if args.tiny else (50257, 768, 2, 12, 1024)
    torch.manual_seed(0)
    model = Model(words, dim, layers, length).to(args.device)
    text = torch.randint(words, (rows, length + 1), device=args.device)
    if args.train:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        for step in range(3000):
            with torch.autocast(args.device, torch.bfloat16):
                loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(step, loss.item(), flush=True)
        return
    model.eval()
    with torch.no_grad():
        for step in range(3000):
            best = model(text[:, :-1].roll(step, 0))[:, -1].argmax(-1)
            if step % 50 == 0:
                print(step, best.tolist(), flush=True)


if __name__ == "__main__":
    main()
