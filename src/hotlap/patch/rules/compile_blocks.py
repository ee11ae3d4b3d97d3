"""`block.compile()` of every repeated block, behind the line that makes their list."""

from collections.abc import Mapping

import libcst as cst

from hotlap.source.places import Places
from hotlap.source.scopes import dotted

from ..edits import Replacement, after, fresh, replace
from ._asked_gradients import differentiated_again
from ._base import CannotWrite, Edit, Outcome, Rule, Settings, already, calls_named, lines_of, touched
from ._blocks import Blocks, block_lists
from ._loss import with_loss
from .compile import compiled_by_source

COPIED = "DataParallel copies the modules, and copies would run the compiled originals"


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses where the source compiles the model itself, and lists of layers that are not of the user's classes."""
    found = block_lists(places)
    if isinstance(found, CannotWrite):
        return found
    own = compiled_by_source(places, places.root_calls)
    if own:
        return CannotWrite("the source compiles the model itself", lines_of(own))
    copied = tuple(source.place(call) for source, call in calls_named(places, "DataParallel"))
    if copied:
        return CannotWrite(COPIED, copied)
    again = differentiated_again(places)
    if again is not None:
        return again
    argument = "dynamic=True" if settings["shapes"] == "dynamic" else ""
    done = [blocks for blocks in found if _compiled(places, blocks)]
    if done:
        lines = tuple(blocks.place for blocks in done)
        if len(done) == len(found):
            return already(places, lines)
        return CannotWrite("the source compiles some of the blocks itself", lines)
    return _write(places, found, argument)


def _write(places: Places, found: list[Blocks], argument: str) -> Edit:
    project, changes = places.project, dict[object, dict[cst.CSTNode, Replacement]]()
    for blocks in found:
        name = fresh(blocks.source, "block") if "block" in blocks.owner.parameters() else "block"
        text = f"for {name} in {blocks.name}:\n    {name}.compile({argument})\n"
        changes.setdefault(blocks.source, {})[blocks.statement] = after(blocks.source, text)
    for source in {blocks.source for blocks in found}:
        project = project.with_sources(replace(source, changes[source]))
    changed = frozenset().union(*(touched(b.source, places.names.scope(b.source, b.statement)) for b in found))
    return with_loss(places, Edit(project, tuple(b.place for b in found), changed))


def _compiled(places: Places, blocks: Blocks) -> bool:
    """Whether the class compiles what a loop over its list takes from it."""
    for source, call in calls_named(places, "compile"):
        loop = source.around(call, cst.For)
        if source is not blocks.source or loop is None or not isinstance(call.func, cst.Attribute):
            continue
        if dotted(loop.iter) == blocks.name and dotted(call.func.value) == dotted(loop.target):
            return True
    return False


RULE = Rule("compile-blocks", edit, order=20)
