"""unet.py tuned by hand: the same model, data, order and flags, the same loss up to rounding.

    python unet_hand.py

What was changed: channels_last, bf16 autocast, the model, its loss and the score compiled as one function,
cudnn.benchmark, fused Adam, loader workers with pinned memory, bytes instead of floats and 64-bit integers on
the way to the device, batches copied one step ahead, and no .item() but where a loss is printed.
"""

import os
import time

import torch
from prefetch import loader_options, prefetch
from torch.utils.data import DataLoader
from unet import ShapesDataset, UNet, parse_args, segmentation_loss


class ByteShapesDataset(ShapesDataset):
    def __getitem__(self, i):
        return self.read(i)


def main():
    args = parse_args(log_every=50)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    device = torch.device(args.device)
    cuda = device.type == "cuda"
    options = loader_options(device, workers=max(1, min(4, len(os.sched_getaffinity(0)) - 2)))
    dataset = ByteShapesDataset(args.size)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True, **options)
    model = UNet(args.width).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters on {device}")

    def loss_of(images, masks):
        images = (images.float() / 255).contiguous(memory_format=torch.channels_last)
        masks = masks.long()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
            logits = model(images)
        logits = logits.float()
        right = (logits.detach().argmax(dim=1) == masks).float().mean()
        return segmentation_loss(logits, masks), right

    if cuda:
        loss_of = torch.compile(loss_of, dynamic=False)

    step, start = 0, time.perf_counter()
    total, hits = torch.zeros((), device=device), torch.zeros((), device=device)
    while step < args.steps:
        for images, masks in prefetch(loader, device):
            optimizer.zero_grad(set_to_none=True)
            loss, right = loss_of(images, masks)
            loss.backward()
            optimizer.step()
            total += loss.detach()
            hits += right
            step += 1
            if step % args.log_every == 0:
                last, mean, share = loss.item(), total.item() / step, hits.item() / step
                ms = (time.perf_counter() - start) * 1000 / args.log_every
                print(f"step {step} loss {last:.4f} mean {mean:.4f} pixels right {share:.4f} {ms:.2f} ms/step")
                start = time.perf_counter()
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
