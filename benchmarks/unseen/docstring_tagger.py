import ast
import pathlib
import random
import sysconfig

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Tokenizer:
    def __init__(self, max_length):
        self.max_length = max_length
        self.pad_id = 0

    def encode(self, text):
        return [b + 1 for b in text.encode("utf-8")[: self.max_length]]

    def __call__(self, texts):
        ids = torch.full((len(texts), self.max_length), self.pad_id, dtype=torch.long)
        mask = torch.zeros(len(texts), self.max_length, dtype=torch.bool)
        for row, text in enumerate(texts):
            enc = self.encode(text)
            ids[row, : len(enc)] = torch.tensor(enc)
            mask[row, : len(enc)] = True
        return ids, mask


def collect_functions(limit):
    samples = []
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.glob("*.py")):
        source = path.read_text(encoding="utf-8", errors="ignore")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                head = ast.unparse(node.args)
                text = f"def {node.name}({head})"
                samples.append((text, int(ast.get_docstring(node) is not None)))
    random.Random(0).shuffle(samples)
    return samples[:limit]


class FunctionDataset(Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]


class Classifier(nn.Module):
    def __init__(self, dim=96, heads=4, layers=2, max_length=256):
        super().__init__()
        self.embed = nn.Embedding(257, dim, padding_idx=0)
        self.pos = nn.Embedding(max_length, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 2)

    def forward(self, ids, mask):
        x = self.embed(ids) + self.pos(torch.arange(ids.size(1)))
        x = self.encoder(x, src_key_padding_mask=~mask)
        weights = mask.unsqueeze(-1).to(x.dtype)
        return self.head((x * weights).sum(1) / weights.sum(1))


class Trainer:
    def __init__(self, model, tokenizer, train, valid, batch_size=10, lr=5e-4):
        self.model, self.tokenizer = model, tokenizer
        self.train_loader = DataLoader(train, batch_size, shuffle=True, collate_fn=self.collate)
        self.valid_loader = DataLoader(valid, 64, collate_fn=self.collate)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.loss_fn = nn.CrossEntropyLoss()

    def collate(self, batch):
        texts, labels = zip(*batch)
        ids, mask = self.tokenizer(texts)
        return ids, mask, torch.tensor(labels)

    def fit(self, epochs):
        step = 0
        for epoch in range(epochs):
            self.model.train()
            for ids, mask, labels in self.train_loader:
                loss = self.loss_fn(self.model(ids, mask), labels)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                step += 1
                if step % 25 == 0:
                    print(f"step {step} loss {loss.item():.4f}")
            print(f"epoch {epoch} accuracy {self.accuracy():.3f}")

    @torch.no_grad()
    def accuracy(self):
        self.model.eval()
        hits = sum((self.model(i, m).argmax(1) == y).sum() for i, m, y in self.valid_loader)
        return hits.item() / len(self.valid_loader.dataset)


if __name__ == "__main__":
    torch.manual_seed(0)
    samples = collect_functions(1440)
    train, valid = FunctionDataset(samples[:1280]), FunctionDataset(samples[1280:])
    Trainer(Classifier(), Tokenizer(256), train, valid).fit(epochs=1)
