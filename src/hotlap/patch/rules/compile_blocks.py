"""`block.compile()` of every repeated block, behind the line that makes their list."""

import libcst as cst

from hotlap.source.places import Places
from hotlap.source.scopes import dotted, is_method_call

from ..edits import Changes, after
from ._base import CannotWrite, Edit, Rule, Settings, already, written
from ._blocks import Blocks, block_lists
from ._compiled import refuse_differentiated_again, with_loss
from .compile import compiled_by_source

COPIED = "DataParallel copies the modules, and the copies would run the compiled originals"


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses where the source compiles the model itself, and lists of layers that are not of the user's classes."""
    found = block_lists(places)
    own = compiled_by_source(places, places.root_calls)
    if own:
        raise CannotWrite("the source already compiles the model", own)
    if copied := places.calls_named("DataParallel"):
        raise CannotWrite(COPIED, copied)
    refuse_differentiated_again(places)
    done = [blocks for blocks in found if _compiled(places, blocks)]
    if len(done) == len(found):
        return already(places, [blocks.place for blocks in done])
    if done:
        raise CannotWrite("the source already compiles some of the blocks", [blocks.place for blocks in done])
    argument = "dynamic=True" if settings["shapes"] == "dynamic" else ""
    changes = Changes(places.project)
    for blocks in found:
        source = blocks.owner.source
        text = f"for block in {blocks.name}:\n    block.compile({argument})\n"
        changes.put(source, {blocks.statement: after(source, text)})
    return with_loss(places, written(changes, [blocks.place for blocks in found]))


def _compiled(places: Places, blocks: Blocks) -> bool:
    """Whether the class compiles what a loop over its list takes from it."""
    for site in places.calls_named("compile"):
        loop = site.source.around(site.call, cst.For)
        if site.source is not blocks.owner.source or loop is None or not is_method_call(site.call):
            continue
        if dotted(loop.iter) == blocks.name and dotted(site.call.func.value) == dotted(loop.target):
            return True
    return False


RULE = Rule(edit, order=20)
