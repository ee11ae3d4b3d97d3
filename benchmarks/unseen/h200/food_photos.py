"""Train a residual network on food photos."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

GPU = torch.cuda.is_available()
SIZE = 192 if GPU else 32
DISHES = 101
BATCH = 160 if GPU else 4
PHOTOS = 2000 if GPU else 40
EPOCHS = 4
STEPS_PER_EPOCH = 90
WORKERS = 12 if GPU else 0
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


class Photos(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(7)
        self.photos = torch.randint(0, 256, (PHOTOS, SIZE, SIZE, 3), generator=g, dtype=torch.uint8)
        self.labels = torch.randint(0, DISHES, (PHOTOS,), generator=g).tolist()

    def __len__(self):
        return BATCH * STEPS_PER_EPOCH

    def __getitem__(self, i):
        return self.photos[i % PHOTOS], self.labels[i % PHOTOS]


class Bottleneck(nn.Module):
    def __init__(self, c_in, mid, stride=1):
        super().__init__()
        c_out = 4 * mid
        self.conv1 = nn.Conv2d(c_in, mid, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(mid)
        self.conv2 = nn.Conv2d(mid, mid, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(mid)
        self.conv3 = nn.Conv2d(mid, c_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(c_out)
        self.short = nn.Identity()
        if stride != 1 or c_in != c_out:
            self.short = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        return F.relu(self.bn3(self.conv3(y)) + self.short(x), inplace=True)


def resnet50():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    c = 64
    for mid, repeats, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for r in range(repeats):
            layers.append(Bottleneck(c, mid, stride if r == 0 else 1))
            c = 4 * mid
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, DISHES))


def prepare(photos):
    x = photos.permute(0, 3, 1, 2).to(torch.bfloat16)
    return x.div_(127.5).sub_(1)


def main():
    torch.manual_seed(0)
    device = "cuda" if GPU else "cpu"
    torch.backends.cudnn.benchmark = True
    loader = DataLoader(
        Photos(),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        pin_memory=GPU,
        persistent_workers=WORKERS > 0,
    )
    model = resnet50().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-5, nesterov=True, fused=GPU)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    step = 0
    for epoch in range(EPOCHS):
        for photos, labels in loader:
            photos = photos.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = criterion(model(prepare(photos)), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 60 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            if LIMIT and step >= LIMIT:
                return


if __name__ == "__main__":
    main()
