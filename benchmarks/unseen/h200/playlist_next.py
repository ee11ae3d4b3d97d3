"""Next-track model for playlists: content vectors of the tracks go through a small transformer."""

import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
TRACKS = 240_000 if CUDA else 2_000
AUDIO_DIM = 256
SESSIONS = 120_000 if CUDA else 1_000
HISTORY = 32
BATCH = 512 if CUDA else 32
DIM = 256
EPOCHS = 3
LIMIT_STEPS = int(os.environ.get("LIMIT_STEPS", 0))


def load_audio_vectors():
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((TRACKS, AUDIO_DIM), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def load_sessions():
    rng = np.random.default_rng(2)
    start = rng.integers(0, TRACKS, (SESSIONS, 1))
    walk = rng.integers(-40, 40, (SESSIONS, HISTORY + 1)).cumsum(1)
    return torch.from_numpy((start + walk) % TRACKS)


class NextTrack(nn.Module):
    def __init__(self, vectors):
        super().__init__()
        self.audio = torch.from_numpy(vectors)
        self.project = nn.Linear(AUDIO_DIM, DIM)
        self.position = nn.Parameter(torch.randn(HISTORY, DIM) * 0.02)
        layer = nn.TransformerEncoderLayer(
            DIM, 4, 4 * DIM, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(DIM)

    def forward(self, history, following):
        audio = self.audio.to(history.device)
        x = self.project(audio[history]) + self.position
        query = self.norm(self.encoder(x)[:, -1])
        candidates = self.project(audio[following])
        return F.normalize(query, dim=-1) @ F.normalize(candidates, dim=-1).T


def main():
    torch.manual_seed(0)
    sessions = load_sessions().to(device)
    model = NextTrack(load_audio_vectors()).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    labels = torch.arange(BATCH, device=device)
    running = torch.zeros((), device=device)
    step = 0
    for epoch in range(EPOCHS):
        order = torch.randperm(SESSIONS, device=device)
        for begin in range(0, SESSIONS - BATCH + 1, BATCH):
            batch = sessions[order[begin : begin + BATCH]]
            with torch.autocast(device, dtype=torch.bfloat16):
                scores = model(batch[:, :-1], batch[:, -1])
            loss = F.cross_entropy(scores.float() / 0.07, labels)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            running += loss.detach()
            step += 1
            if step % 100 == 0:
                print(f"epoch {epoch} step {step} loss {running.item() / 100:.4f}", flush=True)
                running.zero_()
            if step == LIMIT_STEPS:
                return


if __name__ == "__main__":
    main()
