"""What a rewrite is given and gives, and what rewrites share."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import libcst as cst

from hotlap.records.patch import Line
from hotlap.source.places import Places
from hotlap.source.scopes import Binding, Scope, Source

from ..edits import Replacement


@dataclass(frozen=True, eq=False)
class Wait:
    """A statement of the user's in which a run waited. cause: in the words of the run's finding."""

    places: Places
    scope: Scope
    line: cst.SimpleStatementLine
    cause: str

    @property
    def source(self) -> Source:
        """The file that it stands in."""
        return self.scope.source

    @property
    def statement(self) -> cst.BaseSmallStatement | None:
        """The statement; None where its line holds several."""
        return self.line.body[0] if len(self.line.body) == 1 else None

    @property
    def call(self) -> cst.Call | None:
        """The call that the whole statement is."""
        value = self.statement.value if isinstance(self.statement, cst.Expr) else None
        return value if isinstance(value, cst.Call) else None

    def is_builtin(self, name: str) -> bool:
        """Whether a name means Python's own in this function."""
        return self.places.names.variable(name, self.scope) is None

    def resolve(self, node: cst.CSTNode) -> str:
        """The full name of what is imported; "" if unsure."""
        return self.places.names.resolve(node, self.scope)

    def lines(self, nodes: Iterable[cst.CSTNode]) -> tuple[Line, ...]:
        """Where nodes of the same file stand, each line once."""
        return tuple(dict.fromkeys(self.source.place(node) for node in nodes))


@dataclass(frozen=True)
class Change:
    """changes: by node of the wait's file. written, notes, review: as in `records.patch.Rewrite`."""

    changes: Mapping[cst.CSTNode, Replacement]
    written: str
    notes: tuple[str, ...] = ()
    review: bool = False


def numbered(lines: Iterable[Line]) -> str:
    """`line 3`, `lines 3, 7 and 9`."""
    *others, last = [str(line.line) for line in lines]
    return f"lines {', '.join(others)} and {last}" if others else f"line {last}"


def assigned(binding: Binding) -> cst.BaseExpression | None:
    """What a plain assignment gives a variable, also of a tuple; None of any other statement."""
    return binding.assigned if isinstance(binding.statement, cst.Assign | cst.AnnAssign) else None
