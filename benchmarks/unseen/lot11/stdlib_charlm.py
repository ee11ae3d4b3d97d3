"""Character language model on the standard library's sources."""

import pathlib
import sysconfig
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Characters(Dataset):
    def __init__(self, length):
        root = pathlib.Path(sysconfig.get_paths()["stdlib"])
        text = "".join(p.read_text(errors="ignore") for p in sorted(root.glob("a*.py")))
        alphabet = {c: i for i, c in enumerate(sorted(set(text)))}
        self.size = len(alphabet)
        self.ids = torch.tensor([alphabet[c] for c in text])
        self.length = length

    def __len__(self):
        return (len(self.ids) - 1) // self.length

    def __getitem__(self, i):
        chunk = self.ids[i * self.length : (i + 1) * self.length + 1]
        return chunk[:-1], chunk[1:]


class Model(nn.Module):
    def __init__(self, vocab, length, dim=96, heads=4, layers=2):
        super().__init__()
        self.token = nn.Embedding(vocab, dim)
        self.position = nn.Parameter(torch.zeros(length, dim))
        block = nn.TransformerEncoderLayer(dim, heads, 3 * dim, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, layers)
        self.head = nn.Linear(dim, vocab)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, ids):
        x = self.token(ids) + self.position
        return self.head(self.blocks(x, mask=self.mask, is_causal=True))


def main():
    torch.manual_seed(0)
    length = 64
    data = Characters(length)
    loader = DataLoader(data, batch_size=24, shuffle=True, drop_last=True, num_workers=1)
    model = Model(data.size, length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    step, steps, start = 0, 240, time.time()
    while step < steps:
        for ids, target in loader:
            logits = model(ids)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 40 == 0:
                print(f"step {step} loss {loss.item():.3f} ({time.time() - start:.1f}s)")
            if step == steps:
                break


if __name__ == "__main__":
    main()
