"""`torch.backends.cuda.enable_cudnn_sdp(False)`, and further kernels' switches, after the imports."""

from collections.abc import Mapping

from hotlap.levers.sdpa_backend import lines
from hotlap.source.places import Places

from ._base import CannotWrite, Outcome, Rule, Settings, at_the_top, calls_named

OWN = ("enable_cudnn_sdp", "enable_flash_sdp", "enable_mem_efficient_sdp", "enable_math_sdp", "sdpa_kernel")


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses where the source chooses among the kernels of attention itself."""
    own = tuple(source.place(call) for source, call in calls_named(places, *OWN))
    if own:
        return CannotWrite("the source chooses the kernels of attention itself", own)
    return at_the_top(places, "\n".join(lines(settings)))


RULE = Rule("sdpa-backend", edit)
