"""Small changes of a syntax tree that keep everything around them as it was."""

import re
from collections.abc import Callable, Mapping
from typing import Final

import libcst as cst

from hotlap.source.scopes import Scope
from hotlap.source.tree import Source, rewritten

Replacement = Callable[[cst.CSTNode], cst.CSTNode | cst.FlattenSentinel[cst.BaseStatement]]
LINE_LENGTH: Final = 100
"""Characters that a line may have in any file; longer ones where the file has longer ones itself."""


class _Replace(cst.CSTTransformer):
    def __init__(self, changes: Mapping[cst.CSTNode, Replacement]) -> None:
        self.changes = changes

    def on_leave(self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT) -> cst.CSTNodeT:
        changed = super().on_leave(original_node, updated_node)
        change = self.changes.get(original_node)
        return changed if change is None else change(changed)  # type: ignore[arg-type, return-value]


def replace(source: Source, changes: Mapping[cst.CSTNode, Replacement]) -> Source:
    """The file with some nodes replaced. Raises Unreadable where the result is no Python."""
    tree = source.tree.visit(_Replace(changes))
    assert isinstance(tree, cst.Module)
    return rewritten(source, tree)


def expression(source: Source, text: str) -> cst.BaseExpression:
    """An expression."""
    return cst.parse_expression(text, config=source.tree.config_for_parsing)


def statement(source: Source, text: str) -> cst.BaseStatement:
    """A statement, with the file's own line ends."""
    found = cst.parse_statement(text, config=source.tree.config_for_parsing)
    assert isinstance(found, cst.BaseStatement)
    return found


def after(source: Source, *texts: str, apart: bool = False) -> Replacement:
    """Statements put after one. apart: with an empty line between."""

    def change(node: cst.CSTNode) -> cst.FlattenSentinel[cst.BaseStatement]:
        assert isinstance(node, cst.BaseStatement)
        first, *others = [statement(source, text) for text in texts]
        if apart:
            first = first.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        return cst.FlattenSentinel([node, first, *others])

    return change


def before(source: Source, *texts: str) -> Replacement:
    """Statements put before one; the comments and blank lines above it stay above them."""

    def change(node: cst.CSTNode) -> cst.FlattenSentinel[cst.BaseStatement]:
        first, *others = [statement(source, text) for text in texts]
        return cst.FlattenSentinel([first.with_changes(leading_lines=_leading(node)), *others, _bare(node)])

    return change


def inside_with(source: Source, header: str) -> Replacement:
    """A statement put inside `with header:`; the comments and blank lines above it stay above."""

    def change(node: cst.CSTNode) -> cst.FlattenSentinel[cst.BaseStatement]:
        frame = statement(source, f"with {header}:\n    pass\n")
        assert isinstance(frame, cst.With)
        block = cst.IndentedBlock(body=[_bare(node)], header=frame.body.header)  # type: ignore[attr-defined]
        return cst.FlattenSentinel([frame.with_changes(leading_lines=_leading(node), body=block)])

    return change


def _leading(node: cst.CSTNode) -> list[cst.EmptyLine]:
    return list(getattr(node, "leading_lines", ()))


def _bare(node: cst.CSTNode) -> cst.BaseStatement:
    assert isinstance(node, cst.BaseStatement)
    return node.with_changes(leading_lines=[])


def own_line(source: Source, node: cst.CSTNode) -> cst.SimpleStatementLine | None:
    """The statement of a node, where it has a line of its own in an indented block or at the top of the file."""
    line = source.around(node, cst.SimpleStatementLine)
    if line is None or len(line.body) != 1:
        return None
    return line if isinstance(source.parent(line), cst.IndentedBlock | cst.Module) else None


def keyword(source: Source, call: cst.Call, changes: Mapping[str, str], original: cst.Call | None = None) -> cst.Call:
    """A call with keyword arguments changed, or added behind the last argument in the call's own layout.

    original: the call as it stands in the file, which says how much room is left in its line (default: `call`).
    """
    left = dict(changes)
    args = []
    for arg in call.args:
        name = arg.keyword.value if arg.keyword is not None else ""
        args.append(arg.with_changes(value=expression(source, left.pop(name))) if name in left else arg)
    room = _line_break(source, original or call, sum(len(f", {name}={value}") for name, value in left.items()))
    for name, value in left.items():
        args = _with_argument(args, name, expression(source, value), room)
        room = None
    return call.with_changes(args=args)


