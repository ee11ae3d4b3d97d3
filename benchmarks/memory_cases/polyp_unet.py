# planted: evaluation that records the graph (no no_grad) (peak in evaluation)
# line: 105
# dominates at the peak: activations, in validate(); made by the lines of UNet.forward and double_conv
# held by: logits (its graph) in validate(); the graph of the batch before is alive while the next forward runs
# mend: @torch.no_grad() (or inference_mode) on validate
# measured: CPU: peak (MB) 341 -> 104 (which is then the making of the data; training and evaluation stay under
#     it); mended, no graph is kept in evaluation
# on a GPU: about 5 GB a graph, two alive (not run)
"""Polyp segmentation with a small U-Net; crops for training, whole frames for validation."""
import time

import torch
from torch import nn
from torch.nn import functional as F

CUDA = torch.cuda.is_available()
CONFIG = {
    "device": "cuda" if CUDA else "cpu",
    "base": 32 if CUDA else 8,
    "crop": 160 if CUDA else 64,
    "frame": 384 if CUDA else 128,
    "frames": 240 if CUDA else 144,
    "batch": 16 if CUDA else 4,
    "val_batch": 16 if CUDA else 16,
    "epochs": 9,
    "steps": 120 if CUDA else 90,
}


def frames(count, size, seed):
    g = torch.Generator().manual_seed(seed)
    line = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(line, line, indexing="ij")
    centre = torch.rand(count, 2, generator=g) * 1.2 - 0.6
    radius = 0.15 + 0.25 * torch.rand(count, generator=g)
    d = (xx - centre[:, 0, None, None]) ** 2 + (yy - centre[:, 1, None, None]) ** 2
    mask = (d < radius[:, None, None] ** 2).float().unsqueeze(1)
    tone = torch.rand(count, 3, 1, 1, generator=g)
    image = 0.5 * tone + 0.2 * mask * torch.tensor([1.0, 0.3, 0.2]).view(1, 3, 1, 1)
    return image + 0.15 * torch.randn(count, 3, size, size, generator=g), mask


def double_conv(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.down1 = double_conv(3, base)
        self.down2 = double_conv(base, base * 2)
        self.bottom = double_conv(base * 2, base * 4)
        self.up2 = nn.ConvTranspose2d(base * 4, base * 2, 2, stride=2)
        self.merge2 = double_conv(base * 4, base * 2)
        self.up1 = nn.ConvTranspose2d(base * 2, base, 2, stride=2)
        self.merge1 = double_conv(base * 2, base)
        self.head = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        b = self.merge2(torch.cat([b, self.up2(c)], dim=1))
        a = self.merge1(torch.cat([a, self.up1(b)], dim=1))
        return self.head(a)


class Trainer:
    def __init__(self, config):
        self.c = config
        self.device = config["device"]
        self.train_data = frames(config["frames"], config["frame"], seed=0)
        self.val_data = frames(config["frames"] // 3, config["frame"], seed=1)
        self.model = UNet(config["base"]).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)

    def crops(self):
        images, masks = self.train_data
        pick = torch.randint(0, len(images), (self.c["batch"],))
        top, left = torch.randint(0, self.c["frame"] - self.c["crop"] + 1, (2,)).tolist()
        window = (pick, slice(None), slice(top, top + self.c["crop"]), slice(left, left + self.c["crop"]))
        return images[window].to(self.device), masks[window].to(self.device)

    def train_epoch(self):
        self.model.train()
        total = 0.0
        for _ in range(self.c["steps"]):
            image, mask = self.crops()
            loss = F.binary_cross_entropy_with_logits(self.model(image), mask)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / self.c["steps"]

    def validate(self):
        self.model.eval()
        inter, union = 0.0, 0.0
        images, masks = self.val_data
        for i in range(0, len(images), self.c["val_batch"]):
            image = images[i:i + self.c["val_batch"]].to(self.device)
            mask = masks[i:i + self.c["val_batch"]].to(self.device)
            logits = self.model(image)
            found = (logits > 0).float()
            inter += (found * mask).sum().item()
            union += ((found + mask) > 0).sum().item()
        return inter / max(union, 1)

    def fit(self):
        for epoch in range(self.c["epochs"]):
            begin = time.perf_counter()
            loss = self.train_epoch()
            iou = self.validate()
            print(f"epoch {epoch} loss {loss:.4f} val IoU {iou:.3f} ({time.perf_counter() - begin:.1f} s)", flush=True)


if __name__ == "__main__":
    torch.manual_seed(3)
    Trainer(CONFIG).fit()
