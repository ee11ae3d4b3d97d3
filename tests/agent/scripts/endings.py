"""Loops that end, or do not want to, in every way. The fourth argument says how long a step takes at least: ms, or what
it takes first, up to which step, and what then."""

import os
import signal
import sys
import time

import torch
from common import batches, end, net, said

kind = sys.argv[1]
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Broken(torch.optim.SGD):
    def step(self, closure=None):
        if self.param_groups[0]["lr"] == 0:
            raise RuntimeError("no step today")
        return super().step(closure)


def turn(x, y):
    said(loss := (model(x) - y).square().mean())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


if kind == "broken":
    optimizer = Broken(model.parameters(), lr=0.1)
last = int(sys.argv[3]) if len(sys.argv) > 3 else 9
*first, lasts = [int(ms) for ms in sys.argv[4].split(",")] if len(sys.argv) > 4 else [0]
for at, (x, y) in enumerate(batches(10**6 if kind in {"catch", "bare"} else last + 3)):
    if kind == "exit" and at == last:
        sys.exit(3)
    if kind == "raise" and at == 9:
        raise ValueError("the user's own error")
    if kind == "broken":
        optimizer.param_groups[0]["lr"] = 0.0 if at in {3, 4} else 0.1
    if kind == "kill" and at == last:
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    time.sleep((first[0] if first and at < first[1] else lasts) / 1000)
    try:
        turn(x, y)
    except Exception as error:
        print("caught", error)
        optimizer.zero_grad()
    except:  # noqa: E722 - scripts do this
        if kind != "bare":
            raise
if kind == "again" and hasattr(sys, "_hotlap_agent"):  # a second Ctrl-C, while hotlap finishes
    sys._hotlap_agent.profile.finish = lambda: signal.raise_signal(signal.SIGINT)
end(model)
