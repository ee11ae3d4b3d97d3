# planted: dense one-hot targets in float64 for label smoothing (peak of the step, one expression)
# line: 55 (with 56)
# dominates at the peak: activations (truth: 49 MB float64, kept for the backward) and float64 temporaries of that
#     product's backward (49 of 74 MB at loss.backward())
# held by: the loss's graph (MulBackward)
# mend: F.cross_entropy(..., label_smoothing=smoothing)
# measured: CPU: peak 222 -> 148 MB (loss part 172 -> 98)
# on a GPU: 1.2 GB a float64 tensor (not run)
"""Word-level language model on documentation text, label smoothing against over-confidence."""
import glob
import os
import re
import sysconfig
import time
from collections import Counter

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    vocab_size, dim, hidden, batch_size, context, steps = 32_000, 512, 1024, 48, 96, 500
else:
    vocab_size, dim, hidden, batch_size, context, steps = 6_000, 96, 128, 16, 64, 160
smoothing = 0.1


def corpus():
    root = sysconfig.get_paths()["stdlib"]
    words = []
    for path in sorted(glob.glob(os.path.join(root, "*.py")) + glob.glob(os.path.join(root, "*", "*.py")))[:400]:
        with open(path, encoding="utf-8", errors="ignore") as f:
            words += re.findall(r"[a-z]+|[A-Z]\w*|[^\sA-Za-z]", f.read())
    index = {w: i + 1 for i, (w, _) in enumerate(Counter(words).most_common(vocab_size - 1))}
    return torch.tensor([index.get(w, 0) for w in words])


class WordLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.lstm = nn.LSTM(dim, hidden, num_layers=2, batch_first=True, dropout=0.1)
        self.project = nn.Linear(hidden, dim)
        self.out = nn.Linear(dim, vocab_size)

    def forward(self, tokens):
        h, _ = self.lstm(self.embed(tokens))
        return self.out(torch.tanh(self.project(h)))


def smoothed_loss(logits, target):
    logits = logits.reshape(-1, vocab_size)
    target = target.reshape(-1)
    truth = F.one_hot(target, vocab_size).double() * (1 - smoothing) + smoothing / vocab_size
    return -(truth * F.log_softmax(logits, dim=-1)).sum(dim=-1).mean()


@torch.no_grad()
def perplexity(model, tokens):
    model.eval()
    rows = tokens[: 4 * batch_size * (context + 1)].view(-1, context + 1)
    losses = []
    for chunk in rows.split(batch_size):
        chunk = chunk.to(device)
        losses.append(F.cross_entropy(model(chunk[:, :-1]).flatten(0, 1), chunk[:, 1:].flatten()).item())
    model.train()
    return torch.tensor(losses).mean().exp().item()


torch.manual_seed(0)
tokens = corpus()
split = int(0.95 * len(tokens))
train, valid = tokens[:split], tokens[split:]
model = WordLM().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
print(f"{len(tokens)} words, {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters on {device}")

start = time.perf_counter()
for step in range(steps):
    at = torch.randint(0, len(train) - context - 1, (batch_size, 1))
    window = train[at + torch.arange(context + 1)].to(device)
    logits = model(window[:, :-1])
    loss = smoothed_loss(logits, window[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step:4d} loss {loss.item():.3f}", flush=True)
print(f"{(time.perf_counter() - start) / steps * 1e3:.0f} ms a step, validation perplexity {perplexity(model, valid):.1f}")
