"""tiny_gpt.py tuned by hand: the same model, data, order and flags, the same loss up to rounding.

    python tiny_gpt_hand.py

The plain script waits for kernel launches, so here nothing but one launch is left of a step: the text and
the order of an epoch live on the device, and one CUDA graph holds the choice of the batch, the compiled
forward and backward, and the fused AdamW. The steps before the capture are ordinary steps of the training.
TF32 and no autocast: at this size casts to bf16 are more kernels, not less work.
"""

import time

import torch
import torch.nn.functional as F
from tiny_gpt import VOCAB, Attention, ByteDataset, TinyGPT, parse_args
from torch import nn
from torch.utils.data import DataLoader

WARMUP = 5


class FusedAttention(nn.Module):
    """Takes over the weights of a plain attention layer; query, key and value are one matrix product."""

    def __init__(self, plain: Attention):
        super().__init__()
        self.heads = plain.heads
        self.qkv = nn.Linear(plain.query.in_features, 3 * plain.query.out_features)
        with torch.no_grad():
            for name in ("weight", "bias"):
                parts = [getattr(layer, name) for layer in (plain.query, plain.key, plain.value)]
                getattr(self.qkv, name).copy_(torch.cat(parts))
        self.proj = plain.proj

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class Trainer:
    """One training step whose inputs and state all live on the device, so that it can be captured whole."""

    def __init__(self, model, dataset, args, device):
        self.args = args
        self.dataset = dataset
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True, capturable=device.type == "cuda")
        self.tokens = dataset.tokens.to(device)
        self.steps_per_epoch = len(dataset) // args.batch_size
        self.order = torch.zeros(self.steps_per_epoch, args.batch_size, dtype=torch.long, device=device)
        self.cursor = torch.zeros(1, dtype=torch.long, device=device)
        self.window = torch.arange(args.block + 1, device=device)
        self.total = torch.zeros((), device=device)
        self.loss = torch.zeros((), device=device)
        self.graph = None

        def loss_of(tokens, order, cursor, window):
            starts = order.index_select(0, cursor).view(-1, 1) * args.block
            chunk = tokens[starts + window]
            logits = model(chunk[:, :-1])
            return F.cross_entropy(logits.reshape(-1, VOCAB), chunk[:, 1:].reshape(-1))

        self.loss_of = torch.compile(loss_of, dynamic=False) if device.type == "cuda" else loss_of

    def new_epoch(self):
        """The order that the plain script's DataLoader would draw."""
        drawn = torch.cat(list(DataLoader(range(len(self.dataset)), batch_size=8192, shuffle=True)))
        self.order.copy_(drawn[: self.order.numel()].view_as(self.order))
        self.cursor.zero_()

    def body(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss_of(self.tokens, self.order, self.cursor, self.window)
        loss.backward()
        self.optimizer.step()
        self.loss.copy_(loss.detach())
        self.total += self.loss
        self.cursor += 1

    def capture(self, stream):
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            self.body()

    def step(self):
        if self.graph is None:
            self.body()
        else:
            self.graph.replay()


def main():
    args = parse_args(log_every=50)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device(args.device)
    dataset = ByteDataset(args.block)
    model = TinyGPT(args.block, args.dim, args.heads, args.layers)
    with torch.random.fork_rng(devices=[]):
        for block in model.blocks:
            block.attn = FusedAttention(block.attn)
    model.to(device)
    trainer = Trainer(model, dataset, args, device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters on {device}")

    side = torch.cuda.Stream(device) if device.type == "cuda" else None
    if side is not None:
        side.wait_stream(torch.cuda.current_stream())
        torch.cuda.set_stream(side)
    start = time.perf_counter()
    for step in range(1, args.steps + 1):
        if (step - 1) % trainer.steps_per_epoch == 0:
            trainer.new_epoch()
        if side is not None and step == WARMUP + 1:
            side.synchronize()
            trainer.capture(side)
        trainer.step()
        if step % args.log_every == 0:
            last, mean = trainer.loss.item(), trainer.total.item() / step
            ms = (time.perf_counter() - start) * 1000 / args.log_every
            print(f"step {step} loss {last:.4f} mean {mean:.4f} {ms:.2f} ms/step")
            start = time.perf_counter()


if __name__ == "__main__":
    main()
