import os

os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = device == "cuda"
SIDE = 128 if ON_GPU else 32
PHOTOS = 4096 if ON_GPU else 64
BATCH = 64 if ON_GPU else 4
EPOCHS = 5
WIDTHS = (48, 96, 192)
LIMIT = int(os.environ.get("LIMIT_STEPS", "0"))


def synth_photos():
    torch.manual_seed(4)
    coarse = torch.rand(PHOTOS, 1, SIDE // 8, SIDE // 8, device=device)
    photos = torch.empty(PHOTOS, 1, SIDE, SIDE, dtype=torch.uint8, device=device)
    for part, out in zip(coarse.split(256), photos.split(256)):
        fine = F.interpolate(part, size=(SIDE, SIDE), mode="bilinear")
        out.copy_((fine * 220 + 20 * torch.rand_like(fine)).to(torch.uint8))
    return photos


def unit(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.SiLU(inplace=True))


class WeldCoder(nn.Module):
    def __init__(self):
        super().__init__()
        down, up = [], []
        previous = 1
        for w in WIDTHS:
            down += [unit(previous, w, 2), unit(w, w)]
            previous = w
        for w in reversed(WIDTHS):
            up += [nn.Upsample(scale_factor=2, mode="nearest"), unit(previous, w)]
            previous = w
        self.down = nn.Sequential(*down)
        self.up = nn.Sequential(*up)
        self.out = nn.Conv2d(previous, 1, 3, 1, 1)

    def forward(self, x):
        return self.out(self.up(self.down(x)))


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    photos = synth_photos()
    model = WeldCoder().to(device, memory_format=torch.channels_last)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=ON_GPU)
    step = 0
    for epoch in range(EPOCHS):
        order = torch.randperm(PHOTOS, device=device)
        for rows in order.split(BATCH):
            x = photos[rows].float().div_(255)
            x = x.contiguous(memory_format=torch.channels_last)
            noisy = x + 0.1 * torch.randn_like(x)
            with torch.autocast(device, torch.bfloat16):
                restored = model(noisy)
            loss = F.l1_loss(restored.float(), x)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if step % 64 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            if step == LIMIT:
                return


if __name__ == "__main__":
    main()
