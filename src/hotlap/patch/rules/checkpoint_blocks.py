"""`torch.utils.checkpoint` around the call of each repeated block in the loop over their list."""

from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst

from hotlap.source.places import Places
from hotlap.source.scopes import dotted
from hotlap.source.tree import Source

from ..edits import Replacement, expression, fresh, own_line, replace, statement
from ._base import (
    NO_TORCH,
    CannotWrite,
    Edit,
    Outcome,
    Rule,
    Settings,
    Touched,
    already,
    calls_named,
    importing,
    touched,
)
from ._blocks import Blocks, block_lists, unsound

CALL = "torch.utils.checkpoint"
RESERVED = ("use_reentrant", "context_fn", "determinism_check", "debug", "preserve_rng_state", "early_stop")
"""What checkpoint takes for itself."""
ITS_OWN = "the block is called with arguments that checkpoint would take for its own, or with none"
HOOKS = ("register_forward_hook", "register_forward_pre_hook")
NO_LOOP_OVER = "the loop that calls these blocks was not found in their class"


@dataclass(frozen=True, eq=False)
class Use:
    """Where a list of blocks is run: a loop over it with its calls of a block, or the call of a Sequential."""

    blocks: Blocks
    loop: cst.For | None
    calls: tuple[cst.Call, ...]


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses blocks that may not be computed twice: running statistics, state of their own, hooks, unknown parts."""
    found = block_lists(places)
    if isinstance(found, CannotWrite):
        return found
    own = [(source, call) for source, call in calls_named(places, "checkpoint") if _torch_s(places, source, call)]
    if own:
        lines = tuple(source.place(call) for source, call in own)
        if all(_ours(source, call, found) for source, call in own):
            return already(places, lines)
        return CannotWrite("the source has checkpoints itself", lines)
    why = _why_not(places, found)
    if why is not None:
        return why
    uses = [use for blocks in found for use in _uses(blocks)]
    taken = tuple(use.blocks.source.place(call) for use in uses for call in use.calls if _taken(call))
    if taken:
        return CannotWrite(ITS_OWN, taken)
    left = [blocks.place for blocks in found if all(use.blocks is not blocks for use in uses)]
    if left:
        return CannotWrite(NO_LOOP_OVER, tuple(left))
    return _write(places, uses, int(settings["every"]))


def _why_not(places: Places, found: list[Blocks]) -> CannotWrite | None:
    hooked = tuple(source.place(call) for source, call in calls_named(places, *HOOKS))
    if hooked:
        return CannotWrite("hooks on a forward would run again in the backward", hooked)
    for blocks in found:
        why = unsound(places, blocks.kind)
        if why is not None:
            return CannotWrite(why[0], (why[1], blocks.place))
    return None


def _torch_s(places: Places, source: Source, call: cst.Call) -> bool:
    full = places.names.resolve(call.func, places.names.scope(source, call)) or ""
    return full.startswith(CALL)


def _ours(source: Source, call: cst.Call, found: list[Blocks]) -> bool:
    """Whether this rule would write such a checkpoint: of what a loop over a list of blocks takes from it."""
    loop = source.around(call, cst.For)
    if loop is None or not call.args:
        return False
    over, target = _iterated(loop)
    return target == dotted(call.args[0].value) and any(b.source is source and b.name == over for b in found)


def _iterated(loop: cst.For) -> tuple[str, str]:
    """What a loop goes over, and its element's name, through `enumerate`."""
    over: cst.BaseExpression = loop.iter
    target: cst.BaseExpression = loop.target
    if isinstance(over, cst.Call) and dotted(over.func) == "enumerate" and len(over.args) == 1:
        pair = target.elements if isinstance(target, cst.Tuple) else ()
        if len(pair) != 2:
            return "", ""
        over, target = over.args[0].value, pair[1].value
    return dotted(over) or "", dotted(target) or ""


def _uses(blocks: Blocks) -> list[Use]:
    """The loops over a list in its class that call its blocks, and `x = self.blocks(x)` of a Sequential."""
    found: dict[cst.CSTNode, Use] = {}
    for scope, call in blocks.source.walk.calls:
        if scope.owner is not blocks.owner or scope.name == "__init__":
            continue
        loop = blocks.source.around(call, cst.For)
        if loop is not None and _iterated(loop) == (blocks.name, dotted(call.func)):
            before = found[loop].calls if loop in found else ()
            found[loop] = Use(blocks, loop, (*before, call))
        elif blocks.sequence and dotted(call.func) == blocks.name and _threaded(blocks.source, call):
            found[call] = Use(blocks, None, (call,))
    return list(found.values())


