"""Prototypical network trained on few-shot episodes of synthetic glyphs."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def make_glyphs(classes=60, per_class=20, size=20):
    g = torch.Generator().manual_seed(2)
    base = F.interpolate(torch.randn(classes, 1, 5, 5, generator=g), size=size, mode="bilinear")
    noise = torch.randn(classes, per_class, 1, size, size, generator=g)
    return base.unsqueeze(1) + 0.7 * noise


def sample_episode(glyphs, ways, shots, queries):
    chosen = torch.randperm(glyphs.size(0))[:ways]
    picks = torch.randperm(glyphs.size(1))[: shots + queries]
    episode = glyphs[chosen][:, picks]
    return episode[:, :shots], episode[:, shots:]


def conv_block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(4, cout), nn.ReLU(inplace=True), nn.MaxPool2d(2)
    )


class ProtoNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.encoder = nn.Sequential(
            conv_block(1, width), conv_block(width, width), nn.Flatten(), nn.Linear(width * 25, 48)
        )

    def prototypes(self, support):
        ways, shots = support.shape[:2]
        return self.encoder(support.flatten(0, 1)).view(ways, shots, -1).mean(dim=1)

    def classify(self, support, queries):
        embedded = self.encoder(queries)
        return -torch.cdist(embedded, self.prototypes(support)).pow(2)


def episode_loss(model, support, query):
    losses, hits = [], []
    for way in range(query.size(0)):
        logits = model.classify(support, query[way])
        target = torch.full((query.size(1),), way)
        losses.append(F.cross_entropy(logits, target))
        hits.append((logits.argmax(1) == target).float().mean())
    return torch.stack(losses).mean(), torch.stack(hits).mean()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--episodes", type=int, default=240)
    p.add_argument("--ways", type=int, default=5)
    p.add_argument("--shots", type=int, default=5)
    p.add_argument("--queries", type=int, default=8)
    args = p.parse_args()

    torch.manual_seed(0)
    glyphs = make_glyphs()
    model = ProtoNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for episode in range(args.episodes):
        support, query = sample_episode(glyphs, args.ways, args.shots, args.queries)
        loss, accuracy = episode_loss(model, support, query)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if episode % 25 == 0:
            print(f"episode {episode} loss {loss.item():.3f} accuracy {accuracy.item():.3f}")


if __name__ == "__main__":
    main()
