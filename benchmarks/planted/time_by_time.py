"""Train a recurrent tagger that is called once for each time of sequences that are all there.

cause: time-by-time
bound: launch
needs: cpu
place: line
"""

import argparse

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(500, 64), nn.GRU(64, 64, batch_first=True), nn.Linear(64, 20)

    def forward(self, tokens, state):
        hidden, state = self.rnn(self.embed(tokens), state)
        return self.head(hidden), state


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Tagger().to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    tokens = torch.randint(500, (16, 60), device=args.device)
    tags = torch.randint(20, (16, 60), device=args.device)
    for _ in range(2000):
        state, scores = None, []
        for at in range(60):
            out, state = model(tokens[:, at : at + 1], state)  # planted
            scores.append(out)
        loss = nn.functional.cross_entropy(torch.cat(scores, 1).flatten(0, 1), tags.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
