"""Character-pair tokens over Python sources, a small convolutional language model."""

import collections
import glob
import os
import re
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

WORD = re.compile(r"\w+|[^\w\s]+|\s+")


class SubwordTokenizer:
    def __init__(self, text, n_merges=120):
        self.ids = {chr(i): i for i in range(128)}
        self.ranks = {}
        words = collections.Counter(WORD.findall(text))
        split = {w: list(w) for w in words}
        for rank in range(n_merges):
            pairs = collections.Counter()
            for w, parts in split.items():
                for pair in zip(parts, parts[1:]):
                    pairs[pair] += words[w]
            best = pairs.most_common(1)[0][0]
            self.ranks[best] = rank
            self.ids[best[0] + best[1]] = 128 + rank
            split = {w: self.merge(p, best) for w, p in split.items()}

    @staticmethod
    def merge(parts, pair):
        out, i = [], 0
        while i < len(parts):
            if i + 1 < len(parts) and (parts[i], parts[i + 1]) == pair:
                out.append(parts[i] + parts[i + 1])
                i += 2
            else:
                out.append(parts[i])
                i += 1
        return out

    def encode(self, text):
        parts = list(text)
        while len(parts) > 1:
            pairs = set(zip(parts, parts[1:]))
            best = min(pairs, key=lambda p: self.ranks.get(p, 1 << 30))
            if best not in self.ranks:
                break
            parts = self.merge(parts, best)
        return [self.ids[p] for p in parts]


class Snippets(Dataset):
    def __init__(self, text, length=260):
        self.chunks = [text[i : i + length] for i in range(0, len(text) - length, length)]

    def __len__(self):
        return len(self.chunks)

    def __getitem__(self, i):
        return self.chunks[i]


class Collate:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, texts):
        rows = [self.tokenizer.encode(t) for t in texts]
        return nn.utils.rnn.pad_sequence([torch.tensor(r) for r in rows], batch_first=True)


class LM(nn.Module):
    def __init__(self, vocab=248, dim=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.convs = nn.ModuleList(nn.Conv1d(dim, dim, 4) for _ in range(2))
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        h = self.emb(x).transpose(1, 2)
        for conv in self.convs:
            h = h + F.gelu(conv(F.pad(h, (3, 0))))
        return self.out(h.transpose(1, 2))


def main():
    torch.manual_seed(0)
    files = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))[:60]
    text = "".join(open(f, encoding="utf-8").read() for f in files)
    text = text.encode("ascii", "ignore").decode()
    tokenizer = SubwordTokenizer(text[:60000])
    loader = DataLoader(
        Snippets(text), batch_size=12, shuffle=True, num_workers=2, collate_fn=Collate(tokenizer), drop_last=True
    )
    model = LM()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    start = time.time()
    for step, batch in enumerate(loader, 1):
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}")
        if step == 150:
            break
    print(f"{step} steps in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
