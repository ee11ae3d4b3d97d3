"""Sequence tagger with a conditional random field on synthetic address lines."""

import numpy as np
import torch
from torch import nn

TAGS = ["street", "number", "unit", "city", "region", "code", "country", "other"]
VOCAB = 2000


def make_corpus(n_lines, length=32, seed=0):
    rng = np.random.default_rng(seed)
    lines = np.zeros((n_lines, length), np.int64)
    tags = np.zeros((n_lines, length), np.int64)
    for i in range(n_lines):
        tag = 0
        for t in range(length):
            if rng.random() < 0.4:
                tag = (tag + rng.integers(1, 3)) % len(TAGS)
            tags[i, t] = tag
            noisy = rng.integers(len(TAGS)) if rng.random() < 0.2 else tag
            lines[i, t] = noisy * 250 + min(rng.geometric(0.02), 250) - 1
    return torch.from_numpy(lines), torch.from_numpy(tags)


class CRF(nn.Module):
    def __init__(self, n_tags):
        super().__init__()
        self.n_tags = n_tags
        self.transitions = nn.Parameter(torch.randn(n_tags, n_tags) * 0.1)
        self.start = nn.Parameter(torch.zeros(n_tags))

    def partition(self, emissions):
        alpha = self.start + emissions[:, 0]
        for t in range(1, emissions.shape[1]):
            columns = []
            for tag in range(self.n_tags):
                score = alpha + self.transitions[:, tag]
                columns.append(torch.logsumexp(score, dim=1) + emissions[:, t, tag])
            alpha = torch.stack(columns, dim=1)
        return torch.logsumexp(alpha, dim=1)

    def path_score(self, emissions, tags):
        emitted = emissions.gather(2, tags.unsqueeze(2)).squeeze(2).sum(dim=1)
        moved = self.transitions[tags[:, :-1], tags[:, 1:]].sum(dim=1)
        return self.start[tags[:, 0]] + emitted + moved

    def forward(self, emissions, tags):
        return (self.partition(emissions) - self.path_score(emissions, tags)).mean()


class Tagger(nn.Module):
    def __init__(self, dim=48, hidden=64):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.out = nn.Linear(hidden, len(TAGS))
        self.crf = CRF(len(TAGS))

    def forward(self, words, tags):
        hidden, _ = self.rnn(self.embed(words))
        return self.crf(self.out(hidden), tags)


def main(epochs=5, batch_size=32, lr=4e-3):
    torch.manual_seed(0)
    words, tags = make_corpus(1920)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    for epoch in range(epochs):
        order = torch.randperm(len(words))
        for step, index in enumerate(order.split(batch_size)):
            loss = model(words[index], tags[index])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} nll {loss.item():.3f}")


if __name__ == "__main__":
    main()
