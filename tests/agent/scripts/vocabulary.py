"""A small language model over a large vocabulary."""

import argparse

import torch
from common import said
from torch import nn
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--classes", type=int, default=8192)
parser.add_argument("--rows", type=int, default=512)
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--blocks", type=int, default=2)
parser.add_argument("--inside", action="store_true", help="the loss is computed in the forward")
parser.add_argument("--amp", action="store_true")
parser.add_argument("--accuracy", action="store_true", help="of each batch, from the logits")
parser.add_argument("--own-loss", action="store_true", help="not F.cross_entropy")
parser.add_argument("--tied", action="store_true")
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.outer = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.outer(functional.gelu(self.inner(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(args.classes, args.width)
        self.blocks = nn.ModuleList(Block(args.width) for _ in range(args.blocks))
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, args.classes, bias=not args.tied)
        if args.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens, targets=None):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return logits, functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=0)


def loss_of(logits, targets):
    if args.own_loss:
        return -logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).mean()
    return functional.cross_entropy(logits.view(-1, args.classes), targets.view(-1), ignore_index=0)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randint(0, args.classes, (args.steps, 4, args.rows // 4 + 1))
for batch in data:
    tokens, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
    with torch.autocast("cpu", torch.bfloat16, enabled=args.amp):
        if args.inside:
            logits, loss = model(tokens, targets)
        else:
            logits = model(tokens)
            loss = loss_of(logits, targets)
    optimizer.zero_grad()
    said(loss).backward()
    optimizer.step()
    if args.accuracy:
        print("right", int((logits.argmax(-1) == targets).sum()))
model.eval()
with torch.no_grad():
    print("type", type(model(data[0, :, :-1])).__name__)
