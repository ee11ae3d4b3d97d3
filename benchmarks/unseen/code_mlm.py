import math
import pathlib
import re
import sysconfig
from collections import Counter

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)
SEQ, BATCH, DIM, LAYERS, HEADS, VOCAB = 64, 10, 128, 2, 4, 6000
STEPS, WARMUP, LR = 90, 20, 6e-4
PAD, MASK, UNK = 0, 1, 2

lib = pathlib.Path(sysconfig.get_paths()["stdlib"])
tokens = []
for name in sorted(lib.glob("*.py"))[:80]:
    tokens += re.findall(r"\w+|[^\w\s]", name.read_text(encoding="utf-8", errors="ignore"))
itos = ["<pad>", "<mask>", "<unk>"] + [t for t, _ in Counter(tokens).most_common(VOCAB - 3)]
stoi = {t: i for i, t in enumerate(itos)}
stream = torch.tensor([stoi.get(t, UNK) for t in tokens])
stream = stream[: len(stream) // SEQ * SEQ].view(-1, SEQ)
held, corpus = stream[:24], stream[24:]
print(f"{len(corpus)} sequences, {len(itos)} types")


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.randn(SEQ, DIM) * 0.02)
        layer = nn.TransformerEncoderLayer(
            DIM, HEADS, 4 * DIM, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(DIM)
        self.transform = nn.Sequential(nn.Linear(DIM, DIM), nn.GELU(), nn.LayerNorm(DIM))
        self.bias = nn.Parameter(torch.zeros(VOCAB))
        nn.init.normal_(self.tok.weight, std=0.02)

    def forward(self, ids, labels):
        h = self.norm(self.layers(self.tok(ids) + self.pos))
        h = self.transform(h)
        logits = F.linear(h, self.tok.weight, self.bias)
        return F.cross_entropy(logits.view(-1, VOCAB), labels.view(-1), ignore_index=-100)


def corrupt(ids, rate=0.15):
    picked = torch.rand(ids.shape) < rate
    labels = ids.masked_fill(~picked, -100)
    roll = torch.rand(ids.shape)
    out = ids.masked_fill(picked & (roll < 0.8), MASK)
    swap = picked & (roll > 0.9)
    return torch.where(swap, torch.randint(3, VOCAB, ids.shape), out), labels


def lr_at(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


model = Encoder()
opt = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lr_at)

for step in range(STEPS):
    batch = corpus[torch.randint(len(corpus), (BATCH,))]
    ids, labels = corrupt(batch)
    loss = model(ids, labels)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    if (step + 1) % 30 == 0:
        print(f"step {step + 1}: {loss.item():.3f}")

model.eval()
with torch.no_grad():
    print("held-out", round(model(*corrupt(held)).item(), 3))
