"""Remaining life of water pumps from short windows of sensor readings."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
SENSORS = 24
WINDOW = 32 if CUDA else 8
WIDTH = 384 if CUDA else 32
LAYERS = 12 if CUDA else 2
HEADS = 6 if CUDA else 2
BATCH = 32 if CUDA else 4
PUMPS = 20_000 if CUDA else 200
STEPS = 480
REPORT_EVERY = 10 if CUDA else 2
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))

torch.set_float32_matmul_precision("high")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LifeModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(SENSORS, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.out(self.blocks(self.inp(x)).mean(1)).squeeze(1)


class ActivationReport:
    """Root mean square of what each linear layer puts out, printed with the loss."""

    def __init__(self, model):
        self.model = model
        self.rms = {}
        self.handles = []

    def _recorder(self, name):
        def record(module, args, output):
            self.rms[name] = output.detach().float().pow(2).mean().sqrt()

        return record

    def start(self):
        for name, module in self.model.named_modules():
            if isinstance(module, nn.Linear):
                self.handles.append(module.register_forward_hook(self._recorder(name)))

    def finish(self):
        values = torch.stack(list(self.rms.values())).tolist()
        self.rms.clear()
        return max(values), min(values)


def main():
    torch.manual_seed(0)
    readings = torch.randn(PUMPS, WINDOW, SENSORS, device=device).cumsum(1) * 0.3
    life = readings[:, -4:, 0].mean(1) - readings[:, :4, 1].mean(1)
    model = LifeModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=CUDA)
    report = ActivationReport(model)
    began = time.time()
    for step in range(1, STEPS + 1):
        pick = torch.randint(PUMPS, (BATCH,), device=device)
        x, y = readings[pick], life[pick]
        if step % REPORT_EVERY == 0:
            report.start()
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % REPORT_EVERY == 0:
            high, low = report.finish()
            print(
                f"step {step} loss {loss.item():.4f} rms {low:.2f}..{high:.2f} {time.time() - began:.1f}s", flush=True
            )
        if LIMIT and step >= LIMIT:
            print("loss", loss.item())
            return


if __name__ == "__main__":
    main()
