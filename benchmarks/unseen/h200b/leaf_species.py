"""Classify leaves into species; keep a confusion matrix of the training batches."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18

device = "cuda" if torch.cuda.is_available() else "cpu"
GPU = device == "cuda"
SPECIES = 32
IMAGES = 24576 if GPU else 64
SIDE = 64 if GPU else 32
BATCH = 384 if GPU else 16
EPOCHS = 6 if GPU else 1
WORKERS = 8 if GPU else 1


class Leaves(Dataset):
    def __init__(self):
        gen = torch.Generator().manual_seed(11)
        self.labels = torch.randint(0, SPECIES, (IMAGES,), generator=gen)
        self.images = torch.randint(0, 256, (IMAGES, 3, SIDE, SIDE), generator=gen, dtype=torch.uint8)

    def __len__(self):
        return IMAGES

    def __getitems__(self, indices):
        index = torch.as_tensor(indices)
        return self.images[index], self.labels[index]


def keep(batch):
    return batch


def build_model():
    model = resnet18(num_classes=SPECIES)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    return model.to(device, memory_format=torch.channels_last)


def prepare(images):
    images = images.to(device, non_blocking=True)
    images = images.float().div_(255).sub_(0.5)
    return images.contiguous(memory_format=torch.channels_last)


def update_confusion(confusion, labels, preds):
    for t, p in zip(labels.view(-1), preds.view(-1)):
        confusion[t.long(), p.long()] += 1


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    loader = DataLoader(
        Leaves(),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        pin_memory=GPU,
        persistent_workers=True,
        collate_fn=keep,
    )
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    step = 0
    for epoch in range(EPOCHS):
        confusion = torch.zeros(SPECIES, SPECIES)
        for images, labels in loader:
            images = prepare(images)
            labels = labels.to(device, non_blocking=True)
            with torch.autocast(device, dtype=torch.bfloat16):
                logits = model(images)
                loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            update_confusion(confusion, labels, logits.argmax(dim=1))
            if step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
            step += 1
        recall = confusion.diag() / confusion.sum(dim=1).clamp(min=1)
        print(f"epoch {epoch} mean recall {recall.mean().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
