"""Masked-token pretraining of a small transformer on the standard library's source code."""

import os
import re
import time
from collections import Counter
from pathlib import Path

import torch
from torch import nn

PAD, MASK, UNK = 0, 1, 2
TOKEN = re.compile(r"[A-Za-z_]\w*|\d+|\n|[^\w\s]")


def read_corpus(limit=250):
    root = Path(os.__file__).parent
    files = sorted(root.glob("*.py"))[:limit]
    return [TOKEN.findall(f.read_text(errors="ignore")) for f in files]


def encode(files, vocab_size, length):
    counts = Counter(tok for toks in files for tok in toks)
    vocab = {tok: i + 3 for i, (tok, _) in enumerate(counts.most_common(vocab_size - 3))}
    flat = [vocab.get(tok, UNK) for toks in files for tok in toks]
    usable = len(flat) // length * length
    return torch.tensor(flat[:usable]).view(-1, length), vocab


class CodeBERT(nn.Module):
    def __init__(self, vocab, length, dim=64, heads=4, layers=2):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.zeros(length, dim))
        block = nn.TransformerEncoderLayer(
            dim, heads, 2 * dim, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)
        nn.init.normal_(self.tok.weight, std=0.02)

    def forward(self, ids, labels):
        h = self.norm(self.blocks(self.tok(ids) + self.pos))
        logits = self.head(h)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


class Pretrainer:
    def __init__(self, model, rows, batch=8, lr=1e-3, rate=0.15):
        self.model, self.rows, self.batch, self.rate = model, rows, batch, rate
        self.optim = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01, fused=True)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.optim, lambda s: min(1.0, (s + 1) / 50))
        self.losses = []

    def corrupt(self, rows):
        chosen = torch.rand(rows.shape) < self.rate
        labels = rows.masked_fill(~chosen, -100)
        dice = torch.rand(rows.shape)
        inputs = rows.masked_fill(chosen & (dice < 0.8), MASK)
        noise = torch.randint(3, self.model.tok.num_embeddings, rows.shape)
        return torch.where(chosen & (dice > 0.9), noise, inputs), labels

    def training_step(self):
        rows = self.rows[torch.randint(len(self.rows), (self.batch,))]
        inputs, labels = self.corrupt(rows)
        loss = self.model(inputs, labels)
        self.optim.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optim.step()
        self.sched.step()
        return loss.item()

    def fit(self, steps, every=50):
        start = time.perf_counter()
        for step in range(1, steps + 1):
            self.losses.append(self.training_step())
            if step % every == 0:
                recent = self.losses[-every:]
                print(f"{step} mlm loss {sum(recent) / len(recent):.3f}", flush=True)
        print(f"{1000 * (time.perf_counter() - start) / steps:.2f} ms/step")


if __name__ == "__main__":
    torch.manual_seed(0)
    LENGTH, VOCAB = 96, 6000
    rows, vocab = encode(read_corpus(), VOCAB, LENGTH)
    print(f"{len(rows)} rows, {len(vocab)} tokens")
    Pretrainer(CodeBERT(VOCAB, LENGTH), rows).fit(steps=320)
