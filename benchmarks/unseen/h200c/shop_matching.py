import os

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = device == "cuda"
SHOPPERS = 10_000_000 if ON_GPU else 5_000
PRODUCTS = 2_000_000 if ON_GPU else 1_000
DIM = 128 if ON_GPU else 16
BATCH = 4096 if ON_GPU else 64
STEPS_PER_EPOCH = 200
EPOCHS = 4
TEMPERATURE = 0.1
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


def purchases(steps, seed):
    gen = torch.Generator(device=device).manual_seed(seed)
    for _ in range(steps):
        shopper = torch.randint(SHOPPERS, (BATCH,), generator=gen, device=device)
        noise = torch.randint(50, (BATCH,), generator=gen, device=device)
        product = (shopper // 7 + noise) % PRODUCTS
        yield shopper, product


class Tower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        return F.normalize(x + self.net(x), dim=-1)


class Matcher(nn.Module):
    def __init__(self):
        super().__init__()
        self.shoppers = nn.Embedding(SHOPPERS, DIM, device=device)
        self.products = nn.Embedding(PRODUCTS, DIM, device=device)
        self.shopper_tower = Tower(DIM).to(device)
        self.product_tower = Tower(DIM).to(device)

    def forward(self, shopper, product):
        u = self.shopper_tower(self.shoppers(shopper))
        v = self.product_tower(self.products(product))
        return u @ v.T / TEMPERATURE


def main():
    torch.manual_seed(0)
    model = Matcher()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=ON_GPU)
    target = torch.arange(BATCH, device=device)
    step = 0
    for epoch in range(EPOCHS):
        for shopper, product in purchases(STEPS_PER_EPOCH, seed=epoch):
            with torch.autocast(device, torch.bfloat16):
                scores = model(shopper, product)
            loss = F.cross_entropy(scores.float(), target)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if step % 100 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            if step == LIMIT:
                return


if __name__ == "__main__":
    main()
