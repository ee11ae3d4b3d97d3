import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, INTENTS, LENGTH = 6000, 20, 20


class WordEncoder(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.vocab = vocab
        self.proj = nn.Linear(vocab, dim, bias=False)

    def forward(self, tokens):
        x = F.one_hot(tokens, self.vocab).float()
        return self.proj(x)


class IntentClassifier(nn.Module):
    def __init__(self, dim=64, hidden=128):
        super().__init__()
        self.encoder = WordEncoder(VOCAB, dim)
        self.lstm = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.3)
        self.fc = nn.Linear(2 * hidden, INTENTS)

    def forward(self, tokens):
        out, _ = self.lstm(self.encoder(tokens))
        return self.fc(self.dropout(out.mean(dim=1)))


def make_corpus(n=3000):
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(0, INTENTS, (n,), generator=g)
    tokens = torch.randint(0, VOCAB // INTENTS, (n, LENGTH), generator=g) * INTENTS + labels.unsqueeze(1)
    return tokens, labels


def accuracy(logits, labels):
    return (logits.argmax(1) == labels).float().mean().item()


def train(steps=80, batch_size=32):
    torch.manual_seed(0)
    tokens, labels = make_corpus()
    model = IntentClassifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=40, gamma=0.5)
    model.train()
    for step in range(1, steps + 1):
        idx = torch.randint(0, len(tokens), (batch_size,))
        logits = model(tokens[idx])
        loss = F.cross_entropy(logits, labels[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f} acc {accuracy(logits, labels[idx]):.2f}")


if __name__ == "__main__":
    train()
