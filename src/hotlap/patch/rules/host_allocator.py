"""The host's allocator, in the environment of the command."""

from collections.abc import Mapping

from hotlap.levers.host_allocator import LEVER
from hotlap.source.places import Places

from ._base import CannotWrite, Outcome, Rule, Settings
from ._launch import at_launch


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses a library that is not there."""
    variables = LEVER.environment(dict(settings))
    if not variables:
        return CannotWrite(f"this machine has no {settings['allocator']}")
    return at_launch(places, variables)


RULE = Rule("host-allocator", edit)
