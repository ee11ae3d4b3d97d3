# planted: checkpoint loaded onto the device beside the model and kept as a variable for the whole run (constant
#     excess from the start (transient double at load that never ends))
# line: 83
# dominates at the peak: held by the script: the second copy of the encoder's weights (88.7 MB, as much as the
#     parameters)
# held by: local `checkpoint` of main (dict)
# mend: torch.load(path, map_location='cpu', mmap=True) and del checkpoint after load_state_dict
# measured: CPU: training peak 230 -> 142 MB; after the steps 220 -> 131 (mended, the run's peak is the load
#     itself, 177 MB of which 89 are a mapped file)
# on a GPU: 1.0 GB of checkpoint for the whole run (not run)
"""Fine-tunes the upper part of a pretrained text encoder to route support tickets."""
import os
import tempfile
import time

import torch
from torch import nn
from torch.nn import functional as F

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
VOCAB, DIM, LAYERS, HEADS = (50_000, 1024, 16, 16) if GPU else (30_000, 384, 6, 6)
TOKENS, BATCH, STEPS = (128, 32, 400) if GPU else (32, 8, 160)
QUEUES = 12
TUNED = 2


class TextEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, DIM)
        self.positions = nn.Parameter(0.02 * torch.randn(TOKENS, DIM))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, batch_first=True, norm_first=True)
            for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, ids):
        h = self.words(ids) + self.positions
        for layer in self.layers:
            h = layer(h)
        return self.norm(h).mean(dim=1)


class TicketRouter(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = TextEncoder()
        self.classify = nn.Linear(DIM, QUEUES)

    def forward(self, ids):
        return self.classify(self.encoder(ids))


def export_pretrained(path):
    """Stands for the download of a released encoder."""
    torch.manual_seed(7)
    torch.save({"encoder": TextEncoder().state_dict(), "vocab": VOCAB, "step": 250_000}, path)


def tickets(generator):
    queue = torch.randint(0, QUEUES, (BATCH,), generator=generator)
    ids = torch.randint(0, VOCAB, (BATCH, TOKENS), generator=generator)
    topical = torch.rand(BATCH, TOKENS, generator=generator) < 0.3
    keyword = queue[:, None] * 50 + torch.randint(0, 50, (BATCH, TOKENS), generator=generator)
    return torch.where(topical, keyword, ids), queue


def freeze_lower(model):
    for p in model.encoder.parameters():
        p.requires_grad_(False)
    for layer in model.encoder.layers[-TUNED:]:
        for p in layer.parameters():
            p.requires_grad_(True)
    for p in model.encoder.norm.parameters():
        p.requires_grad_(True)
    return [p for p in model.parameters() if p.requires_grad]


def main(path):
    torch.manual_seed(0)
    model = TicketRouter().to(DEVICE)
    checkpoint = torch.load(path, map_location=DEVICE)
    model.encoder.load_state_dict(checkpoint["encoder"])
    print(f"encoder from step {checkpoint['step']}, "
          f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")

    optimizer = torch.optim.AdamW(freeze_lower(model), lr=2e-4)
    generator = torch.Generator().manual_seed(1)
    hits, seen, start = 0, 0, time.perf_counter()
    for step in range(1, STEPS + 1):
        ids, queue = (t.to(DEVICE) for t in tickets(generator))
        logits = model(ids)
        loss = F.cross_entropy(logits, queue)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        hits += (logits.detach().argmax(1) == queue).sum().item()
        seen += len(queue)
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f} accuracy {hits / seen:.3f}", flush=True)
            hits = seen = 0
    print(f"{(time.perf_counter() - start) / STEPS * 1e3:.1f} ms a step")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        weights = os.path.join(folder, "encoder.pt")
        export_pretrained(weights)
        main(weights)
