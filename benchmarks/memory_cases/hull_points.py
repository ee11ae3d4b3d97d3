# planted: expanded difference tensor (B, N, N, 3) for pairwise distances (peak of the step, one line (extra))
# line: 46
# dominates at the peak: activations of that line (the differences, 14 MB, and the distances) and its backward's
#     temporaries (47 of 70 MB at loss.backward())
# held by: the loss's graph (PowBackward)
# mend: torch.cdist(a, b)
# measured: CPU: peak 69.6 -> 27.1 MB
# on a GPU: 0.8 GB a difference tensor (not run)
"""Point cloud autoencoder (PointNet encoder, MLP decoder) trained with the Chamfer distance."""
import os
import time

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
big = device.type == "cuda"
POINTS = 2048 if big else 384
BATCH = 16 if big else 8
WIDTH = 256 if big else 64
STEPS = int(os.environ.get("STEPS", 300 if big else 320))


def hulls(n):
    """Points on superellipsoids with random axes and exponents."""
    d = torch.randn(n, POINTS, 3, device=device)
    d = d / d.norm(dim=-1, keepdim=True)
    axes = 0.4 + 0.8 * torch.rand(n, 1, 3, device=device)
    power = 0.5 + torch.rand(n, 1, 1, device=device)
    return d.sign() * d.abs().pow(power) * axes


class CloudAutoencoder(nn.Module):
    def __init__(self, width, code=128):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2 * width), nn.ReLU(),
                                   nn.Linear(2 * width, code))
        self.decode = nn.Sequential(nn.Linear(code, 4 * width), nn.ReLU(), nn.Linear(4 * width, POINTS * 3))

    def forward(self, cloud):
        code = self.point(cloud).amax(dim=1)
        return self.decode(code).view(-1, POINTS, 3)


def chamfer(a, b):
    distance = (a.unsqueeze(2) - b.unsqueeze(1)).pow(2).sum(dim=-1).add(1e-12).sqrt()
    return distance.amin(dim=2).mean() + distance.amin(dim=1).mean()


def main():
    torch.manual_seed(0)
    model = CloudAutoencoder(WIDTH).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    start, window = time.perf_counter(), []
    for step in range(1, STEPS + 1):
        cloud = hulls(BATCH)
        loss = chamfer(model(cloud), cloud)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        window.append(loss.item())
        if step % 20 == 0:
            print(f"step {step} chamfer {sum(window) / len(window):.4f}", flush=True)
            window.clear()
    print(f"{(time.perf_counter() - start) / STEPS * 1e3:.0f} ms a step")


if __name__ == "__main__":
    main()
