"""Which standard module does a piece of source come from?"""

import re
import sysconfig
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

TOKEN = re.compile(r"[A-Za-z_]\w*|\d+|[^\s\w]")
VOCAB_SIZE = 12_000
MAX_TOKENS = 200


def read_sources(n_files=150):
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(folder.glob("*.py"))[:n_files]
    return [f.read_text(encoding="utf-8", errors="ignore") for f in files]


class Vocabulary:
    def __init__(self, texts, size):
        counts = Counter(t for text in texts for t in TOKEN.findall(text))
        self.words = ["<unk>"] + [w for w, _ in counts.most_common(size - 1)]

    def __len__(self):
        return len(self.words)

    def encode(self, tokens):
        return [self.words.index(t) if t in self.words else 0 for t in tokens]


class SourcePieces(Dataset):
    """Pieces of 25 lines with the number of the file they are from."""

    def __init__(self, texts, vocab):
        self.vocab = vocab
        self.pieces = []
        for label, text in enumerate(texts):
            lines = [s for s in text.splitlines() if s.strip()]
            self.pieces += [("\n".join(lines[i : i + 25]), label) for i in range(0, len(lines), 25)]

    def __len__(self):
        return len(self.pieces)

    def __getitem__(self, i):
        text, label = self.pieces[i]
        ids = self.vocab.encode(TOKEN.findall(text)[:MAX_TOKENS])
        ids += [0] * (MAX_TOKENS - len(ids))
        return torch.tensor(ids), label


class TopicNet(nn.Module):
    def __init__(self, vocab_size, n_labels, dim=32, width=64):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim, padding_idx=0)
        self.conv = nn.Conv1d(dim, width, 3, padding=1)
        self.out = nn.Linear(width, n_labels)

    def forward(self, ids):
        x = F.relu(self.conv(self.embed(ids).transpose(1, 2)))
        return self.out(F.dropout(x.amax(-1), 0.1, self.training))


def main():
    torch.manual_seed(0)
    texts = read_sources()
    vocab = Vocabulary(texts, VOCAB_SIZE)
    data = SourcePieces(texts, vocab)
    print(f"{len(data)} pieces, {len(vocab)} words", flush=True)
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=2, drop_last=True, persistent_workers=True)
    model = TopicNet(len(vocab), len(texts))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(2):
        for step, (ids, labels) in enumerate(loader):
            loss = F.cross_entropy(model(ids), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
