"""Fine-grained classification of bird photos; the resized photos fit on the GPU."""

import os

import torch
import torch.nn.functional as F
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = device == "cuda"
PHOTOS = 8_192 if CUDA else 64
FULL, CROP = (160, 128) if CUDA else (48, 32)
BATCH = 128 if CUDA else 8
SPECIES = 200
EPOCHS = 14
LIMIT_STEPS = int(os.environ.get("LIMIT_STEPS", 0))


class Residual(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(cout)
        self.skip = nn.Conv2d(cin, cout, 1, stride, bias=False) if cin != cout else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x), inplace=True)


class BirdNet(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        for cin, cout in ((64, 64), (64, 128), (128, 256), (256, 512)):
            layers.append(Residual(cin, cout, 1 if cin == cout else 2))
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(512, SPECIES)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def load_photos():
    generator = torch.Generator(device=device).manual_seed(9)
    photos = torch.randint(0, 256, (PHOTOS, 3, FULL, FULL), dtype=torch.uint8, device=device, generator=generator)
    species = torch.randint(0, SPECIES, (PHOTOS,), device=device, generator=generator)
    return photos, species


def augment(photos):
    n = photos.shape[0]
    top = torch.randint(0, FULL - CROP + 1, (n,), device=photos.device)
    left = torch.randint(0, FULL - CROP + 1, (n,), device=photos.device)
    crops = []
    for photo, y, x in zip(photos, top, left):
        crops.append(photo[:, y : y + CROP, x : x + CROP])
    return torch.stack(crops)


def normalise(photos, mean, std):
    photos = photos.to(memory_format=torch.channels_last).float()
    return (photos - mean) / std


def train_epoch(model, opt, photos, species, stats, epoch, done):
    order = torch.randperm(PHOTOS, device=device)
    total = torch.zeros((), device=device)
    for begin in range(0, PHOTOS - BATCH + 1, BATCH):
        rows = order[begin : begin + BATCH]
        batch = normalise(augment(photos[rows]), *stats)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(batch)
        loss = F.cross_entropy(logits.float(), species[rows], label_smoothing=0.1)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        total += loss.detach()
        done += 1
        if done == LIMIT_STEPS:
            break
    print(f"epoch {epoch} step {done} loss {total.item() / (PHOTOS // BATCH):.4f}", flush=True)
    return done


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    photos, species = load_photos()
    stats = (
        torch.tensor([124.0, 116.0, 104.0], device=device).view(1, 3, 1, 1),
        torch.tensor([58.0, 57.0, 57.0], device=device).view(1, 3, 1, 1),
    )
    model = BirdNet().to(device, memory_format=torch.channels_last)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, fused=True)
    step = 0
    for epoch in range(EPOCHS):
        step = train_epoch(model, opt, photos, species, stats, epoch, step)
        if LIMIT_STEPS and step >= LIMIT_STEPS:
            break


if __name__ == "__main__":
    main()
