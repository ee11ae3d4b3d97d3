"""Next-token model: read a window of Python tokens, predict the one that follows."""

import collections
import io
import pathlib
import sysconfig
import tokenize

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def read_tokens(n_files=60):
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    tokens = []
    for path in sorted(root.glob("*.py"))[:n_files]:
        source = path.read_text(encoding="utf-8", errors="ignore")
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER):
                tokens.append(token.string)
        if len(tokens) > 60_000:
            break
    return tokens


def encode(tokens, vocab_size=3000):
    common = collections.Counter(tokens).most_common(vocab_size - 1)
    ids = {word: i + 1 for i, (word, _) in enumerate(common)}
    return np.array([ids.get(word, 0) for word in tokens], dtype=np.int64)


class Windows:
    def __init__(self, ids, context):
        self.ids, self.context = ids, context
        self.offsets = np.arange(context + 1)

    def sample(self, batch_size, rng):
        start = rng.integers(0, len(self.ids) - self.context - 1, batch_size)
        window = torch.from_numpy(self.ids[start[:, None] + self.offsets])
        return window[:, :-1], window[:, -1]


class NextToken(nn.Module):
    def __init__(self, vocab_size, dim=64, hidden=96, dropout=0.1):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, vocab_size)

    def forward(self, x):
        h, _ = self.rnn(self.drop(self.embed(x)))
        logits = self.head(self.drop(h))
        return logits[:, -1]


def main(steps=240, batch_size=32, context=24, vocab_size=3000):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    data = Windows(encode(read_tokens(), vocab_size), context)
    model = NextToken(vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)

    running = None
    for step in range(1, steps + 1):
        x, y = data.sample(batch_size, rng)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
        running = value if running is None else 0.95 * running + 0.05 * value
        if step % 40 == 0:
            print(f"step {step:4d} loss {running:.3f}")


if __name__ == "__main__":
    main()
