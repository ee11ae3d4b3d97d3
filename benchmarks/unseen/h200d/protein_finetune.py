"""Fine-tune a protein encoder for thermostability with layer-wise learning rates."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F

LAYERS, DIM, HEADS = 36, 384, 6
device = "cuda" if torch.cuda.is_available() else "cpu"


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.out = nn.Linear(DIM, DIM)
        self.norm2 = nn.LayerNorm(DIM)
        self.fc1 = nn.Linear(DIM, 4 * DIM)
        self.fc2 = nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(y)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class StabilityModel(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.embed = nn.Embedding(24, DIM)
        self.position = nn.Parameter(torch.randn(length, DIM) * 0.02)
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, 1)

    def forward(self, ids):
        x = self.embed(ids) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1)).squeeze(-1)


def depth_of(name):
    if name.startswith(("embed", "position")):
        return 0
    if name.startswith("layers."):
        return int(name.split(".")[1]) + 1
    return LAYERS + 1


def layerwise_groups(model, weight_decay=0.05, decay=0.9):
    groups = []
    for name, param in model.named_parameters():
        scale = decay ** (LAYERS + 1 - depth_of(name))
        wd = 0.0 if param.ndim == 1 else weight_decay
        groups.append({"params": [param], "lr_scale": scale, "weight_decay": wd})
    return groups


def set_lr(opt, step, base=5e-4, warmup=40):
    lr = base * min(1.0, step / warmup)
    for group in opt.param_groups:
        group["lr"] = lr * group["lr_scale"]


def make_proteins(count=30_000, length=96):
    ids = torch.randint(20, (count, length), device=device)
    weight = torch.randn(20, device=device)
    target = weight[ids].mean(1) * 8
    return ids, target + 0.1 * torch.randn(count, device=device)


def main(steps=600, batch=24):
    torch.manual_seed(5)
    torch.set_float32_matmul_precision("high")
    ids, target = make_proteins()
    model = StabilityModel(ids.shape[1]).to(device)
    opt = torch.optim.AdamW(layerwise_groups(model), lr=5e-4, fused=True)
    start = time.time()
    for step in range(1, steps + 1):
        pick = torch.randint(len(ids), (batch,), device=device)
        set_lr(opt, step)
        loss = F.smooth_l1_loss(model(ids[pick]), target[pick])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
