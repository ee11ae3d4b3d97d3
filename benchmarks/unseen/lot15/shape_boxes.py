"""Single-stage detector for bright rectangles on noise: anchors, target assignment, two losses."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F

IMAGE, STRIDE, BATCH = 64, 8, 32


def scene(count):
    images = torch.randn(count, 1, IMAGE, IMAGE) * 0.3
    boxes = []
    for k in range(count):
        n = int(torch.randint(2, 7, ()))
        wh = torch.randint(10, 28, (n, 2))
        xy = (torch.rand(n, 2) * (IMAGE - wh)).long()
        for (x, y), (w, h) in zip(xy.tolist(), wh.tolist()):
            images[k, 0, y : y + h, x : x + w] += 1.0
        boxes.append(torch.cat([xy, xy + wh], 1).float())
    return images, boxes


def make_anchors():
    centre = (torch.arange(IMAGE // STRIDE) + 0.5) * STRIDE
    cy, cx = torch.meshgrid(centre, centre, indexing="ij")
    mid = torch.stack([cx, cy], -1).reshape(-1, 1, 2)
    half = torch.tensor([[6.0, 6.0], [9.0, 9.0], [13.0, 13.0]])
    return torch.cat([mid - half, mid + half], -1).reshape(-1, 4)


def iou(a, b):
    w = min(a[2], b[2]) - max(a[0], b[0])
    h = min(a[3], b[3]) - max(a[1], b[1])
    inter = max(w, 0.0) * max(h, 0.0)
    area = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return inter / (area - inter)


def assign(anchors, boxes):
    """Best box of every anchor and its overlap."""
    best, overlap = [], []
    for anchor in anchors.tolist():
        scores = [iou(anchor, box) for box in boxes.tolist()]
        top = max(range(len(scores)), key=scores.__getitem__)
        best.append(top)
        overlap.append(scores[top])
    return torch.tensor(best), torch.tensor(overlap)


def encode(anchors, boxes):
    size = anchors[:, 2:] - anchors[:, :2]
    shift = ((boxes[:, :2] + boxes[:, 2:]) - (anchors[:, :2] + anchors[:, 2:])) / 2 / size
    return torch.cat([shift, ((boxes[:, 2:] - boxes[:, :2]) / size).log()], 1)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        plan, layers = [(1, 16), (16, 32), (32, 48)], []
        for a, b in plan:
            layers += [nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv2d(48, 3 * 5, 3, 1, 1)

    def forward(self, x):
        return self.head(self.body(x)).permute(0, 2, 3, 1).reshape(len(x), -1, 5)


def detection_loss(out, anchors, boxes):
    objects, place = [], []
    for pred, truth in zip(out, boxes):
        best, overlap = assign(anchors, truth)
        hit = overlap > 0.4
        objects.append(F.binary_cross_entropy_with_logits(pred[:, 0], hit.float()))
        if hit.any():
            place.append(F.smooth_l1_loss(pred[hit, 1:], encode(anchors[hit], truth[best[hit]])))
    return torch.stack(objects).mean() + torch.stack(place).mean()


torch.manual_seed(5)
images, boxes = scene(800)
anchors, net = make_anchors(), Detector()
opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
mark = time.perf_counter()
for it in range(1, 701):
    pick = torch.randint(len(images), (BATCH,))
    loss = detection_loss(net(images[pick]), anchors, [boxes[i] for i in pick.tolist()])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 50 == 0:
        now = time.perf_counter()
        print(f"iter {it}: loss {loss.item():.4f} ({(now - mark) * 20:.1f} ms/iter)", flush=True)
        mark = now
