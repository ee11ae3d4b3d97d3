"""`torch.backends.cuda.enable_cudnn_sdp(False)` after the imports."""

from collections.abc import Mapping

from ..places import Places
from ._base import CannotWrite, Outcome, Rule, Settings, at_the_top, calls_named

TEXT = "torch.backends.cuda.enable_cudnn_sdp(False)"
OWN = ("enable_cudnn_sdp", "sdpa_kernel")


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses where the source chooses among the kernels of attention itself."""
    own = tuple(source.place(call) for source, call in calls_named(places, *OWN))
    if own:
        return CannotWrite("the source chooses the kernels of attention itself", own)
    return at_the_top(places, TEXT)


RULE = Rule("sdpa-backend", edit)
