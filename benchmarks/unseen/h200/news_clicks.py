"""Click prediction for a news site: reader and article vectors with a small network on top."""

import os

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
READERS = 6_000_000 if CUDA else 5_000
ARTICLES = 10_000_000 if CUDA else 8_000
DIM = 64
HISTORY = 20
IMPRESSIONS = 4_000_000 if CUDA else 20_000
BATCH = 8192 if CUDA else 256
STEPS = 1200
LIMIT_STEPS = int(os.environ.get("LIMIT_STEPS", 0))


def popular(count, *shape):
    return (torch.rand(*shape, device=device).pow(4) * count).long()


class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.readers = nn.Embedding(READERS, DIM, device=device)
        self.articles = nn.Embedding(ARTICLES, DIM, device=device)
        nn.init.normal_(self.readers.weight, std=0.05)
        nn.init.normal_(self.articles.weight, std=0.05)
        self.top = nn.Sequential(
            nn.Linear(4 * DIM, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        ).to(device)

    def forward(self, reader, article, history):
        r, a = self.readers(reader), self.articles(article)
        h = self.articles(history).mean(1)
        return self.top(torch.cat([r, a, h, a * h], 1)).squeeze(-1)


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    reader = torch.randint(0, READERS, (IMPRESSIONS,), device=device)
    article = popular(ARTICLES, IMPRESSIONS)
    history = popular(ARTICLES, IMPRESSIONS, HISTORY)
    clicked = (torch.rand(IMPRESSIONS, device=device) < 0.2).float()

    model = ClickModel()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    total = torch.zeros((), device=device)
    for step in range(1, STEPS + 1):
        rows = torch.randint(0, IMPRESSIONS, (BATCH,), device=device)
        logit = model(reader[rows], article[rows], history[rows])
        loss = F.binary_cross_entropy_with_logits(logit, clicked[rows])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        total += loss.detach()
        if step % 100 == 0:
            print(f"step {step} loss {total.item() / 100:.4f}", flush=True)
            total.zero_()
        if step == LIMIT_STEPS:
            break


if __name__ == "__main__":
    main()
