"""Train a tagger on sentences of unequal length that are padded word by word in the main process.

cause: input
bound: input
needs: cpu
place: function
"""

import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORDS = 2000


class Sentences(Dataset):
    def __init__(self):
        draw = random.Random(0)
        self.sentences = [[draw.randrange(1, WORDS) for _ in range(draw.randrange(60, 120))] for _ in range(512)]

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return self.sentences[index % len(self.sentences)]


def pad(sentences):
    longest = max(map(len, sentences))
    batch = torch.zeros(len(sentences), longest, dtype=torch.long)
    for row, sentence in enumerate(sentences):
        for column, word in enumerate(sentence):
            batch[row, column] = word  # planted
    return batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    loader = DataLoader(Sentences(), batch_size=32, collate_fn=pad)
    model = nn.Sequential(nn.Embedding(WORDS, 16), nn.Linear(16, 8)).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for words in loader:
        words = words.to(args.device)
        loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten() % 8)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
