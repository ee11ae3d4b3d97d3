"""Train an intent classifier on support tickets kept in memory as records."""

import argparse
import gc
import random
import time

import torch
from torch import nn
from torch.nn import functional as F

VOCAB = 8000
INTENTS = 24


def load_tickets(count, seed=0):
    rng = random.Random(seed)
    tickets = []
    for number in range(count):
        intent = rng.randrange(INTENTS)
        length = rng.randint(8, 24)
        topic = [intent * 300 + rng.randrange(300) for _ in range(length // 2)]
        noise = [rng.randrange(VOCAB) for _ in range(length - len(topic))]
        tickets.append(
            {
                "id": number,
                "tokens": topic + noise,
                "intent": intent,
                "history": [[rng.randrange(5), "agent"], [rng.randrange(5), "customer"]],
            }
        )
    return tickets


def batches(tickets, size, rng):
    order = list(range(len(tickets)))
    rng.shuffle(order)
    for start in range(0, len(order) - size + 1, size):
        chosen = [tickets[i] for i in order[start : start + size]]
        ids = torch.zeros(size, 24, dtype=torch.long)
        for row, ticket in enumerate(chosen):
            ids[row, : len(ticket["tokens"])] = torch.tensor(ticket["tokens"])
        yield ids, torch.tensor([t["intent"] for t in chosen])


class IntentNet(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.conv = nn.Conv1d(dim, 256, 3, padding=1)
        self.head = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, INTENTS))

    def forward(self, ids):
        x = self.embed(ids).transpose(1, 2)
        x = F.relu(self.conv(x)).amax(2)
        return self.head(x)


def train_step(model, optimizer, ids, intents):
    logits = model(ids)
    loss = F.cross_entropy(logits, intents)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    hits = (logits.argmax(1) == intents).float().mean()
    value, accuracy = loss.item(), hits.item()
    return value, accuracy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tickets", type=int, default=20000)
    parser.add_argument("--batch-size", type=int, default=96)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()

    torch.manual_seed(0)
    tickets = load_tickets(args.tickets)
    model = IntentNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    rng = random.Random(1)
    step = 0
    start = time.time()
    while step < args.steps:
        for ids, intents in batches(tickets, args.batch_size, rng):
            value, accuracy = train_step(model, optimizer, ids, intents)
            step += 1
            if step % 5 == 0:
                gc.collect()
            if step % 30 == 0:
                print(f"step {step} loss {value:.3f} accuracy {accuracy:.3f} {time.time() - start:.1f}s")
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
