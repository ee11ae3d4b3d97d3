"""A loop whose loader's workers take their time, at lines of the dataset, of its collate function, or of none of them."""

import os
import sys
import threading
import time
import zlib

import torch
from torch.utils.data import DataLoader, Dataset

NOISE = [zlib.compress(bytes(range(256)) * 2000) for _ in range(4)]


class Packed(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if "raises" in sys.argv and index == 17:
            raise ValueError("planted")
        if "exits" in sys.argv and index == 17:
            time.sleep(0.5)  # batches that it has handed over are taken by then: they can't be, from one that is gone
            os._exit(3)
        if "waits" in sys.argv:
            threading.Event().wait(0.02)
        raw = b"".join(zlib.decompress(NOISE[index % 4]) for _ in range(4))
        return torch.frombuffer(bytearray(raw[:8]), dtype=torch.uint8).float() / 255


def main():
    context = "spawn" if "spawn" in sys.argv else None
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(
        Packed(), batch_size=8, num_workers=2, multiprocessing_context=context, persistent_workers="keep" in sys.argv
    )
    for _ in range(2):
        for x in loader:
            optimizer.zero_grad()
            loss = (model(x + torch.rand_like(x)) - 1).square().mean()
            loss.backward()
            optimizer.step()
            print("loss", repr(loss.item()))


if __name__ == "__main__":
    main()
