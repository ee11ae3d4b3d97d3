"""`torch.autograd.set_multithreading_enabled(False)` after the imports: for the thread that runs the file."""

from collections.abc import Mapping

from ..places import Places
from ._base import CannotWrite, Outcome, Rule, Settings, already, at_the_top, calls_named, constant

NAME = "set_multithreading_enabled"
TEXT = f"torch.autograd.{NAME}(False)"


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses where the source sets it itself."""
    calls = calls_named(places, NAME)
    lines = tuple(source.place(call) for source, call in calls)
    top = [call for source, call in calls if source.scope(call) is source.tree]
    if len(calls) == len(top) == 1 and top[0].args and constant(top[0].args[0].value) is False:
        return already(places, lines)
    if calls:
        return CannotWrite("the source chooses the thread of its backward itself", lines)
    return at_the_top(places, TEXT)


RULE = Rule("single-thread-backward", edit)
