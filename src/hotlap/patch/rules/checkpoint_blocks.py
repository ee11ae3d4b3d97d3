"""`torch.utils.checkpoint` around the call of each repeated block in the loop over their list."""

from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from hotlap.records.patch import Line
from hotlap.source.places import Places, Site
from hotlap.source.scopes import Scope, Source, dotted

from ..edits import Changes, Replacement, after, before, expression, fresh, statement
from ._base import NO_TORCH, CannotWrite, Edit, Rule, Settings, already, written
from ._blocks import Blocks, block_lists, unsound

CALL = "torch.utils.checkpoint"
RESERVED = ("use_reentrant", "context_fn", "determinism_check", "debug", "preserve_rng_state", "early_stop")
"""What checkpoint takes for itself."""
ITS_OWN = "the block is called without arguments, or with some that checkpoint would use itself"
HOOKS = ("register_forward_hook", "register_forward_pre_hook")
NOT_BEFORE = m.SimpleStatementLine([m.Expr(m.SimpleString() | m.ConcatenatedString())]) | m.SimpleStatementLine(
    [m.ImportFrom(module=m.Name("__future__"))]
)
"""What an import stands behind: the docstring and imports from `__future__`."""
NO_LOOP_OVER = "the loop that calls these blocks was not found in their class"


@dataclass(frozen=True, eq=False)
class Use:
    """Where a list of blocks is run: a loop over it with its calls of a block, or the call of a Sequential."""

    blocks: Blocks
    loop: cst.For | None
    calls: tuple[cst.Call, ...]


def edit(places: Places, settings: Settings) -> Edit:
    """Refuses blocks that may not be computed twice: running statistics, state of their own, hooks, unknown parts."""
    found = block_lists(places)
    own = [s for s in places.calls_named("checkpoint") if places.names.resolve(s.call.func, s.scope).startswith(CALL)]
    if own:
        if all(_ours(site, found) for site in own):
            return already(places, own)
        raise CannotWrite("the source already uses checkpoints", own)
    if hooked := places.calls_named(*HOOKS):
        raise CannotWrite("hooks on a forward would run again in the backward", hooked)
    for blocks in found:
        if (why := unsound(places, blocks.kind)) is not None:
            raise CannotWrite(why[0], (why[1], blocks.place))
    uses = [use for blocks in found for use in _uses(blocks)]
    taken = [use.blocks.owner.source.place(call) for use in uses for call in use.calls if _taken(call)]
    if taken:
        raise CannotWrite(ITS_OWN, taken)
    left = [blocks.place for blocks in found if all(use.blocks is not blocks for use in uses)]
    if left:
        raise CannotWrite(NO_LOOP_OVER, left)
    return _write(places, uses, int(settings["every"]))


def _ours(site: Site, found: list[Blocks]) -> bool:
    """Whether this rule would write such a checkpoint: of what a loop over a list of blocks takes from it."""
    loop = site.source.around(site.call, cst.For)
    if loop is None or not site.call.args:
        return False
    over, target = _iterated(loop)
    return target == dotted(site.call.args[0].value) and any(
        blocks.owner.source is site.source and blocks.name == over for blocks in found
    )


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
    for scope, call in blocks.owner.source.walk.calls:
        if scope.owner is not blocks.owner or scope.name == "__init__":
            continue
        loop = blocks.owner.source.around(call, cst.For)
        if loop is not None and _iterated(loop) == (blocks.name, dotted(call.func)):
            before = found[loop].calls if loop in found else ()
            found[loop] = Use(blocks, loop, (*before, call))
        elif blocks.sequence and dotted(call.func) == blocks.name and _threaded(blocks.owner.source, call):
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
    return name is not None and name == dotted(call.args[0].value) and source.own_line(call) is not None


def _write(places: Places, uses: list[Use], every: int) -> Edit:
    changes = Changes(places.project)
    for use in uses:
        source, call = use.blocks.owner.source, use.calls[0]
        scope = source.scope(call)
        changes.put(source, _imported(places, scope, source.place(call)))
        changes.put(source, (_in_loop if use.loop else _as_loop)(source, use, every))
    return written(changes, [use.blocks.owner.source.place(use.calls[0]) for use in uses])


def _imported(places: Places, scope: Scope, at: Line) -> dict[cst.CSTNode, Replacement]:
    """The change that makes a function able to write CALL: nothing where it is imported, an import at the top of the
    file where it is not. Raises CannotWrite where `torch` means something else."""
    source = scope.source
    known = places.names.resolve(cst.Name("torch"), scope) == "torch"
    if not known and "torch" in source.walk.uses:
        raise CannotWrite(NO_TORCH, [at])
    top = [node for node in source.every(cst.Import) if not source.around(node, cst.IndentedBlock)] if known else []
    plain = [(node, alias.evaluated_name) for node in top for alias in node.names if alias.asname is None]
    if any(name == CALL for _, name in plain):
        return {}
    beside = [node for node, name in plain if name.partition(".")[0] == "torch"]
    line = source.around(beside[-1], cst.SimpleStatementLine) if beside else None
    if line is not None:
        return {line: after(source, f"import {CALL}")}
    first = next(node for node in source.tree.body if not m.matches(node, NOT_BEFORE))
    return {first: before(source, f"import {CALL}")}


def _in_loop(source: Source, use: Use, every: int) -> dict[cst.CSTNode, Replacement]:
    assert use.loop is not None
    number, loop = "", use.loop
    if every > 1 and isinstance(loop.target, cst.Tuple):
        number = dotted(loop.target.elements[0].value) or ""
    elif every > 1:
        number = fresh(source, "block_index")
    condition = f"{number} % {every} == 0" if number else ""
    changes: dict[cst.CSTNode, Replacement] = {call: _checkpointed(source, call, condition) for call in use.calls}
    if number and not isinstance(loop.iter, cst.Call):
        target = expression(source, f"{number}, {source.code(loop.target)}")
        over = expression(source, f"enumerate({source.code(loop.iter)})")
        changes[loop] = lambda node: node.with_changes(target=target, iter=over)
    return changes


def _checkpointed(source: Source, call: cst.Call, condition: str) -> cst.BaseExpression:
    """A call of a block through checkpoint, where a condition holds."""
    given = ", ".join(source.code(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for arg in call.args)
    text = f"{CALL}.checkpoint({dotted(call.func)}, {given}, use_reentrant=False)"
    if condition:
        text = f"{text} if {condition} else {source.code(call)}"
        text = text if isinstance(source.parent(call), cst.Assign | cst.Return) else f"({text})"
    return expression(source, text)


def _as_loop(source: Source, use: Use, every: int) -> dict[cst.CSTNode, Replacement]:
    """`x = self.blocks(x)` of a Sequential, written out."""
    call, name = use.calls[0], dotted(use.calls[0].args[0].value)
    block, number = fresh(source, "block"), fresh(source, "block_index")
    value = f"{CALL}.checkpoint({block}, {name}, use_reentrant=False)"
    header = f"for {block} in {use.blocks.name}:"
    if every > 1:
        header = f"for {number}, {block} in enumerate({use.blocks.name}):"
        value = f"{value} if {number} % {every} == 0 else {block}({name})"
    line = source.own_line(call)
    assert line is not None
    loop = statement(source, f"{header}\n    {name} = {value}\n").with_changes(leading_lines=line.leading_lines)
    return {line: loop}


RULE = Rule(edit, order=25)
