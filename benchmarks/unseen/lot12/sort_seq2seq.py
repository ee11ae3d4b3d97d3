"""Sequence to sequence model with additive attention: reverses and sorts symbol strings."""

import argparse

import torch
from torch import nn

VOCAB = 30


def make_batch(n, src_len, tgt_len):
    src = torch.randint(1, VOCAB, (n, src_len))
    tgt = src.sort(dim=1, descending=True).values[:, :tgt_len]
    return src, tgt


class AdditiveAttention(nn.Module):
    def __init__(self, dim, att):
        super().__init__()
        self.query = nn.Linear(dim, att, bias=False)
        self.key = nn.Linear(2 * dim, att)
        self.value = nn.Linear(2 * dim, dim)
        self.score = nn.Linear(att, 1, bias=False)

    def forward(self, state, memory):
        keys = self.key(memory)
        values = self.value(memory)
        e = self.score(torch.tanh(self.query(state).unsqueeze(1) + keys))
        a = e.softmax(dim=1)
        return (a.transpose(1, 2) @ values).squeeze(1)


class Seq2Seq(nn.Module):
    def __init__(self, dim=128, att=48):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.encoder = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.attention = AdditiveAttention(dim, att)
        self.bridge = nn.Linear(2 * dim, dim)
        self.cell = nn.GRUCell(2 * dim, dim)
        self.out = nn.Linear(2 * dim, VOCAB)

    def forward(self, src, tgt):
        memory, last = self.encoder(self.embed(src))
        state = torch.tanh(self.bridge(torch.cat([last[0], last[1]], dim=1)))
        prev = torch.zeros(len(src), dtype=torch.long)
        logits = []
        for t in range(tgt.size(1)):
            context = self.attention(state, memory)
            state = self.cell(torch.cat([self.embed(prev), context], dim=1), state)
            logits.append(self.out(torch.cat([state, context], dim=1)))
            prev = tgt[:, t]
        return torch.stack(logits, dim=1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=170)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--src-len", type=int, default=28)
    p.add_argument("--tgt-len", type=int, default=16)
    args = p.parse_args()

    torch.manual_seed(0)
    model = Seq2Seq()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    for step in range(args.steps):
        src, tgt = make_batch(args.batch_size, args.src_len, args.tgt_len)
        logits = model(src, tgt)
        loss = loss_fn(logits.flatten(0, 1), tgt.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            acc = (logits.argmax(-1) == tgt).float().mean()
            print(f"step {step} loss {loss.item():.3f} acc {acc.item():.3f}")


if __name__ == "__main__":
    main()