def _taken(call: cst.Call) -> bool:
    """Whether checkpoint would not pass on all arguments of a call."""
    names = [arg.keyword.value for arg in call.args if arg.keyword is not None]
    return not call.args or any(arg.star == "**" for arg in call.args) or not set(RESERVED).isdisjoint(names)


def _threaded(source: Source, call: cst.Call) -> bool:
    """`x = self.blocks(x)`, on a line of its own."""
    assign = source.parent(call)
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1 or len(call.args) != 1 or call.args[0].star:
        return False
    name = dotted(assign.targets[0].target)
    return name is not None and name == dotted(call.args[0].value) and own_line(source, call) is not None


def _write(places: Places, uses: list[Use], every: int) -> Outcome:
    project, changed = places.project, frozenset[Touched]()
    for source in {use.blocks.source for use in uses}:
        changes: dict[cst.CSTNode, Replacement] = {}
        for use in [use for use in uses if use.blocks.source is source]:
            scope = places.names.scope(source, use.calls[0])
            imported = importing(source, scope, CALL, places.names)
            if imported is None:
                return CannotWrite(NO_TORCH, (source.place(use.calls[0]),))
            changes |= imported
            changes |= _in_loop(source, use, every) if use.loop is not None else _as_loop(source, use, every)
            changed |= touched(source, scope, places.names.of(source).scopes[source.tree])
        project = project.with_sources(replace(source, changes))
    lines = tuple(use.blocks.source.place(use.calls[0]) for use in uses)
    return Edit(project, lines, changed)


def _in_loop(source: Source, use: Use, every: int) -> dict[cst.CSTNode, Replacement]:
    assert use.loop is not None
    number = _number(source, use.loop) if every > 1 else ""
    changes: dict[cst.CSTNode, Replacement] = {
        call: _checkpointed(source, call, f"{number} % {every} == 0" if number else "") for call in use.calls
    }
    if number and not isinstance(use.loop.iter, cst.Call):
        changes[use.loop] = _numbered(source, number)
    return changes


def _number(source: Source, loop: cst.For) -> str:
    """The name of a block's number: that which the loop has, or a new one."""
    if isinstance(loop.target, cst.Tuple):
        return dotted(loop.target.elements[0].value) or ""
    return fresh(source, "block_index")


def _numbered(source: Source, number: str) -> Replacement:
    def change(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.For)
        text = source.tree.code_for_node
        return node.with_changes(
            target=expression(source, f"{number}, {text(node.target)}"),
            iter=expression(source, f"enumerate({text(node.iter)})"),
        )

    return change


def _checkpointed(source: Source, call: cst.Call, condition: str) -> Replacement:
    """A call of a block through checkpoint, where a condition holds."""
    given = ", ".join(source.tree.code_for_node(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for arg in call.args)
    text = f"{CALL}.checkpoint({dotted(call.func)}, {given}, use_reentrant=False)"
    if condition:
        text = f"{text} if {condition} else {source.tree.code_for_node(call)}"
        text = text if isinstance(source.parent(call), cst.Assign | cst.Return) else f"({text})"
    return lambda _: expression(source, text)


def _as_loop(source: Source, use: Use, every: int) -> dict[cst.CSTNode, Replacement]:
    """`x = self.blocks(x)` of a Sequential, written out."""
    call, name = use.calls[0], dotted(use.calls[0].args[0].value)
    block, number = fresh(source, "block"), fresh(source, "block_index")
    value = f"{CALL}.checkpoint({block}, {name}, use_reentrant=False)"
    header = f"for {block} in {use.blocks.name}:"
    if every > 1:
        header = f"for {number}, {block} in enumerate({use.blocks.name}):"
        value = f"{value} if {number} % {every} == 0 else {block}({name})"
    line = own_line(source, call)
    assert line is not None

    def change(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.SimpleStatementLine)
        loop = statement(source, f"{header}\n    {name} = {value}\n")
        return loop.with_changes(leading_lines=node.leading_lines)

    return {line: change}


RULE = Rule("checkpoint-blocks", edit, order=25)
