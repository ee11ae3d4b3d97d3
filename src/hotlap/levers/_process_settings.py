"""Not a lever: settings of the process that are a lever's as long as it is in."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotlap.agent.seams import Seams


def hold(seams: "Seams", get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> None:
    """Have a setting at a value while the lever is in. Taken out it is what it was, unless the script has set another
    one meanwhile."""
    before: list[Any] = []

    def on() -> None:
        before[:] = [get()]
        put(value)

    def off() -> None:
        if before and get() == value:
            put(before[0])

    seams.switch(on, off)


def hold_attribute(seams: "Seams", owner: Any, name: str, value: Any) -> None:
    """The same of an attribute, such as a switch of torch's configuration."""
    hold(seams, lambda: getattr(owner, name), lambda wanted: setattr(owner, name, wanted), value)
