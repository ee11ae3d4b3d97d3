"""Which part of the standard library does a piece of code come from? A bag-of-words MLP over Python's own sources."""

import argparse
import collections
import logging
import pathlib
import re
import sysconfig
import time

import torch
import torch.nn.functional as F
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
log = logging.getLogger("which-module")
PACKAGES = ["asyncio", "email", "unittest", "tkinter", "distutils", "http", "json", "multiprocessing", "xml", "logging",
            "importlib", "encodings", "idlelib", "ctypes", "concurrent", "urllib"]
WORD = re.compile(r"[A-Za-z_]{2,}")


def chunks(lines_each=12):
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    kinds = [p for p in PACKAGES if (root / p).is_dir()]
    for kind, package in enumerate(kinds):
        taken = 0
        for path in sorted((root / package).rglob("*.py")):
            lines = path.read_text(errors="ignore").splitlines()
            for at in range(0, len(lines) - lines_each, lines_each):
                words = WORD.findall("\n".join(lines[at : at + lines_each]))
                if len(words) >= 8 and taken < 500:
                    taken += 1
                    yield words, kind


def bag_of_words(vocabulary_size):
    samples = list(chunks())
    counts = collections.Counter(word for words, _ in samples for word in words)
    vocabulary = {word: i for i, (word, _) in enumerate(counts.most_common(vocabulary_size))}
    features = torch.zeros(len(samples), vocabulary_size)
    for row, (words, _) in enumerate(samples):
        for word in words:
            if word in vocabulary:
                features[row, vocabulary[word]] += 1
    return features.log1p_(), torch.tensor([kind for _, kind in samples])


class Classifier(nn.Module):
    def __init__(self, inputs, classes, hidden=(768, 512)):
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden[0])
        self.fc2 = nn.Linear(hidden[0], hidden[1])
        self.fc3 = nn.Linear(hidden[1], classes)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x):
        x = self.dropout(F.relu(self.fc1(x)))
        x = self.dropout(F.relu(self.fc2(x)))
        return self.fc3(x)


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--words", type=int, default=3000)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--l2", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main():
    args = parse()
    torch.manual_seed(args.seed)
    features, labels = bag_of_words(args.words)
    order = torch.randperm(len(labels))
    held_out, train = order[:600], order[600:]
    log.info("%d pieces of code, %d classes", len(labels), labels.max() + 1)

    model = Classifier(args.words, int(labels.max()) + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=400, gamma=0.3)
    begin = time.perf_counter()
    for step in range(1, args.steps + 1):
        batch = train[torch.randint(len(train), (args.batch,))]
        logits = model(features[batch])
        loss = F.cross_entropy(logits, labels[batch])
        l2_reg = torch.tensor(0.0)
        for param in model.parameters():
            l2_reg = l2_reg + torch.sum(param**2)
        loss = loss + args.l2 * l2_reg

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 100 == 0:
            log.info("step %d  loss %.4f  lr %.4f", step, loss.item(), scheduler.get_last_lr()[0])
    took = (time.perf_counter() - begin) / args.steps

    model.eval()
    with torch.no_grad():
        right = (model(features[held_out]).argmax(1) == labels[held_out]).float().mean().item()
    log.info("held-out accuracy %.3f", right)
    print(f"{took * 1e3:.2f} ms per step")


if __name__ == "__main__":
    main()
