"""Person re-identification embedding with identity and hard triplet losses."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F

PEOPLE, SHOTS, IDS = 24, 4, 400
device = "cuda" if torch.cuda.is_available() else "cpu"


class HardTripletLoss(nn.Module):
    def __init__(self, margin=0.3):
        super().__init__()
        self.ranking = nn.MarginRankingLoss(margin=margin)

    def forward(self, feats, ids):
        n = feats.size(0)
        square = feats.pow(2).sum(1, keepdim=True).expand(n, n)
        dist = square + square.t() - 2 * feats @ feats.t()
        dist = dist.clamp(min=1e-12).sqrt()
        same = ids.expand(n, n).eq(ids.expand(n, n).t())
        dist_ap, dist_an = [], []
        for i in range(n):
            dist_ap.append(dist[i][same[i]].max().unsqueeze(0))
            dist_an.append(dist[i][~same[i]].min().unsqueeze(0))
        dist_ap = torch.cat(dist_ap)
        dist_an = torch.cat(dist_an)
        return self.ranking(dist_an, dist_ap, torch.ones_like(dist_an))


class ReIDNet(nn.Module):
    def __init__(self, width=64, dim=256):
        super().__init__()
        layers, cin = [], 3
        for cout in (width, 2 * width, 4 * width, 8 * width):
            layers += [
                nn.Conv2d(cin, cout, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(cout),
                nn.ReLU(inplace=True),
                nn.Conv2d(cout, cout, 3, padding=1, bias=False),
                nn.BatchNorm2d(cout),
                nn.ReLU(inplace=True),
            ]
            cin = cout
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.embed = nn.Linear(cin, dim)
        self.classify = nn.Linear(dim, IDS)

    def forward(self, x):
        feats = self.embed(self.body(x))
        return feats, self.classify(feats)


class Gallery:
    """Crops of every identity, resident on the device."""

    def __init__(self, shots=16, height=128, width=64):
        base = torch.rand(IDS, 1, 3, height, width, device=device) * 255
        noise = torch.randn(IDS, shots, 3, height, width, device=device) * 40
        self.crops = (base + noise).clamp_(0, 255).to(torch.uint8)
        self.shots = shots

    def draw(self):
        people = torch.randperm(IDS, device=device)[:PEOPLE].repeat_interleave(SHOTS)
        shot = torch.randint(self.shots, (PEOPLE * SHOTS,), device=device)
        x = self.crops[people, shot].float().div_(255).sub_(0.5)
        flip = torch.rand(len(x), 1, 1, 1, device=device) < 0.5
        x = torch.where(flip, x.flip(3), x)
        return x.contiguous(memory_format=torch.channels_last), people


def main(steps=320):
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    gallery = Gallery()
    net = ReIDNet().to(device, memory_format=torch.channels_last)
    triplet = HardTripletLoss()
    opt = torch.optim.Adam(net.parameters(), lr=3e-4, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=150, gamma=0.3)
    start = time.time()
    for step in range(1, steps + 1):
        x, people = gallery.draw()
        with torch.autocast(device_type=device, dtype=torch.bfloat16):
            feats, logits = net(x)
        loss = triplet(feats.float(), people) + F.cross_entropy(logits.float(), people)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        if step % 80 == 0:
            print(f"step {step} loss {loss.item():.4f} {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
