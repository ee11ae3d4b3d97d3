import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = device == "cuda"
SIDE = 256 if ON_GPU else 32
BATCH = 16 if ON_GPU else 2
ITEMS = 2560 if ON_GPU else 32
EPOCHS = 3
BASE = 64 if ON_GPU else 8
WORKERS = 6 if ON_GPU else 1
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


class NucleiCrops(Dataset):
    def __init__(self, length, slides=6, size=768):
        rng = np.random.default_rng(8)
        self.length, self.size = length, size
        self.images, self.masks = [], []
        yy, xx = np.mgrid[0:40, 0:40] - 20
        for _ in range(slides):
            mask = np.zeros((size, size), np.uint8)
            for _ in range(260):
                r, c = rng.integers(0, size - 40, 2)
                a, b = rng.uniform(6, 18, 2)
                mask[r : r + 40, c : c + 40] |= ((yy / a) ** 2 + (xx / b) ** 2 < 1).astype(np.uint8)
            image = 190 - 90 * mask + rng.integers(0, 50, mask.shape)
            self.images.append(image.astype(np.uint8))
            self.masks.append(mask)

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        k = int(rng.integers(len(self.images)))
        r, c = rng.integers(0, self.size - SIDE, 2)
        image = self.images[k][r : r + SIDE, c : c + SIDE]
        mask = self.masks[k][r : r + SIDE, c : c + SIDE]
        if i % 2:
            image, mask = image[:, ::-1], mask[:, ::-1]
        return torch.from_numpy(image.copy()), torch.from_numpy(mask.copy())


def double(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, c=BASE):
        super().__init__()
        sizes = [c, 2 * c, 4 * c, 8 * c]
        self.down = nn.ModuleList(double(a, b) for a, b in zip([1] + sizes[:-1], sizes))
        self.mid = double(8 * c, 8 * c)
        self.up = nn.ModuleList(double(a + b, b) for a, b in zip([8 * c] + sizes[:0:-1], sizes[::-1]))
        self.out = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.mid(x)
        for block, skip in zip(self.up, reversed(skips)):
            x = block(torch.cat([F.interpolate(x, scale_factor=2), skip], 1))
        return self.out(x)


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    loader = DataLoader(
        NucleiCrops(ITEMS),
        BATCH,
        shuffle=True,
        num_workers=WORKERS,
        pin_memory=ON_GPU,
        persistent_workers=True,
        drop_last=True,
    )
    model = UNet().to(device, memory_format=torch.channels_last)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=ON_GPU)
    step = 0
    for epoch in range(EPOCHS):
        for image, mask in loader:
            image = image.to(device, non_blocking=True)[:, None].to(torch.bfloat16).div_(255)
            mask = mask.to(device, non_blocking=True)[:, None].float()
            with torch.autocast(device, torch.bfloat16):
                logits = model(image)
            loss = F.binary_cross_entropy_with_logits(logits.float(), mask)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if step % 80 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            if step == LIMIT:
                return


if __name__ == "__main__":
    main()
