import os

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = device == "cuda"
VOCAB = 16_000
TOKENS = 128 if ON_GPU else 16
DIM = 384 if ON_GPU else 32
LAYERS = 20
QUEUES = 37
TICKETS = 14_400 if ON_GPU else 400
BATCH = 32 if ON_GPU else 4
EPOCHS = 1
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


class Layer(nn.Module):
    def __init__(self, dim, heads=6):
        super().__init__()
        self.heads = heads if dim % heads == 0 else 4
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.position = nn.Parameter(0.02 * torch.randn(TOKENS, DIM))
        self.layers = nn.ModuleList([Layer(DIM) for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, QUEUES)

    def forward(self, tokens):
        x = self.embed(tokens) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


def depth_of(name):
    if name.startswith(("embed", "position")):
        return 0
    if name.startswith("layers."):
        return int(name.split(".")[1]) + 1
    return LAYERS + 1


def finetune_groups(model, lr, rate=0.9, weight_decay=0.05):
    groups = []
    for name, p in model.named_parameters():
        scale = rate ** (LAYERS + 1 - depth_of(name))
        decay = weight_decay if p.ndim > 1 else 0.0
        groups.append({"params": [p], "lr": lr * scale, "weight_decay": decay})
    return groups


def main():
    torch.manual_seed(0)
    tokens = torch.randint(VOCAB, (TICKETS, TOKENS), device=device)
    labels = tokens[:, :4].sum(1) % QUEUES
    model = Router().to(device)
    opt = torch.optim.AdamW(finetune_groups(model, 3e-4))
    step = 0
    for epoch in range(EPOCHS):
        order = torch.randperm(TICKETS, device=device)
        for rows in order.split(BATCH):
            with torch.autocast(device, torch.bfloat16):
                logits = model(tokens[rows])
                loss = F.cross_entropy(logits, labels[rows])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if step % 100 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            if step == LIMIT:
                return


if __name__ == "__main__":
    main()
