import torch
import torch.nn as nn
import torch.nn.functional as F


class MLP(nn.Module):
    def __init__(self, inputs=256, hidden=768, classes=10):
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, classes)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


def make_data(n=8192, inputs=256, classes=10):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, inputs, generator=g)
    w = torch.randn(inputs, classes, generator=g)
    return x, (x @ w).argmax(1)


def train(steps=80, batch_size=512):
    torch.manual_seed(0)
    x, y = make_data()
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        idx = torch.randint(0, len(x), (batch_size,))
        loss = F.cross_entropy(model(x[idx]), y[idx])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    return model


def main():
    model = train()
    print("parameters", sum(p.numel() for p in model.parameters()))


if __name__ == "__main__":
    main()
