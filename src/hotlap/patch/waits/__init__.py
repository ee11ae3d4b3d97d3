"""How a line at which the host waits for the device is written otherwise: one module a rewrite.

`change(wait)` of each gives the change, or None where the line has another form, and raises `CannotTell` where the line
has its form and the source leaves a doubt. The first that knows the form decides.
"""

from collections.abc import Callable
from typing import Final

from ._base import Change, Wait
from .held_value import change as held_value
from .kept_values import change as kept_values
from .reports import change as reports
from .running_total import change as running_total
from .whole_device import change as whole_device

REWRITES: Final[tuple[Callable[[Wait], Change | None], ...]] = (
    whole_device,
    running_total,
    held_value,
    kept_values,
    reports,
)
