import torch
import torch.nn as nn
import torch.nn.functional as F

ITEMS, HISTORY = 60000, 20


class SessionRecommender(nn.Module):
    def __init__(self, n_items, dim=48):
        super().__init__()
        self.items = nn.Embedding(n_items, dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, dim))
        nn.init.normal_(self.items.weight, std=0.05)

    def encode(self, history):
        return self.ffn(self.items(history).mean(dim=1))

    def forward(self, history, positive, negative):
        user = self.encode(history)
        pos = (user * self.items(positive)).sum(-1)
        neg = (user.unsqueeze(1) * self.items(negative)).sum(-1)
        return pos, neg


def bpr_loss(pos, neg):
    return -F.logsigmoid(pos.unsqueeze(1) - neg).mean()


class Sessions:
    def __init__(self, n=5000, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.clicks = torch.randint(0, ITEMS, (n, HISTORY + 1), generator=g)

    def batches(self, batch_size, n_neg=10):
        for idx in torch.randperm(len(self.clicks)).split(batch_size):
            rows = self.clicks[idx]
            yield rows[:, :-1], rows[:, -1], torch.randint(0, ITEMS, (len(idx), n_neg))


def build_optimizers(model):
    return [torch.optim.Adam(model.parameters(), lr=1e-3)]


def main(epochs=2, batch_size=128):
    torch.manual_seed(0)
    sessions = Sessions()
    model = SessionRecommender(ITEMS)
    optimizers = build_optimizers(model)
    for epoch in range(epochs):
        losses = []
        for history, positive, negative in sessions.batches(batch_size):
            pos, neg = model(history, positive, negative)
            loss = bpr_loss(pos, neg)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: bpr {sum(losses) / len(losses):.4f}")


if __name__ == "__main__":
    main()
