"""`torch.backends.cuda.enable_cudnn_sdp(False)`, and further kernels' switches, after the imports."""

from hotlap.levers.attention.sdpa_backend import lines
from hotlap.source.places import Places

from ._base import CannotWrite, Edit, Rule, Settings, at_the_top

OWN = ("enable_cudnn_sdp", "enable_flash_sdp", "enable_mem_efficient_sdp", "enable_math_sdp", "sdpa_kernel")


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses where the source chooses among the kernels of attention itself."""
    own = places.calls_named(*OWN)
    if own:
        raise CannotWrite("the source chooses the kernels of attention itself", own)
    return at_the_top(places, "\n".join(lines(settings)))


RULE = Rule("sdpa-backend", edit)
