import os
import pathlib
import tempfile
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
CROP = 256
BATCH = 16
EPOCHS = 3
TEMPERATURE = 0.05
CKPT = os.path.join(tempfile.gettempdir(), f"code_clr_{os.getpid()}.pt")

# corpus: files of the standard library as bytes
root = pathlib.Path(os.__file__).parent
docs = []
for path in sorted(root.glob("*.py")):
    raw = path.read_bytes()
    if len(raw) > 4 * CROP:
        docs.append(torch.frombuffer(bytearray(raw), dtype=torch.uint8))
docs = docs[: 24 * 6]
train_docs, val_docs = docs[:-24], docs[-24:]
print(f"{len(train_docs)} files, {sum(len(d) for d in train_docs) / 1e6:.1f} MB")


def crops(batch):
    starts = [int(torch.randint(len(d) - CROP, ())) for d in batch]
    return torch.stack([d[s : s + CROP] for d, s in zip(batch, starts)]).long()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(256, 64)
        self.conv = nn.Sequential(
            nn.Conv1d(64, 128, 5, stride=4, padding=2),
            nn.GELU(),
            nn.Conv1d(128, 256, 5, stride=4, padding=2),
            nn.GELU(),
            nn.Conv1d(256, 384, 5, stride=4, padding=2),
            nn.GELU(),
        )
        self.proj = nn.Sequential(nn.Linear(384 * 4, 2048), nn.BatchNorm1d(2048), nn.GELU(), nn.Linear(2048, 128))

    def forward(self, x):
        h = self.conv(self.emb(x).transpose(1, 2))
        return F.normalize(self.proj(h.flatten(1)), dim=1)


def info_nce(a, b):
    logits = a @ b.t() / TEMPERATURE
    labels = torch.arange(len(a))
    return 0.5 * (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels))


encoder = Encoder()
optimizer = torch.optim.AdamW(encoder.parameters(), lr=5e-4, weight_decay=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * 40)


def save(path, step, best):
    torch.save(
        {
            "model": encoder.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": schedule.state_dict(),
            "step": step,
            "best": best,
        },
        path,
    )


running, best, step = None, float("inf"), 0
for epoch in range(EPOCHS):
    encoder.train()
    for _ in range(40):
        pick = torch.randperm(len(train_docs))[:BATCH].tolist()
        batch = [train_docs[i] for i in pick]
        both = encoder(torch.cat([crops(batch), crops(batch)]))
        loss = info_nce(*both.chunk(2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        step += 1
        value = loss.item()
        running = value if running is None else 0.98 * running + 0.02 * value
        if running < best:
            best = running
            save(CKPT, step, best)
        if step % 20 == 0:
            print(f"step {step} loss {running:.3f}")

    encoder.eval()
    with torch.no_grad():
        a, b = encoder(crops(val_docs)), encoder(crops(val_docs))
        top1 = ((a @ b.t()).argmax(1) == torch.arange(len(val_docs))).float().mean()
    print(f"epoch {epoch} retrieval@1 {top1:.3f}")

os.remove(CKPT)
