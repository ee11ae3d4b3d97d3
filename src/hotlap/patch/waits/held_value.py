"""`value = loss.item()` that is read in few of the steps only: kept on the device until then."""

import libcst as cst

from hotlap.source.places import CannotTell

from ._base import Change, Wait
from ._reads import kept_as, read_by, stays, value_of
from ._variables import moved, variable


def change(wait: Wait) -> Change | None:
    """Refuses variables that are set anywhere else too, or read in every turn of the loop."""
    statement = wait.statement
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return None
    read, target = statement.value, statement.targets[0].target
    if read_by(read, wait) is None or not isinstance(target, cst.Name):
        return None
    value = variable(wait, target.value)
    other = [binding.statement for binding in value.bindings if binding.statement is not statement]
    if other:
        raise CannotTell(f"`{value.name}` is set on other lines too", wait.lines(other))
    there = moved(wait, value.name, dict.fromkeys(value.reads, value_of(read)))
    stays(read, wait)
    changes = {read: kept_as("detach", "clone"), **there.changes}
    return Change(changes, f"`{value.name}` stays on the device; {there.written}", there.notes)
