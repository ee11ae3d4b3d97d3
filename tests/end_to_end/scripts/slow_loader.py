"""A loop whose samples take time to make (a sleep, so that worker processes win on any machine), in epochs longer than a trial."""

import sys
import time

import torch
from torch import nn


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        if "hang-in-workers" in sys.argv and torch.utils.data.get_worker_info() is not None:
            time.sleep(1000)
        if "crash-in-workers" in sys.argv and torch.utils.data.get_worker_info() is not None:
            raise ValueError("planted")
        time.sleep(0.01)
        return torch.full((16,), float(index)), index % 4


def main():
    torch.manual_seed(0)
    if "leave-child" in sys.argv:
        import subprocess

        subprocess.Popen(["sleep", "987"])
        subprocess.Popen(["sleep", "987"], start_new_session=True)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(100):
        for x, y in torch.utils.data.DataLoader(Slow(), batch_size=4, shuffle=True):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, repr(loss.item()), flush=True)


if __name__ == "__main__":
    main()
