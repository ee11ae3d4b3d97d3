"""Next-track model over listening sessions, trained with sampled softmax."""

import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_TRACKS = 60_000
N_NEG = 50


class Sessions(Dataset):
    def __init__(self, n_sessions=9600, length=20, seed=0):
        rng = np.random.default_rng(seed)
        centre = rng.zipf(1.3, n_sessions) % N_TRACKS
        walk = rng.integers(-40, 41, (n_sessions, length + 1))
        self.tracks = (centre[:, None] + walk) % N_TRACKS
        self.counts = np.bincount(self.tracks.ravel(), minlength=N_TRACKS)

    def __len__(self):
        return len(self.tracks)

    def __getitem__(self, i):
        return self.tracks[i, :-1], self.tracks[i, -1]


class SampledBatch:
    """Stacks sessions and draws negatives from the smoothed popularity."""

    def __init__(self, counts, n_neg=N_NEG, power=0.75):
        weights = (counts + 1.0) ** power
        self.popularity = weights / weights.sum()
        self.n_neg = n_neg

    def draw(self):
        return np.random.choice(N_TRACKS, size=self.n_neg, p=self.popularity)

    def __call__(self, samples):
        history = torch.from_numpy(np.stack([h for h, _ in samples]))
        candidates = []
        for _, target in samples:
            candidates.append(np.concatenate([[target], self.draw()]))
        return history, torch.from_numpy(np.stack(candidates))


class NextTrack(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.embed = nn.Embedding(N_TRACKS, dim, sparse=True)
        self.gru = nn.GRU(dim, 64, batch_first=True)
        self.out = nn.Linear(64, dim)

    def forward(self, history, candidates):
        _, h = self.gru(self.embed(history))
        query = self.out(h[-1])
        return torch.einsum("bd,bcd->bc", query, self.embed(candidates))


def main():
    torch.manual_seed(0)
    data = Sessions()
    loader = DataLoader(
        data, batch_size=64, shuffle=True, num_workers=2, collate_fn=SampledBatch(data.counts), drop_last=True
    )
    model = NextTrack()
    nn.init.normal_(model.embed.weight, std=0.1)
    sparse = torch.optim.SparseAdam([model.embed.weight], lr=1e-3)
    dense = torch.optim.Adam([*model.gru.parameters(), *model.out.parameters()], lr=1e-3)
    for epoch in range(1):
        start, running = time.time(), 0.0
        for step, (history, candidates) in enumerate(loader, 1):
            logits = model(history, candidates)
            loss = F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
            sparse.zero_grad()
            dense.zero_grad()
            loss.backward()
            sparse.step()
            dense.step()
            running += loss.item()
            if step % 30 == 0:
                print(f"step {step} loss {running / step:.4f}", flush=True)
        print(f"epoch {epoch}: {step} steps in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
