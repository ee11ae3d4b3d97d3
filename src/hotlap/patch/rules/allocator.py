"""Settings of torch's allocator, in the environment of the command."""

from hotlap.levers.memory.allocator import LEVER

from ._base import at_launch

RULE = at_launch(LEVER)
