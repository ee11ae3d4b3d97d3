"""channels_last memory format for 2-d convolutional models.

Weights keep the format until the lever is taken out, as after `model.to(memory_format=torch.channels_last)`: also in
models that are saved whole, and in what the script does with them after the loop, which trials do not reach:
`weight.view(rows, -1)` of a convolution raises there, `reshape` does not.
"""

import weakref
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from .. import _same_random, _transforms
from .._base import Applies, Around, Context, Settings

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward, Seams
    from hotlap.records.run import Facts


class ChannelsLast(_same_random.DrawsOtherwise):
    """`model.to(memory_format=torch.channels_last)`."""

    name = "channels-last"
    meaning = "images and convolution weights in NHWC order, which fast kernels use without transposing"
    causes = {"arithmetic": 5, "bytes": 4, "layout": 0, "on-cpu": 4}
    risk = "numeric"
    tolerance = 0.005
    switchable = True
    signs = ("invalid gradient", "channels_last", "memory format", "stride", "view size is not compatible")

    def applies(self, context: Context) -> Applies:
        roots = context.facts.roots
        if not any(root.conv_input_4d for root in roots):
            return Applies(False, "the model has no 2-d convolutions")
        if all(root.channels_last for root in roots if root.conv_input_4d):
            return Applies(False, "the model is in channels_last already")
        if any(root.wrapper == "DistributedDataParallel" for root in roots):
            return Applies(False, "under DDP the gradient buckets fix the strides; set it before DDP(model)")
        return Applies(True, "2-d convolutions run in NCHW order")

    def settled(self, facts: "Facts", active: Collection[str]) -> bool:
        return facts.model is not None and (facts.model.channels_last or not facts.model.conv_input_4d)

    def share(self, context: Context) -> float:
        return 0.3 * context.share_of("forward", "backward")

    def install(self, seams: "Seams", settings: Settings) -> None:
        super().install(seams, settings)
        laid = Laid(seams.optimizers)
        seams.on_root(laid.change, laid.undo)
        seams.wrap_forward(_inputs, Around.INPUTS)

    def source(self, settings: Settings) -> str:
        return (
            "model = model.to(memory_format=torch.channels_last)\n"
            "images = images.to(memory_format=torch.channels_last)  # in the loop"
        )


def _convolutions(module: Any) -> list[Any]:
    """Its 2-d convolutions. Raises NothingToDo where no weights are images."""
    import torch
    from torch.nn.parameter import is_lazy

    from hotlap.agent.seams import NothingToDo

    found = [one for one in module.modules() if isinstance(one, (torch.nn.Conv2d, torch.nn.ConvTranspose2d))]
    if not found and not any(not is_lazy(weight) and weight.dim() == 4 for weight in module.parameters()):
        raise NothingToDo(f"{type(module).__name__} has no 2-d convolutions")
    return found


class Laid:
    """Weights whose order in memory was changed. optimizers: those that have made a step."""

    def __init__(self, optimizers: Callable[[], list[Any]]) -> None:
        self.optimizers = optimizers
        self.before: weakref.WeakKeyDictionary[Any, list[tuple[Any, tuple[int, ...]]]] = weakref.WeakKeyDictionary()
        """By model its tensors, with the strides that they had."""

    def change(self, module: Any) -> None:
        owners = _images(module)
        before = {name: tensor.stride() for name, tensor in owners.items()}
        self.before[module] = [(tensor, before[name]) for name, tensor in owners.items()]  # it may fail half-way
        _weights(module)
        changed = {name: tensor for name, tensor in _images(module).items() if tensor.stride() != before[name]}
        self.before[module] = [(tensor, before[name]) for name, tensor in changed.items()]
        self.along(changed.values())

    def undo(self, module: Any) -> None:
        laid = self.before.pop(module, [])
        for tensor, strides in laid:
            _lay(tensor, strides)
        self.along(tensor for tensor, _ in laid)

    def along(self, tensors: Iterable[Any]) -> None:
        """Gradients, and what optimizers hold of weights, lie as these do: kernels that take all at once ask for it."""
        import torch

        states = [optimizer.state for optimizer in self.optimizers()]
        for tensor in tensors:
            others = [value for state in states if tensor in state for value in state[tensor].values()]
            for other in (tensor.grad, *others):
                alike = isinstance(other, torch.Tensor) and other.layout == tensor.layout
                if alike and other.shape == tensor.shape:
                    _lay(other, tensor.stride())


def _images(module: Any) -> dict[str, Any]:
    """Parameters and buffers of four dimensions, by name."""
    from torch.nn.parameter import is_lazy

    every = (*module.named_parameters(), *module.named_buffers())
    return {name: tensor for name, tensor in every if not is_lazy(tensor) and tensor.dim() == 4}


def _lay(tensor: Any, strides: tuple[int, ...]) -> None:
    """The same tensor, with the same values in another order in memory."""
    import torch

    if tensor.stride() != strides:
        with torch.no_grad():
            laid = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
            tensor.data = laid.copy_(tensor)


def _weights(module: Any) -> None:
    import torch

    for conv in _convolutions(module) or [module]:
        # Not what merely has four dimensions: the gain of a norm, (1, 64, 1, 1), whose order is ambiguous, got a
        # gradient of another shape where it was compiled (a diffusion U-Net, torch 2.11, H100).
        conv.to(memory_format=torch.channels_last)
        if isinstance(conv, torch.nn.ConvTranspose2d) and conv.stride == (1, 1) and conv.padding == (0, 0):
            # A GAN's first: its input is 1x1, which is in either order, so cuDNN gives the gradient in the other one
            # than Inductor expects, and a compiled backward fails (torch 2.11, H200).
            conv.to(memory_format=torch.contiguous_format)


def _inputs(module: Any, forward: "Forward") -> "Forward":
    import torch

    _convolutions(module)

    def convert(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dim() == 4 and value.is_floating_point():
            return value.contiguous(memory_format=torch.channels_last)
        return value

    def channels_last(*args: Any, **kwargs: Any) -> Any:
        if _transforms.vmapped():  # which has other dimensions than it shows
            return forward(*args, **kwargs)
        return forward(*[convert(a) for a in args], **{name: convert(value) for name, value in kwargs.items()})

    return channels_last


LEVER = ChannelsLast()
