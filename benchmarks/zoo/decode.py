"""Complete prompts with a GPT of 124M parameters, greedily: the whole prefix goes through it for each token.

    python decode.py
    python decode.py --tiny --steps 24        # a few small layers, for a CPU

16 prompts at a time, 96 tokens each from Python source text, are completed by 160 tokens; a step is a token of
all 16. The weights are random but for the last layer, which follows the token embedding: so one token is clearly
the likeliest, as with a trained model, and the choice does not hang on rounding.
"""

import argparse
import math
import sysconfig
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class PromptDataset(Dataset):
    def __init__(self, prompt, vocab):
        stdlib = Path(sysconfig.get_paths()["stdlib"])
        text = b"".join(p.read_bytes() for p in sorted(stdlib.glob("*.py")))[:2_000_000]
        pairs = torch.frombuffer(bytearray(text[: len(text) // 2 * 2]), dtype=torch.uint8).view(-1, 2).long()
        self.tokens = (pairs[:, 0] * 256 + pairs[:, 1]) % vocab
        self.prompt = prompt

    def __len__(self):
        return len(self.tokens) // self.prompt

    def __getitem__(self, i):
        return self.tokens[i * self.prompt : (i + 1) * self.prompt]


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).split(C, dim=2)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        mask = torch.tril(torch.ones(T, T, device=x.device))
        att = F.softmax(att.masked_fill(mask == 0, float("-inf")), dim=-1)
        return self.proj((att @ v).transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.ln2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab, block, dim, heads, layers):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(block, dim)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(layers)])
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
        nn.init.normal_(self.pos.weight, std=0.02)
        with torch.no_grad():
            self.head.weight.copy_(self.tok.weight[torch.randperm(vocab)] * 0.8 / math.sqrt(dim))

    def forward(self, x):
        h = self.tok(x) + self.pos(torch.arange(x.size(1), device=x.device))
        for block in self.blocks:
            h = block(h)
        return self.head(self.ln(h))


def parse_args(log_every=40):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--log-every", type=int, default=log_every)
    parser.add_argument("--tiny", action="store_true", help="a few small layers, for a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    args.vocab, args.dim, args.heads, args.layers, args.prompt, args.new = 50257, 768, 12, 12, 96, 160
    if args.tiny:
        args.vocab, args.dim, args.heads, args.layers, args.prompt, args.new = 1024, 64, 4, 2, 16, 8
        args.batch_size = 4
    return args


@torch.no_grad()
def main():
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device(args.device)
    loader = DataLoader(PromptDataset(args.prompt, args.vocab), batch_size=args.batch_size, drop_last=True)
    model = GPT(args.vocab, args.prompt + args.new, args.dim, args.heads, args.layers).to(device).eval()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters on {device}")

    step, total, start = 0, 0.0, time.perf_counter()
    while step < args.steps:
        for prompts in loader:
            tokens = prompts.to(device)
            answers = [[] for _ in prompts]
            for _ in range(args.new):
                logits = model(tokens)
                logprobs = F.log_softmax(logits[:, -1, :], dim=-1)
                best = torch.argmax(logprobs, dim=-1)
                tokens = torch.cat([tokens, best.unsqueeze(1)], dim=1)
                loss = -logprobs.gather(1, best.unsqueeze(1)).mean().item()
                for answer, token in zip(answers, best):
                    answer.append(token.item())
                total += loss
                step += 1
                if step % args.log_every == 0:
                    ms = (time.perf_counter() - start) * 1000 / args.log_every
                    scores = f"loss {loss:.4f} mean {total / step:.4f} token {answers[0][-1]}"
                    print(f"step {step} {scores} {ms:.2f} ms/step")
                    start = time.perf_counter()
                if step >= args.steps:
                    break
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
