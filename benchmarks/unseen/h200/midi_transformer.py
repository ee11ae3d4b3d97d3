"""Next-event model over MIDI event sequences."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

GPU = torch.cuda.is_available()
EVENTS = 512
CONTEXT = 512 if GPU else 32
WIDTH = 640 if GPU else 32
HEADS = 10 if GPU else 2
LAYERS = 8 if GPU else 2
BATCH = 16 if GPU else 2
STEPS = 500
LOG_EVERY = 50
SAVE_EVERY = 20
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class MidiTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.event = nn.Embedding(EVENTS, WIDTH)
        self.pos = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, EVENTS)

    def forward(self, x):
        h = self.event(x) + self.pos.weight[: x.shape[1]]
        return self.head(self.norm(self.blocks(h)))


class Songs:
    def __init__(self, device, n=1_000_000):
        self.events = torch.randint(0, EVENTS, (n,), device=device)
        self.window = torch.arange(CONTEXT + 1, device=device)
        self.device = device

    def batch(self):
        start = torch.randint(0, len(self.events) - CONTEXT - 1, (BATCH, 1), device=self.device)
        chunk = self.events[start + self.window]
        return chunk[:, :-1], chunk[:, 1:]


def save(path, step, model, optimizer, schedule):
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
    }
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)


def train(folder):
    torch.manual_seed(0)
    device = "cuda" if GPU else "cpu"
    torch.set_float32_matmul_precision("high")
    songs = Songs(device)
    model = MidiTransformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05, fused=GPU)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    checkpoint = os.path.join(folder, "last.pt")

    for step in range(1, STEPS + 1):
        events, targets = songs.batch()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(events)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % LOG_EVERY == 0:
            print(f"step {step} loss {loss.item():.4f}")
        if step % SAVE_EVERY == 0:
            save(checkpoint, step, model, optimizer, schedule)
        if LIMIT and step >= LIMIT:
            return


def main():
    with tempfile.TemporaryDirectory() as folder:
        train(folder)


if __name__ == "__main__":
    main()
