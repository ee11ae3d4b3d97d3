"""Single-stage grid detector for coloured particles in microscope frames."""

import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    image_size: int = 64
    grid: int = 8
    frames: int = 1024
    batch_size: int = 32
    workers: int = 2
    epochs: int = 3
    lr: float = 0.02


class Particles(Dataset):
    def __init__(self, cfg):
        self.cfg = cfg
        g = torch.Generator().manual_seed(0)
        self.frames = torch.randint(
            0, 40, (cfg.frames, 3, cfg.image_size, cfg.image_size), generator=g, dtype=torch.uint8
        )
        self.count = torch.randint(2, 9, (cfg.frames,), generator=g).tolist()
        self.xy = torch.rand(cfg.frames, 8, 2, generator=g) * (cfg.image_size - 10)
        self.wh = 4 + 6 * torch.rand(cfg.frames, 8, 2, generator=g)
        self.kind = torch.randint(0, 3, (cfg.frames, 8), generator=g)
        for f in range(cfg.frames):
            for k in range(self.count[f]):
                (x, y), (w, h) = self.xy[f, k].int().tolist(), self.wh[f, k].int().tolist()
                self.frames[f, self.kind[f, k], y : y + h, x : x + w] = 220

    def __len__(self):
        return self.cfg.frames

    def __getitem__(self, i):
        n = self.count[i]
        xy, wh = self.xy[i, :n], self.wh[i, :n]
        target = {
            "boxes": torch.cat([xy, xy + wh], dim=1),
            "labels": self.kind[i, :n].clone(),
            "area": wh.prod(dim=1),
            "iscrowd": torch.zeros(n, dtype=torch.int64),
            "image_id": torch.tensor([i]),
        }
        return self.frames[i].float().div(255), target


def collate_fn(batch):
    return tuple(zip(*batch))


def conv(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


def build_model():
    return nn.Sequential(
        conv(3, 16, 2), conv(16, 24, 2), conv(24, 48), conv(48, 64, 2), conv(64, 64), nn.Conv2d(64, 1 + 4 + 3, 1)
    )


def detection_loss(pred, boxes, labels, owner, cfg):
    cell = cfg.image_size / cfg.grid
    center = (boxes[:, :2] + boxes[:, 2:]) / 2
    col, row = (center / cell).long().clamp_(0, cfg.grid - 1).unbind(1)
    objectness = torch.zeros_like(pred[:, 0])
    objectness[owner, row, col] = 1.0
    hit = pred[owner, :, row, col]
    loss_obj = F.binary_cross_entropy_with_logits(pred[:, 0], objectness)
    loss_box = F.smooth_l1_loss(hit[:, 1:5], boxes / cfg.image_size)
    return loss_obj + loss_box + F.cross_entropy(hit[:, 5:], labels)


def main():
    cfg = Config()
    torch.manual_seed(0)
    loader = DataLoader(
        Particles(cfg),
        batch_size=cfg.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=cfg.workers,
        collate_fn=collate_fn,
        persistent_workers=True,
    )
    model = build_model()
    opt = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=0.9, weight_decay=1e-4)

    step, begin = 0, time.perf_counter()
    for epoch in range(cfg.epochs):
        for images, targets in loader:
            x = torch.stack(images)
            sizes = torch.tensor([len(t["labels"]) for t in targets])
            owner = torch.arange(len(targets)).repeat_interleave(sizes)
            boxes = torch.cat([t["boxes"] for t in targets])
            labels = torch.cat([t["labels"] for t in targets])

            loss = detection_loss(model(x), boxes, labels, owner, cfg)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if step % 30 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")
    print(f"{(time.perf_counter() - begin) * 1000 / step:.1f} ms/step")


if __name__ == "__main__":
    main()
