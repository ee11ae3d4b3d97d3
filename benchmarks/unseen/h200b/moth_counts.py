"""Count moths of each family in photographs of light traps."""

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.models import resnet34

device = "cuda" if torch.cuda.is_available() else "cpu"
GPU = device == "cuda"
FAMILIES = 20
PHOTOS = 4096 if GPU else 32
SIDE = 160 if GPU else 32
BATCH = 64 if GPU else 8
EPOCHS = 6 if GPU else 2
SAVE_EVERY = 10 if GPU else 2


def make_photos():
    gen = torch.Generator(device=device).manual_seed(9)
    photos = torch.randint(0, 256, (PHOTOS, 3, SIDE, SIDE), generator=gen, device=device, dtype=torch.uint8)
    counts = torch.randint(0, 6, (PHOTOS, FAMILIES), generator=gen, device=device).float()
    return photos.contiguous(memory_format=torch.channels_last), counts


def batches(photos, counts):
    order = torch.randperm(PHOTOS, device=device)
    for rows in order.split(BATCH):
        images = photos[rows].float().div_(255).sub_(0.5)
        yield images.contiguous(memory_format=torch.channels_last), counts[rows]


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = resnet34(num_classes=FAMILIES)

    def forward(self, images):
        return F.softplus(self.backbone(images).float())


def save_state(path, model, optimizer, step):
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    torch.save(state, path + ".part")
    os.replace(path + ".part", path)


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    photos, counts = make_photos()
    model = Counter().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    step = 0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "last.pt")
        for epoch in range(EPOCHS):
            for images, wanted in batches(photos, counts):
                with torch.autocast(device, dtype=torch.bfloat16):
                    rate = model(images)
                loss = F.poisson_nll_loss(rate, wanted, log_input=False)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                step += 1
                if step % SAVE_EVERY == 0:
                    save_state(path, model, optimizer, step)
                if step % 50 == 0:
                    print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            print(f"epoch {epoch} done", flush=True)


if __name__ == "__main__":
    main()
