"""Small changes of a syntax tree that keep everything around them as it was."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import libcst as cst

from hotlap.source.project import Project
from hotlap.source.scopes import Scope, Source
from hotlap.source.tree import Unreadable

Statements = cst.FlattenSentinel[cst.BaseStatement]
Rewriting = Callable[[cst.CSTNode], cst.CSTNode | Statements]
Replacement = cst.CSTNode | cst.RemovalSentinel | Rewriting
"""What stands in place of a node: another one, nothing, or what is made of it and of what was replaced in it."""
LINE_LENGTH: Final = 100
"""Characters that a line may have in any file; longer ones where the file has longer ones itself."""
NO_SPACE: Final = cst.SimpleWhitespace("")


@dataclass
class Changes:
    """Changes of a project's files by node."""

    project: Project
    nodes: dict[Path, dict[cst.CSTNode, Replacement]] = field(default_factory=dict)

    def put(self, source: Source, changes: Mapping[cst.CSTNode, Replacement]) -> None:
        """Replace nodes of a file."""
        if changes:
            self.nodes.setdefault(source.path, {}).update(changes)

    def made(self) -> Project:
        """The project with them. Raises Unreadable where the result is no Python."""
        changed = {path: replaced(self.project.sources[path], changes) for path, changes in self.nodes.items()}
        return replace(self.project, sources={**self.project.sources, **changed})


class _Replace(cst.CSTTransformer):
    def __init__(self, changes: Mapping[cst.CSTNode, Replacement]) -> None:
        self.changes = changes

    def on_leave(
        self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT
    ) -> cst.CSTNodeT | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNodeT]:
        changed = super().on_leave(original_node, updated_node)
        change = self.changes.get(original_node)
        if change is None:
            return changed
        return change(changed) if callable(change) else change  # type: ignore[arg-type, return-value]


def replaced(source: Source, changes: Mapping[cst.CSTNode, Replacement]) -> Source:
    """The file with some nodes replaced. Raises Unreadable where the result is no Python."""
    data = cst.ensure_type(source.tree.visit(_Replace(changes)), cst.Module).bytes
    try:
        compile(data, source.shown, "exec", dont_inherit=True)
        return replace(source, data=data, tree=cst.parse_module(data))
    except (SyntaxError, ValueError, cst.ParserSyntaxError) as error:
        raise Unreadable(f"{source.shown}: {error}") from error


def expression(source: Source, text: str) -> cst.BaseExpression:
    """An expression."""
    return cst.parse_expression(text, config=source.tree.config_for_parsing)


def statement(source: Source, text: str) -> cst.BaseStatement:
    """A statement, with the file's own line ends."""
    found = cst.parse_statement(text, config=source.tree.config_for_parsing)
    assert isinstance(found, cst.BaseStatement)
    return found


def after(source: Source, *texts: str, blank_line: bool = False) -> Rewriting:
    """Statements put after one. blank_line: with an empty line between."""

    def change(node: cst.CSTNode) -> Statements:
        assert isinstance(node, cst.BaseStatement)
        first, *others = [statement(source, text) for text in texts]
        if blank_line:
            first = first.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        return cst.FlattenSentinel([node, first, *others])

    return change


def before(source: Source, text: str) -> Rewriting:
    """A statement put before one; the comments and blank lines above it stay above both."""

    def change(node: cst.CSTNode) -> Statements:
        return cst.FlattenSentinel([statement(source, text).with_changes(leading_lines=_leading(node)), _bare(node)])

    return change


def under(source: Source, header: str) -> Rewriting:
    """A statement put under `with ...` or `if ...`; the comments and blank lines above it stay above."""

    def change(node: cst.CSTNode) -> cst.CSTNode:
        frame = statement(source, f"{header}:\n    pass\n")
        assert isinstance(frame, cst.BaseCompoundStatement)
        body = frame.body.with_changes(body=[_bare(node)])
        return frame.with_changes(leading_lines=_leading(node), body=body)

    return change


