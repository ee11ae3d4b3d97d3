# planted: fragmentation: the length of the batch changes every step (48 to 3000) (GPU only; on the CPU harmless,
#     a tool should say nothing there)
# line: 67
# dominates at the peak: allocated peak: activations of the longest batch (right as it is); the fault is reserved
#     - allocated
# held by: the caching allocator: blocks cut for other lengths, segments that cannot be given back
# mend: PYTORCH_ALLOC_CONF=expandable_segments:True, or pad to multiples (few lengths), longest batch first
# measured: CPU: allocated peak 126 MB, no change; the fall of reserved memory must be measured on a GPU (not run)
# on a GPU: reserved well above allocated, growing as longer batches come (expected, not measured)
"""Byte-level language model on functions of the standard library; one function is one sequence."""
import glob
import os
import random
import re
import sysconfig
import time

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

ON_GPU = torch.cuda.is_available()
device = torch.device("cuda" if ON_GPU else "cpu")
DIM, HEADS, LAYERS = (512, 8, 6) if ON_GPU else (64, 4, 2)
BATCH = 16 if ON_GPU else 8
LONGEST = 3000 if ON_GPU else 1000
SHORTEST = 48
STEPS = int(os.environ.get("STEPS", 600 if ON_GPU else 350))
PAD = 256


def read_functions():
    root = sysconfig.get_paths()["stdlib"]
    found = []
    for path in sorted(glob.glob(os.path.join(root, "*.py")))[:150]:
        with open(path, encoding="utf-8", errors="ignore") as f:
            for piece in re.split(r"\n(?=(?:    )?def )", f.read()):
                raw = piece.encode()[:LONGEST]
                if len(raw) >= SHORTEST:
                    found.append(torch.tensor(list(raw), dtype=torch.long))
    return found


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(257, DIM, padding_idx=PAD)
        self.place = nn.Embedding(LONGEST, DIM)
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, dropout=0.0, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, 256)

    def forward(self, tokens):
        length = tokens.shape[1]
        h = self.embed(tokens) + self.place(torch.arange(length, device=tokens.device))
        causal = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        return self.head(self.norm(self.blocks(h, mask=causal, is_causal=True)))


def batches(functions, size, rng):
    """Functions of about the same length go together, so that little is padded."""
    ordered = sorted(functions, key=len)
    while True:
        first = rng.randrange(len(ordered) - size)
        yield pad_sequence(ordered[first:first + size], batch_first=True, padding_value=PAD)


def main():
    torch.manual_seed(0)
    rng = random.Random(0)
    functions = read_functions()
    print(f"{len(functions)} functions, {sum(map(len, functions)) / 1e6:.2f} MB")
    model = Decoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    seen, began = 0, time.perf_counter()
    for step, tokens in enumerate(batches(functions, BATCH, rng)):
        if step == STEPS:
            break
        tokens = tokens.to(device)
        logits = model(tokens[:, :-1])
        loss = criterion(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seen += tokens.numel()
        if step % 20 == 0:
            rate = seen / (time.perf_counter() - began)
            print(f"step {step} length {tokens.shape[1]} loss {loss.item():.3f} {rate:.0f} bytes/s", flush=True)


if __name__ == "__main__":
    main()
