"""lstm.py tuned by hand: the same model, data, order and flags, the same loss up to rounding.

    python lstm_hand.py

What was changed: one nn.LSTM, which is one call of cuDNN for all cells and bytes, takes over the weights of
the cells; TF32 (of cuDNN, the default); fused Adam; the text lives on the device; no .item() but where a loss is
printed. No autocast: it would cast and flatten cuDNN's weights anew each step. No compile: nothing is left
of the step that is worth fusing.
"""

import time

import torch
import torch.nn.functional as F
from lstm import VOCAB, LanguageModel, get_batch, parse_args, read_streams
from torch import nn


class FusedLanguageModel(nn.Module):
    """Takes over the weights of a plain model."""

    def __init__(self, plain: LanguageModel):
        super().__init__()
        dim = plain.head.in_features
        self.embed, self.head = plain.embed, plain.head
        self.lstm = nn.LSTM(dim, dim, num_layers=len(plain.cells), batch_first=True)
        with torch.no_grad():
            for layer, cell in enumerate(plain.cells):
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                    getattr(self.lstm, f"{name}_l{layer}").copy_(getattr(cell, name))

    def forward(self, x, state):
        out, state = self.lstm(self.embed(x), state)
        return self.head(out), state


def main():
    args = parse_args(log_every=50)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device(args.device)
    data = read_streams(args.batch_size).to(device)
    model = FusedLanguageModel(LanguageModel(args.dim, args.layers)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    parameters = list(model.parameters())
    print(f"{sum(p.numel() for p in parameters) / 1e6:.1f}M parameters on {device}")

    state = tuple(torch.zeros(args.layers, args.batch_size, args.dim, device=device) for _ in range(2))
    total, start = torch.zeros((), device=device), time.perf_counter()
    for step in range(1, args.steps + 1):
        x, y = get_batch(data, step - 1, args.window)
        optimizer.zero_grad(set_to_none=True)
        logits, state = model(x, (state[0].detach(), state[1].detach()))
        loss = F.cross_entropy(logits.view(-1, VOCAB), y.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, args.clip, foreach=True)
        optimizer.step()
        total += loss.detach()
        if step % args.log_every == 0:
            last, mean = loss.item(), total.item() / step
            ms = (time.perf_counter() - start) * 1000 / args.log_every
            print(f"step {step} loss {last:.4f} mean {mean:.4f} {ms:.2f} ms/step")
            start = time.perf_counter()


if __name__ == "__main__":
    main()
