"""gpt.py tuned by hand: the same model, data and flags, the same loss up to rounding.

    python gpt_hand.py

What was changed: scaled_dot_product_attention, bf16 autocast, TF32 for what stays in fp32, the model and
its loss compiled as one function, fused AdamW, loader workers with pinned memory, batches copied to the
device one step ahead, and no .item() but where a loss is printed.
"""

import time

import torch
import torch.nn.functional as F
from gpt import GPT, TextDataset, parse_args
from prefetch import loader_options, prefetch
from torch import nn
from torch.utils.data import DataLoader


class FusedAttention(nn.Module):
    """Takes over the weights of a plain attention layer."""

    def __init__(self, plain):
        super().__init__()
        self.heads = plain.heads
        self.qkv = plain.qkv
        self.proj = plain.proj
        self.drop = plain.drop

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.drop.p if self.training else 0.0)
        return self.drop(self.proj(y.transpose(1, 2).reshape(B, T, C)))


def main():
    args = parse_args(log_every=50)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device(args.device)
    cuda = device.type == "cuda"
    dataset = TextDataset(args.block, args.vocab)
    options = loader_options(device, workers=2)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True, **options)
    model = GPT(args.vocab, args.block, args.dim, args.heads, args.layers, args.dropout)
    for block in model.blocks:
        block.attn = FusedAttention(block.attn)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters on {device}")

    def loss_of(x, y):
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
            logits = model(x)
            return F.cross_entropy(logits.view(-1, args.vocab), y.view(-1))

    if cuda:
        loss_of = torch.compile(loss_of, dynamic=False)

    step, start = 0, time.perf_counter()
    total = torch.zeros((), device=device)
    while step < args.steps:
        for x, y in prefetch(loader, device):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(x, y)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            step += 1
            if step % args.log_every == 0:
                last, mean = loss.item(), total.item() / step
                ms = (time.perf_counter() - start) * 1000 / args.log_every
                print(f"step {step} loss {last:.4f} mean {mean:.4f} {ms:.1f} ms/step")
                start = time.perf_counter()
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
