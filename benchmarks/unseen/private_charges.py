import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def synth_claims(n, features, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=g)
    w = torch.randn(features, generator=g) / features**0.5
    y = torch.sin(2 * x @ w) + 0.5 * (x[:, 0] * x[:, 1]) + 0.1 * torch.randn(n, generator=g)
    return x, y


def build_model(features, hidden):
    return nn.Sequential(
        nn.Linear(features, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 1),
    )


def private_gradients(model, x, y, max_norm, sigma):
    params = list(model.parameters())
    total = [torch.zeros_like(p) for p in params]
    losses = []
    for xi, yi in zip(x, y):
        loss = F.mse_loss(model(xi.unsqueeze(0)).squeeze(), yi)
        grads = torch.autograd.grad(loss, params)
        norm = torch.sqrt(sum(g.pow(2).sum() for g in grads))
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for acc, g in zip(total, grads):
            acc.add_(g * scale)
        losses.append(loss.detach())
    for p, acc in zip(params, total):
        noise = torch.randn_like(acc) * sigma * max_norm
        p.grad = (acc + noise) / len(x)
    return torch.stack(losses).mean()


@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    mse = F.mse_loss(model(x).squeeze(1), y).item()
    model.train()
    return mse


def parse():
    p = argparse.ArgumentParser(description="Differentially private regression on claims data")
    p.add_argument("--rows", type=int, default=8192)
    p.add_argument("--features", type=int, default=40)
    p.add_argument("--hidden", type=int, default=96)
    p.add_argument("--batch-size", type=int, default=256)
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--max-norm", type=float, default=1.0)
    p.add_argument("--sigma", type=float, default=0.6)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--seed", type=int, default=7)
    return p.parse_args()


def main():
    args = parse()
    torch.manual_seed(args.seed)
    x, y = synth_claims(args.rows + 1024, args.features, args.seed)
    train_x, train_y = x[: args.rows], y[: args.rows]
    test_x, test_y = x[args.rows :], y[args.rows :]
    model = build_model(args.features, args.hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    step = 0
    for epoch in range(args.epochs):
        for idx in torch.randperm(args.rows).split(args.batch_size):
            loss = private_gradients(model, train_x[idx], train_y[idx], args.max_norm, args.sigma)
            optimizer.step()
            step += 1
            if step % 40 == 0:
                print(f"step {step} train mse {loss.item():.3f}")
        print(f"epoch {epoch + 1} test mse {evaluate(model, test_x, test_y):.3f}")


if __name__ == "__main__":
    main()
