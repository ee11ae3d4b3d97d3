import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, inputs=1024, dim=128):
        super().__init__()
        self.proj = nn.Linear(inputs, dim)

    def forward(self, x):
        return torch.tanh(self.proj(x))


class CenterLoss(nn.Module):
    def __init__(self, dim=128, momentum=0.9):
        super().__init__()
        self.momentum = momentum
        self.center = torch.zeros(dim)

    def forward(self, features):
        self.center = self.momentum * self.center + (1 - self.momentum) * features.mean(dim=0)
        return (features - self.center).pow(2).sum(dim=1).mean()


class FaceModel(nn.Module):
    def __init__(self, identities=100):
        super().__init__()
        self.encoder = Encoder()
        self.classifier = nn.Linear(128, identities)

    def forward(self, x):
        features = self.encoder(x)
        return features, self.classifier(features)


class FaceData:
    def __init__(self, n=2000, identities=100):
        g = torch.Generator().manual_seed(0)
        self.labels = torch.randint(0, identities, (n,), generator=g)
        prototypes = torch.randn(identities, 1024, generator=g)
        self.pixels = prototypes[self.labels] + 0.5 * torch.randn(n, 1024, generator=g)

    def __iter__(self):
        for idx in torch.randperm(len(self.labels)).split(100):
            yield self.pixels[idx], self.labels[idx]


def train(epochs=4):
    torch.manual_seed(0)
    data = FaceData()
    model, center_loss = FaceModel(), CenterLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        for pixels, labels in data:
            features, logits = model(pixels)
            loss = F.cross_entropy(logits, labels) + 0.01 * center_loss(features)
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    train()
