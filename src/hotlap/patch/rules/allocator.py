"""Settings of torch's allocator, in the environment of the command."""

from hotlap.levers.memory.allocator import VARIABLES
from hotlap.source.places import Places

from ._base import Edit, Rule, Settings, at_launch


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses where the source sets them."""
    return at_launch(places, VARIABLES)


RULE = Rule(edit)
