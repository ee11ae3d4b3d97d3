"""The host's allocator, in the environment of the command."""

from hotlap.levers.host.host_allocator import LEVER
from hotlap.source.places import Places

from ._base import CannotWrite, Edit, Rule, Settings, at_launch


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses a library that is not there."""
    variables = LEVER.environment(dict(settings))
    if not variables:
        raise CannotWrite(f"this machine has no {settings['allocator']}")
    return at_launch(places, variables)


RULE = Rule(edit)
