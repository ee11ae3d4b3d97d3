import json
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

JOINTS = 17


def write_annotations(path, n=400):
    rng = np.random.default_rng(11)
    items = []
    for i in range(n):
        items.append(
            {
                "id": i,
                "file_name": f"{i:08d}.jpg",
                "bbox": rng.uniform(0, 1, 4).round(4).tolist(),
                "keypoints": rng.uniform(0, 1, JOINTS * 2).round(4).tolist(),
            }
        )
    with open(path, "w") as f:
        json.dump({"info": {"version": 1}, "annotations": items}, f)


class KeypointDataset(Dataset):
    def __init__(self, ann_file, n):
        self.ann_file = ann_file
        self.frames = torch.randn(n, 3, 32, 32)

    def load_annotation(self, idx):
        with open(self.ann_file) as f:
            coco = json.load(f)
        return coco["annotations"][idx]

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, idx):
        ann = self.load_annotation(idx)
        target = torch.tensor(ann["keypoints"])
        return self.frames[idx], target


class PoseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.body = nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(64 * 64, JOINTS * 2)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).flatten(1))


def run(ann_file, epochs=4, n=400, batch_size=20):
    loader = DataLoader(KeypointDataset(ann_file, n), batch_size=batch_size, shuffle=True)
    model = PoseNet()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for epoch in range(epochs):
        running = 0.0
        for frames, target in loader:
            pred = model(frames)
            loss = nn.functional.smooth_l1_loss(pred, target)
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += loss.item()
        print(f"epoch {epoch} loss {running / len(loader):.5f}")


if __name__ == "__main__":
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as d:
        ann = os.path.join(d, "person_keypoints.json")
        write_annotations(ann)
        run(ann)
