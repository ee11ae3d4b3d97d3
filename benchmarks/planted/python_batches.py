"""Train a character model on batches that the loop encodes itself, character by character.

cause: host-code
bound: input on cpu, launch on cuda
needs: cpu
place: sampled
"""

import argparse
import random

import torch
from torch import nn

LETTERS = "abcdefghijklmnopqrstuvwxyz .,"


def encode(lines):
    numbers = bytearray([LETTERS.index(letter) for line in lines for letter in line])  # planted
    return torch.frombuffer(numbers, dtype=torch.uint8).view(len(lines), -1).long()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    draw = random.Random(0)
    text = "".join(draw.choice(LETTERS) for _ in range(400_000))
    model = nn.Sequential(nn.Embedding(len(LETTERS), 8), nn.Linear(8, len(LETTERS))).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2000):
        starts = [draw.randrange(len(text) - 513) for _ in range(128)]
        batch = encode([text[start : start + 513] for start in starts]).to(args.device)
        batch = batch[:, ::32]
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
