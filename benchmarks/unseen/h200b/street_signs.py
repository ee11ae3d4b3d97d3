"""Classify photographs of street signs with a ResNet-50."""

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet50

device = "cuda" if torch.cuda.is_available() else "cpu"
GPU = device == "cuda"
SIGNS = 64
SOURCES = 1024 if GPU else 16
PER_EPOCH = 15360 if GPU else 16
STORED = 256 if GPU else 48
CROP = 224 if GPU else 32
BATCH = 128 if GPU else 8
EPOCHS = 3 if GPU else 1
WORKERS = 10 if GPU else 1


class Signs(Dataset):
    def __init__(self):
        rng = np.random.default_rng(13)
        self.images = rng.integers(0, 256, (SOURCES, STORED, STORED, 3), dtype=np.uint8)
        self.labels = rng.integers(0, SIGNS, SOURCES)

    def __len__(self):
        return PER_EPOCH

    def __getitem__(self, index):
        index = index % SOURCES
        top, left = torch.randint(0, STORED - CROP + 1, (2,)).tolist()
        crop = self.images[index, top : top + CROP, left : left + CROP]
        return torch.from_numpy(crop), int(self.labels[index])


class Normalise(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([124.0, 116.0, 104.0]).view(1, 3, 1, 1))
        self.register_buffer("scale", 1 / torch.tensor([58.0, 57.0, 57.0]).view(1, 3, 1, 1))

    def forward(self, images):
        images = images.permute(0, 3, 1, 2)
        return (images.float() - self.mean) * self.scale


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    loader = DataLoader(
        Signs(),
        batch_size=BATCH,
        shuffle=True,
        num_workers=WORKERS,
        pin_memory=GPU,
        drop_last=True,
        persistent_workers=True,
        prefetch_factor=4,
    )
    normalise = Normalise().to(device)
    model = resnet50(num_classes=SIGNS).to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-5, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS)
    step = 0
    for epoch in range(EPOCHS):
        for images, labels in loader:
            images = normalise(images.to(device, non_blocking=True))
            labels = labels.to(device, non_blocking=True)
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = criterion(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if step % 40 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            step += 1
        scheduler.step()


if __name__ == "__main__":
    main()
