"""`with torch.autocast(...)` around the model's call in the training loop; what it returns is float32 again."""

from collections.abc import Mapping

from hotlap.source.places import Places

from ._autocast import autocast
from ._base import Outcome, Rule, Settings


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses outputs that are not proven to be tensors, and statements that can't be split."""
    return autocast(places, "bfloat16")


RULE = Rule("bf16-autocast", edit, order=10)
