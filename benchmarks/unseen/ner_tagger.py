"""Train a small BiLSTM-CRF on a synthetic BIO tagging corpus."""

import random
import time

import torch
import torch.nn as nn

TAGS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]
KINDS = ["PER", "ORG", "LOC", "MISC"]
VOCAB = 3000
SENT_LEN = 18


class BiLSTMCRF(nn.Module):
    def __init__(self, vocab, n_tags, emb=64, hidden=128):
        super().__init__()
        self.n_tags = n_tags
        self.embed = nn.Embedding(vocab, emb)
        self.lstm = nn.LSTM(emb, hidden // 2, batch_first=True, bidirectional=True)
        self.drop = nn.Dropout(0.25)
        self.out = nn.Linear(hidden, n_tags)
        self.trans = nn.Parameter(torch.randn(n_tags, n_tags) * 0.1)
        self.start = nn.Parameter(torch.zeros(n_tags))
        self.stop = nn.Parameter(torch.zeros(n_tags))

    def features(self, words):
        h, _ = self.lstm(self.embed(words))
        return self.out(self.drop(h))

    def partition(self, feats):
        alpha = self.start + feats[:, 0]
        for t in range(1, feats.size(1)):
            step = []
            for tag in range(self.n_tags):
                emit = feats[:, t, tag].unsqueeze(1)
                move = self.trans[:, tag].unsqueeze(0)
                step.append(torch.logsumexp(alpha + move + emit, dim=1))
            alpha = torch.stack(step, dim=1)
        return torch.logsumexp(alpha + self.stop, dim=1)

    def gold_score(self, feats, tags):
        emit = feats.gather(2, tags.unsqueeze(2)).squeeze(2).sum(1)
        move = self.trans[tags[:, :-1], tags[:, 1:]].sum(1)
        return emit + move + self.start[tags[:, 0]] + self.stop[tags[:, -1]]

    def nll(self, words, tags):
        feats = self.features(words)
        return (self.partition(feats) - self.gold_score(feats, tags)).mean()

    @torch.no_grad()
    def decode(self, words):
        feats = self.features(words)
        score, back = self.start + feats[:, 0], []
        for t in range(1, feats.size(1)):
            best, idx = (score.unsqueeze(2) + self.trans).max(1)
            score = best + feats[:, t]
            back.append(idx)
        last = (score + self.stop).argmax(1)
        path = [last]
        for idx in reversed(back):
            last = idx.gather(1, last.unsqueeze(1)).squeeze(1)
            path.append(last)
        return torch.stack(path[::-1], dim=1)


def make_corpus(n, rng):
    words, tags = [], []
    for _ in range(n):
        w, y = [], []
        while len(w) < SENT_LEN:
            if rng.random() < 0.25:
                k = rng.randrange(len(KINDS))
                for i in range(rng.randint(1, 3)):
                    w.append(1000 + 500 * k + rng.randrange(500))
                    y.append(TAGS.index(("B-" if i == 0 else "I-") + KINDS[k]))
            else:
                w.append(rng.randrange(1000))
                y.append(0)
        words.append(w[:SENT_LEN])
        tags.append(y[:SENT_LEN])
    return torch.tensor(words), torch.tensor(tags)


def evaluate(model, words, tags):
    model.eval()
    hits = sum((model.decode(w) == t).sum().item() for w, t in zip(words.split(128), tags.split(128)))
    model.train()
    return hits / tags.numel()


def main(epochs=3, batch=32):
    torch.manual_seed(0)
    rng = random.Random(0)
    train_w, train_t = make_corpus(1600, rng)
    dev_w, dev_t = make_corpus(256, rng)
    model = BiLSTMCRF(VOCAB, len(TAGS))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    step = 0
    for epoch in range(epochs):
        began = time.time()
        for idx in torch.randperm(len(train_w)).split(batch):
            loss = model.nll(train_w[idx], train_t[idx])
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            opt.step()
            step += 1
            if step % 25 == 0:
                print(f"step {step} nll {loss.item():.3f}")
        acc = evaluate(model, dev_w, dev_t)
        print(f"epoch {epoch} dev acc {acc:.3f} ({time.time() - began:.1f}s)")


if __name__ == "__main__":
    main()
