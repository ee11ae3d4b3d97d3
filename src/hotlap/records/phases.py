"""The phases of a step, defined once. Standard library only: the agent imports this file.

A step is one turn of the training loop. On the host its wall time is cut, without gaps or overlaps, into:

data       inside `next()` of a `torch.utils.data.DataLoader` (waiting for a worker counts: waiting is charged to
           the phase that waited). A loop without a DataLoader has no data phase: what prepares its batches is `other`.
h2d        inside `Tensor.to`/`Tensor.cuda` that moves a tensor from the host to the device, outside a forward
forward    inside the call of an outermost module (with gradients, where the loop trains), and from the end of the
           last such call to the start of the backward, so the loss is in it. What lies between two such calls, or
           between one and a data or optimizer phase, is `other`. Where no module's forward was seen, from the end of
           the last data, h2d or optimizer phase to the start of the backward.
backward   inside `torch.autograd.backward` or `torch.autograd.grad`
optimizer  inside `Optimizer.step` (a closure's forward and backward are charged to those phases)
other      the rest: Python, logging, `zero_grad`, metrics, evaluation, forwards without gradients while training

On CUDA the same cuts are also marked on the device by events in the current stream. The device time between two
marks is charged to the phase that issued the work between them, and so is the time the device waited for the host
there. Both rows sum to the step: `phases` to `wall_ms`, `gpu_phases` to `gpu_ms`.
"""

from typing import Final

PHASES: Final = ("data", "h2d", "forward", "backward", "optimizer", "other")
DATA, H2D, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(6)
