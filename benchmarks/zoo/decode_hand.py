"""decode.py tuned by hand: the same model, prompts and flags, the same tokens, the same loss up to rounding.

    python decode_hand.py

What was changed: keys and values are kept in a cache of fixed size, so a token costs one token; bf16 weights;
scaled_dot_product_attention; the first pass over the prompts looks at the last position's logits only; both
passes are compiled, and that of a token, choice and bookkeeping included, is one CUDA graph; tokens are
fetched once for a batch of prompts, and no .item() but where a loss is printed.
"""

import time

import torch
import torch.nn.functional as F
from capture import Captured
from decode import GPT, PromptDataset, parse_args
from prefetch import loader_options, prefetch
from torch import nn
from torch.utils.data import DataLoader


class CachedAttention(nn.Module):
    """Takes over the weights of a plain layer; remembers keys and values at their positions."""

    def __init__(self, plain, batch, length):
        super().__init__()
        self.heads, self.qkv, self.proj = plain.heads, plain.qkv, plain.proj
        size = plain.proj.in_features // plain.heads
        self.register_buffer("keys", torch.zeros(batch, plain.heads, length, size))
        self.register_buffer("values", torch.zeros(batch, plain.heads, length, size))

    def forward(self, x, positions, mask):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        self.keys[:, :, positions] = k
        self.values[:, :, positions] = v
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class CachedGPT(nn.Module):
    """Takes over the weights of a plain model."""

    def __init__(self, plain: GPT, batch, length):
        super().__init__()
        self.tok, self.pos, self.blocks, self.ln, self.head = plain.tok, plain.pos, plain.blocks, plain.ln, plain.head
        for block in self.blocks:
            block.attn = CachedAttention(block.attn, batch, length)
        self.register_buffer("places", torch.arange(length))

    def forward(self, x, positions):
        """Log-probabilities of what follows the last of `x`, whose tokens stand at `positions`."""
        mask = positions.unsqueeze(1) >= self.places
        h = self.tok(x) + self.pos(positions)
        for block in self.blocks:
            h = h + block.attn(block.ln1(h), positions, mask)
            h = h + block.mlp(block.ln2(h))
        return F.log_softmax(self.head(self.ln(h[:, -1])).float(), dim=-1)


@torch.no_grad()
def main():
    args = parse_args(log_every=160)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device(args.device)
    cuda = device.type == "cuda"
    length = args.prompt + args.new
    dataset = PromptDataset(args.prompt, args.vocab)
    loader = DataLoader(dataset, batch_size=args.batch_size, drop_last=True, **loader_options(device, workers=1))
    model = GPT(args.vocab, length, args.dim, args.heads, args.layers)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters on {device}")
    model = CachedGPT(model, args.batch_size, length).to(device).eval()
    model.to(torch.bfloat16 if cuda else torch.float32)

    def choose(x, positions):
        best, token = model(x, positions).max(dim=-1)
        return token, -best.mean()

    first, later = (torch.compile(choose, dynamic=False) for _ in range(2)) if cuda else (choose, choose)
    prompt_positions = torch.arange(args.prompt, device=device)
    answers = torch.zeros(args.batch_size, args.new, dtype=torch.long, device=device)
    token = torch.zeros(args.batch_size, 1, dtype=torch.long, device=device)
    position, turn = torch.zeros(2, 1, dtype=torch.long, device=device).unbind()
    last, total = torch.zeros(2, device=device).unbind()

    def keep(chosen, loss):
        token.copy_(chosen.unsqueeze(1))
        answers.index_copy_(1, turn, token)
        last.copy_(loss)
        total.add_(last)
        position.add_(1)
        turn.add_(1)

    decode = Captured(lambda: keep(*later(token, position)), device)
    step, start = 0, time.perf_counter()
    while step < args.steps:
        for (prompts,) in prefetch(((batch,) for batch in loader), device):
            position.fill_(args.prompt - 1)
            turn.zero_()
            for number in range(args.new):
                if number == 0:
                    keep(*first(prompts, prompt_positions))
                else:
                    decode()
                step += 1
                if step % args.log_every == 0:
                    now, mean, shown = last.item(), total.item() / step, answers[0, number].item()
                    ms = (time.perf_counter() - start) * 1000 / args.log_every
                    print(f"step {step} loss {now:.4f} mean {mean:.4f} token {shown} {ms:.2f} ms/step")
                    start = time.perf_counter()
                if step >= args.steps:
                    break
            answers.tolist()
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
