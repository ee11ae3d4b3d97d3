"""Leaf species recognition with a small inverted-residual network."""

import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

GPU = torch.cuda.is_available()
SIZE = 96 if GPU else 32
SPECIES = 120
BATCH = 96 if GPU else 4
IMAGES = 2000 if GPU else 40
EPOCHS = 8
STEPS_PER_EPOCH = 90
WORKERS = 8 if GPU else 0
# expansion, channels, repeats, stride
STAGES = [(1, 16, 1, 1), (4, 24, 3, 2), (4, 40, 4, 2), (4, 80, 5, 2), (4, 112, 5, 1), (4, 160, 5, 2)]
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


class Leaves(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(3)
        self.images = torch.randint(0, 256, (IMAGES, 3, SIZE, SIZE), generator=g, dtype=torch.uint8)
        self.labels = torch.randint(0, SPECIES, (IMAGES,), generator=g)

    def __len__(self):
        return BATCH * STEPS_PER_EPOCH

    def __getitem__(self, i):
        image = self.images[i % IMAGES]
        return (image.flip(-1) if i % 2 else image), self.labels[i % IMAGES]


def conv_bn(c_in, c_out, kernel, stride=1, groups=1, act=True):
    layers = [nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(c_out)]
    return nn.Sequential(*layers, nn.Hardswish()) if act else nn.Sequential(*layers)


class InvertedResidual(nn.Module):
    def __init__(self, c_in, c_out, expand, stride):
        super().__init__()
        mid = c_in * expand
        self.skip = stride == 1 and c_in == c_out
        self.body = nn.Sequential(
            conv_bn(c_in, mid, 1), conv_bn(mid, mid, 3, stride, mid), conv_bn(mid, c_out, 1, act=False)
        )

    def forward(self, x):
        return x + self.body(x) if self.skip else self.body(x)


def leaf_net():
    layers, c = [conv_bn(3, 16, 3, 2)], 16
    for expand, c_out, repeats, stride in STAGES:
        for r in range(repeats):
            layers.append(InvertedResidual(c, c_out, expand, stride if r == 0 else 1))
            c = c_out
    layers += [conv_bn(c, 640, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(640, SPECIES)]
    return nn.Sequential(*layers)


def watch(model):
    def check(name):
        def hook(module, inputs, output):
            if not torch.isfinite(output).all():
                raise FloatingPointError(f"bad activation in {name}")

        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(check(name))


def main():
    torch.manual_seed(0)
    device = "cuda" if GPU else "cpu"
    torch.backends.cudnn.benchmark = True
    loader = DataLoader(
        Leaves(),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        pin_memory=GPU,
        persistent_workers=WORKERS > 0,
    )
    model = leaf_net().to(device, memory_format=torch.channels_last)
    watch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, fused=GPU)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    step = 0
    for epoch in range(EPOCHS):
        for images, labels in loader:
            images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
            labels = labels.to(device, non_blocking=True)
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = criterion(model(images.float().div_(255).sub_(0.5)), labels)
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
