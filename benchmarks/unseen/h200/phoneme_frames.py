"""Frame-level phoneme tagging of utterances of different lengths."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

GPU = torch.cuda.is_available()
MELS = 80
PHONES = 64
WIDTH = 512 if GPU else 32
LAYERS = 6 if GPU else 2
BATCH = 48 if GPU else 4
MIN_LEN, MAX_LEN = (160, 400) if GPU else (16, 40)
UTTERANCES = 4800 if GPU else 64
EPOCHS = 4
WORKERS = 4 if GPU else 0
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


class Utterances(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(1)
        self.mels = torch.randn(20 * MAX_LEN, MELS, generator=g)
        self.phones = torch.randint(0, PHONES, (20 * MAX_LEN,), generator=g)
        self.lengths = torch.randint(MIN_LEN, MAX_LEN, (UTTERANCES,), generator=g).tolist()
        self.starts = torch.randint(0, 19 * MAX_LEN, (UTTERANCES,), generator=g).tolist()

    def __len__(self):
        return UTTERANCES

    def __getitem__(self, i):
        span = slice(self.starts[i], self.starts[i] + self.lengths[i])
        return self.mels[span], self.phones[span]


def collate(batch):
    mels = pad_sequence([m for m, _ in batch], batch_first=True)
    phones = pad_sequence([p for _, p in batch], batch_first=True, padding_value=-100)
    return mels, phones


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.conv = nn.Linear(WIDTH, 2 * WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, 8, c // 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c)
        x = x + self.out(y)
        x = x + F.glu(self.conv(x))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(MELS, WIDTH)
        self.layers = nn.Sequential(*[Layer() for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, PHONES)

    def forward(self, mels):
        return self.head(self.layers(self.inp(mels)))


def train_step(model, optimizer, mels, phones, device):
    with torch.autocast(device, dtype=torch.bfloat16):
        logits = model(mels)
        loss = F.cross_entropy(logits.flatten(0, 1), phones.flatten(), ignore_index=-100)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    torch.cuda.empty_cache()
    return loss.detach()


def main():
    torch.manual_seed(0)
    device = "cuda" if GPU else "cpu"
    loader = DataLoader(
        Utterances(),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        collate_fn=collate,
        num_workers=WORKERS,
        pin_memory=GPU,
        persistent_workers=WORKERS > 0,
    )
    model = Tagger().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=GPU)

    step = 0
    for epoch in range(EPOCHS):
        for mels, phones in loader:
            mels = mels.to(device, non_blocking=True)
            phones = phones.to(device, non_blocking=True)
            loss = train_step(model, optimizer, mels, phones, device)
            step += 1
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            if LIMIT and step >= LIMIT:
                return


if __name__ == "__main__":
    main()
