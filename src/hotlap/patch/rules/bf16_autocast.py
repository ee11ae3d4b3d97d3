"""`with torch.autocast(...)` around the model's call in the training loop; what it returns is float32 again."""

from hotlap.source.places import Places

from ._autocast import autocast
from ._base import Edit, Rule, Settings


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses outputs that are not proven to be tensors, and statements that can't be split."""
    return autocast(places, "bfloat16")


RULE = Rule(edit, order=10)
