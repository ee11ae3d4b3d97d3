"""channels_last memory format for 2-d convolutional models.

Weights keep the format for good, as after `model.to(memory_format=torch.channels_last)`: also in models that are saved
whole, and in what the script does with them after the loop, which trials do not reach: `weight.view(rows, -1)` of a
convolution raises there, `reshape` does not.
"""

from typing import TYPE_CHECKING, Any

from . import _same_random, _transforms
from ._base import Applies, Context, Settings

if TYPE_CHECKING:
    from hotlap.agent.seams import Forward, Seams

ORDER = 5
"""Inside the compiled region."""


class ChannelsLast(_same_random.DrawsOtherwise):
    name = "channels-last"
    meaning = "images and convolution weights in NHWC order, which the fast kernels take without transposing"
    risk = "numeric"
    tolerance = 0.005
    errors = ("view size is not compatible with input tensor's size and stride", "Cannot view a tensor with shape")
    """Of `view` over an image's dimensions, which NHWC order does not allow; as it runs, and as it is compiled."""

    def applies(self, context: Context) -> Applies:
        roots = context.facts.roots
        if not any(root.conv_input_4d for root in roots):
            return Applies(False, "the model has no 2-d convolutions")
        if all(root.channels_last for root in roots if root.conv_input_4d):
            return Applies(False, "the model is in channels_last already")
        if any(root.wrapper == "DistributedDataParallel" for root in roots):
            return Applies(False, "under DDP the gradient buckets already fix the strides; set it before DDP(model)")
        return Applies(True, "2-d convolutions run in NCHW order")

    def share(self, context: Context) -> float:
        return 0.3 * context.share_of("forward", "backward")

    def install(self, seams: "Seams", settings: Settings) -> None:
        if settings.get(_same_random.SETTING):
            _same_random.draw_as_without(self.name)
        seams.on_root(_weights)
        seams.wrap_forward(_inputs, ORDER)

    def source(self, settings: Settings) -> str:
        return (
            "model = model.to(memory_format=torch.channels_last)\n"
            "images = images.to(memory_format=torch.channels_last)  # in the loop"
        )


def _look(module: Any) -> None:
    """Raises NothingToDo where no weights are images."""
    import torch
    from torch.nn.parameter import is_lazy

    from hotlap.agent.seams import NothingToDo

    layers = any(isinstance(one, (torch.nn.Conv2d, torch.nn.ConvTranspose2d)) for one in module.modules())
    if not layers and not any(not is_lazy(weight) and weight.dim() == 4 for weight in module.parameters()):
        raise NothingToDo(f"{type(module).__name__} has no 2-d convolutions")


def _weights(module: Any) -> None:
    import torch

    _look(module)
    module.to(memory_format=torch.channels_last)
    for conv in module.modules():
        if isinstance(conv, torch.nn.ConvTranspose2d) and conv.stride == (1, 1) and conv.padding == (0, 0):
            # A GAN's first: its input is 1x1, which is in either order, so cuDNN gives the gradient in the other one
            # than Inductor expects, and a compiled backward fails (torch 2.11, H200).
            conv.to(memory_format=torch.contiguous_format)


def _inputs(module: Any, forward: "Forward") -> "Forward":
    import torch

    _look(module)

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