def _line_break(source: Source, call: cst.Call, more: int) -> cst.ParenthesizedWhitespace | None:
    """The line end to put before new arguments where they would make a line too long; None where there is room."""
    line = source.around(call, cst.SimpleStatementLine)
    if line is None or not call.args:
        return None
    last = source.end(call.args[-1])
    longest = max(LINE_LENGTH, *(len(text.rstrip()) for text in source.lines))
    if len(source.lines[last.line - 1].rstrip()) + more <= longest:
        return None
    if isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace):
        return call.whitespace_before_args.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    blanks = source.column(call.args[0]) - source.column(line)
    return cst.ParenthesizedWhitespace(
        first_line=cst.TrailingWhitespace(), indent=True, last_line=cst.SimpleWhitespace(" " * blanks)
    )


def _with_argument(
    args: list[cst.Arg], name: str, value: cst.BaseExpression, room: cst.ParenthesizedWhitespace | None
) -> list[cst.Arg]:
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    new = cst.Arg(keyword=cst.Name(name), value=value, equal=equal)
    if not args:
        return [new]
    *others, last = args
    between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if room is not None:
        between = cst.Comma(whitespace_after=room)
    elif len(args) > 1 and (isinstance(last.comma, cst.Comma) or all(map(_ends_line, args[:-1]))):
        assert isinstance(args[-2].comma, cst.Comma)
        between = cst.Comma(whitespace_after=args[-2].comma.whitespace_after)
    if not isinstance(last.comma, cst.Comma):
        # What stands before the bracket (a line end, a comment) stays there.
        spaces = last.whitespace_after_arg
        return [*others, last.with_changes(comma=_quiet(between), whitespace_after_arg=cst.SimpleWhitespace("")),
                new.with_changes(whitespace_after_arg=spaces)]  # fmt: skip
    return [*others, last.with_changes(comma=_quiet(between)), new.with_changes(comma=last.comma)]


def _ends_line(arg: cst.Arg) -> bool:
    return isinstance(arg.comma, cst.Comma) and isinstance(arg.comma.whitespace_after, cst.ParenthesizedWhitespace)


def _quiet(comma: cst.Comma) -> cst.Comma:
    """The comma without a comment that belongs to another argument."""
    space = comma.whitespace_after
    if isinstance(space, cst.ParenthesizedWhitespace):
        line = space.first_line
        space = space.with_changes(
            first_line=line.with_changes(comment=None, whitespace=cst.SimpleWhitespace("")), empty_lines=[]
        )
        return comma.with_changes(whitespace_after=space)
    return comma


def spelled(scope: Scope, full: str) -> str | None:
    """How `torch.x.y` is written in a function: by the nearest import of torch; None where there is none."""
    taken: set[str] = set()
    found: Scope | None = scope
    while found is not None:
        if found is scope or not isinstance(found.node, cst.ClassDef):
            for name, bindings in found.names.items():
                if name not in taken and {binding.imported for binding in bindings} == {"torch"}:
                    return name + full.removeprefix("torch")
            taken |= found.names.keys()
        found = found.parent
    return None


def fresh(source: Source, wanted: str) -> str:
    """A name that stands nowhere in the file."""
    used = set(re.findall(r"\w+", source.tree.code))
    return next(
        name for name in (wanted, f"model_{wanted}", *(f"{wanted}_{n}" for n in range(2, 99))) if name not in used
    )


def block_of(source: Source, nodes: list[cst.CSTNode]) -> tuple[cst.CSTNode, list[cst.BaseStatement]] | None:
    """The innermost block that holds all nodes, and the statements of it that they stand in, in order."""
    paths = [_path(source, node) for node in nodes]
    for block in paths[0]:
        if all(block in path for path in paths):
            body = list(block.body)  # type: ignore[attr-defined]
            return block, [s for s in body if any(s is node or s in _above(source, node) for node in nodes)]
    return None


def inside(source: Source, outer: cst.CSTNode, inner: cst.CSTNode) -> bool:
    """Whether a node stands in another one."""
    return any(above is outer for above in _above(source, inner))


def _path(source: Source, node: cst.CSTNode) -> list[cst.CSTNode]:
    """Blocks around a node, innermost first."""
    return [above for above in _above(source, node) if isinstance(above, cst.IndentedBlock | cst.Module)]


def _above(source: Source, node: cst.CSTNode) -> list[cst.CSTNode]:
    found = []
    above = source.parent(node)
    while above is not None:
        found.append(above)
        above = source.parent(above)
    return found
