"""The host's allocator, in the environment of the command."""

from hotlap.levers.host.host_allocator import LEVER

from ._base import at_launch

RULE = at_launch(LEVER)
