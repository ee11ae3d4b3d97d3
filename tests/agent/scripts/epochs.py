"""Three epochs of a dataset that is decoded, not held. Prints what every batch is."""

import argparse
import hashlib

import torch
from common import end, net, said
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
args = parser.parse_args()


class Decoded(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.arange(4).float().sin() * index, {"y": torch.tensor([float(index)]), "at": index}


model = net()
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
loader = DataLoader(Decoded(), 6, shuffle=True, num_workers=args.workers)
for _ in range(3):
    for x, more in loader:
        raw = x.numpy().tobytes() + more["y"].numpy().tobytes() + more["at"].numpy().tobytes()
        print("batch", hashlib.sha256(raw).hexdigest())
        x.mul_(0.1)
        optimizer.zero_grad()
        said(torch.nn.functional.mse_loss(model(x), more["y"])).backward()
        optimizer.step()
end(model)