def _leading(node: cst.CSTNode) -> list[cst.EmptyLine]:
    return list(getattr(node, "leading_lines", ()))


def _bare(node: cst.CSTNode) -> cst.BaseStatement:
    assert isinstance(node, cst.BaseStatement)
    return node.with_changes(leading_lines=[])


def through(method: str) -> Rewriting:
    """An expression through one of its methods: `model(x).float()`."""

    def change(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.BaseExpression)
        return cst.Call(cst.Attribute(node, cst.Name(method)))

    return change


def with_keywords(
    source: Source, call: cst.Call, changes: Mapping[str, str], original: cst.Call | None = None
) -> cst.Call:
    """A call with keyword arguments changed, or added behind the last argument in the call's own layout. original: the
    call as it stands in the file, where that is another one: it says how much room is left in its line."""
    left = dict(changes)
    args = []
    for arg in call.args:
        name = arg.keyword.value if arg.keyword is not None else ""
        args.append(arg.with_changes(value=expression(source, left.pop(name))) if name in left else arg)
    more = sum(len(f", {name}={value}") for name, value in left.items())
    room = _line_break(source, call if original is None else original, more)
    for name, value in left.items():
        args = _with_argument(args, name, expression(source, value), room)
        room = None
    return call.with_changes(args=args)


def _line_break(source: Source, call: cst.Call, more: int) -> cst.ParenthesizedWhitespace | None:
    """The line end to put before new arguments where they would make a line too long; None where there is room."""
    line = source.around(call, cst.SimpleStatementLine)
    if line is None or not call.args:
        return None
    longest = max(LINE_LENGTH, *(len(text.rstrip()) for text in source.lines))
    if len(source.lines[source.end(call.args[-1]) - 1].rstrip()) + more <= longest:
        return None
    if isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace):
        return call.whitespace_before_args.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    blanks = source.positions[call.args[0]].start.column - source.positions[line].start.column
    return cst.ParenthesizedWhitespace(
        first_line=cst.TrailingWhitespace(), indent=True, last_line=cst.SimpleWhitespace(" " * blanks)
    )


def _with_argument(
    args: list[cst.Arg], name: str, value: cst.BaseExpression, room: cst.ParenthesizedWhitespace | None
) -> list[cst.Arg]:
    new = cst.Arg(keyword=cst.Name(name), value=value, equal=cst.AssignEqual(NO_SPACE, NO_SPACE))
    if not args:
        return [new]
    *others, last = args
    spaces = [arg.comma.whitespace_after for arg in others if isinstance(arg.comma, cst.Comma)]
    space: cst.BaseParenthesizableWhitespace = room or cst.SimpleWhitespace(" ")
    one_a_line = all(isinstance(space, cst.ParenthesizedWhitespace) for space in spaces)
    if room is None and spaces and (isinstance(last.comma, cst.Comma) or one_a_line):
        space = spaces[-1]
    if isinstance(space, cst.ParenthesizedWhitespace):  # a comment in it belongs to another argument
        line = space.first_line.with_changes(comment=None, whitespace=NO_SPACE)
        space = space.with_changes(first_line=line, empty_lines=[])
    # What stands before the bracket (a line end, a comment) stays there.
    new = new.with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
    return [*others, last.with_changes(comma=cst.Comma(whitespace_after=space), whitespace_after_arg=NO_SPACE), new]


def torch_in(scope: Scope) -> str | None:
    """How `torch` is written in a function: by the nearest import of it; None where there is none."""
    taken: set[str] = set()
    for found in scope.visible():
        for name, bindings in found.names.items():
            if name not in taken and {binding.imported for binding in bindings} == {"torch"}:
                return name
        taken |= found.names.keys()
    return None


def fresh(source: Source, wanted: str) -> str:
    """A name that stands nowhere in the file."""
    used = set(re.findall(r"\w+", source.tree.code))
    numbered = (f"{wanted}_{n}" for n in range(2, 99))
    return next(name for name in (wanted, f"model_{wanted}", *numbered) if name not in used)
