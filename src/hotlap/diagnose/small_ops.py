"""Small operations that a Python loop in the model makes one by one, as far as a trace shows them with their lines."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from hotlap.levers import answering
from hotlap.records.diagnosis import Finding, Place
from hotlap.records.durations import ms
from hotlap.records.trace import HostTime, RankTrace
from hotlap.trace import scaling

from .samples import without_comprehension
from .source import calls_in, loops_at, statement_at
from .statements import trains

OF: Final = ("compute", "launch")
"""Findings that only say where this time goes."""
ISSUED, UPDATES = frozenset(answering("launches")), frozenset(answering("update-launches"))
"""Levers that issue operations at less cost, and those of them that do so for an optimizer's."""
INSTEAD: Final = (
    "one operation on the whole tensor in place of the loop: a batched product, `einsum`, an index, `torch.where`, "
    "`index_add_`, `torch.stack` once at the end; constants once, in `__init__`; of a recurrence take out what needs "
    "no earlier turn, as one Linear of all inputs"
)
INDEXING: Final = re.compile(
    r"aten::(select|slice|narrow|index|item|_local_scalar_dense|unbind|as_strided|(select|slice)_backward)|"
    r".*\b(Select|Slice|Index|Unbind)Backward\d"
)
"""Taking parts of a tensor, and its backward."""
VIEWS: Final = re.compile(
    r"aten::(as_strided|detach|expand|narrow|permute|reshape|select|slice|squeeze|t|transpose|unsqueeze|(_unsafe_)?view)"
)
"""Ops that compute nothing."""
OF_BACKWARDS: Final = re.compile(
    r"aten::(zeros|zero_|fill_|empty\w*|new_(zeros|empty)\w*|add_?|copy_|_index_put_impl_)"
)
"""What the backward of an index does besides, and others do too."""
LOOKUP: Final = "aten::embedding"


@dataclass(frozen=True)
class Kind:
    """many: calls a step of one op at one line; least: of the host's time in the model, what the ops in a function's
    loops take."""

    id: str
    title: str
    why: str
    instead: str
    many: int
    least: float


SMALL: Final = Kind(
    "small-ops",
    "small operations run one by one in a Python loop",
    "each passes through Python, the dispatcher and autograd for little work, and so does its backward",
    INSTEAD,
    64,
    0.2,
)
SINGLE: Final = Kind(
    "single-elements",
    "parts of a tensor are taken one by one in a Python loop",
    "each index is a separate operation; with gradients, its backward makes zeros as large as the whole tensor "
    "and adds them",
    "take all of them in one operation, with index tensors: `x.gather(1, at[:, None]).squeeze(1)`, "
    "`x.index_select(0, at)`, `table[rows, columns]`; `x.unbind(0)` for all parts; one `.tolist()` for Python "
    "numbers",
    64,
    0.1,
)
LOOKUPS: Final = Kind(
    "lookups-one-by-one",
    "embedding lookups run one by one in a Python loop",
    "each is a separate small operation, and so are its gradient and the update of its table",
    "merge tables of one width, `nn.Embedding(sum(sizes), width)`, and use one lookup, `table(x + offsets)`, "
    "with `offsets = torch.tensor([0, *sizes[:-1]]).cumsum(0)` as a buffer; to keep the tables: `F.embedding(x "
    "+ offsets, torch.cat([one.weight for one in tables]))`",
    16,
    0.1,
)
KINDS: Final = frozenset(kind.id for kind in (SMALL, SINGLE, LOOKUPS))


def small_ops(rank: RankTrace, findings: Sequence[Finding]) -> Iterator[Finding]:
    """Of either kind the function whose loops hold most of them, at its dearest line, with its part of what the model
    takes: loops over values, and loops of lookups, over modules too."""
    general = next((one for one in findings if one.id in OF and not one.named), None)
    if general is None or not any(row.ns for row in rank.model):
        return
    rows = [row for row in rank.model if row.where is not None and "::" in row.name]
    lookups = {_line(row) for row in rows if row.name == LOOKUP and row.count >= LOOKUPS.many * rank.window.count}
    those = [row for row in rows if _line(row) in lookups and row.where and _in_loop(row.where, of_modules=True)]
    yield from _dearest(rank, those, general)
    those = [row for row in rows if _line(row) not in lookups and row.where and _in_loop(row.where)]
    yield from _dearest(rank, those, general)


def _line(row: HostTime) -> tuple[str, int | None] | None:
    return None if row.where is None else (row.where.file, row.where.line)


def _dearest(rank: RankTrace, those: Sequence[HostTime], general: Finding) -> Iterator[Finding]:
    whole, steps = sum(row.ns for row in rank.model), rank.window.count
    cpu = rank.device_name == "cpu"
    functions: defaultdict[tuple[str, str], list[HostTime]] = defaultdict(list)
    for row in those:
        if row.where is not None:
            functions[row.where.file, without_comprehension(row.where.function or "")].append(row)
    for rows in sorted(functions.values(), key=lambda rows: -sum(row.ns for row in rows)):
        kind = _kind(rows) if cpu or general.bound == "launch" else SMALL
        share = sum(row.ns for row in rows) / whole
        most = max(rows, key=lambda row: (kind is not LOOKUPS or row.name == LOOKUP, row.count))
        if share < kind.least or most.count < kind.many * steps:
            continue
        if kind is SMALL:
            most = max((row for row in rows if not VIEWS.fullmatch(row.name)), key=lambda row: row.count, default=most)
        cost_ms = share * general.share * scaling.step_ms(rank)
        yield Finding(
            id=kind.id,
            bound="launch" if cpu else general.bound,
            share=share * general.share,
            title=kind.title,
            where=max(rows, key=lambda row: row.ns).where,
            evidence=f"{most.count // steps:,} calls of {most.name} a step at one line; in such loops of this function "
            f"the host spends {share:.0%} of its time in the model, {ms(cost_ms)} a step with their backward",
            why=kind.why,
            instead=kind.instead,
            levers=tuple(one for one in general.levers if one in ISSUED and one not in UPDATES),
            named=True,
        )
        return


def _kind(rows: Sequence[HostTime]) -> Kind:
    """What most of the time in these is."""
    if any(row.name == LOOKUP for row in rows):
        return LOOKUPS
    others = [row for row in rows if not OF_BACKWARDS.fullmatch(row.name)]
    indexing = sum(row.ns for row in others if INDEXING.fullmatch(row.name))
    return SINGLE if 2 * indexing >= sum(row.ns for row in others) else SMALL


def _in_loop(place: Place, of_modules: bool = False) -> bool:
    """Whether the line lies in a loop of a function of the model, which is not one over its modules."""
    own, loops = statement_at(place), list(loops_at(place))
    if own is None or trains(place):
        return False
    made = [one for one in ast.walk(own) if isinstance(one, ast.comprehension)] if own not in loops else []
    targets = [one.target for one in (*loops, *made) if not isinstance(one, ast.While)]
    names = {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    called = [call.func for call in calls_in(own)]
    modules = any(isinstance(one, ast.Subscript) or (isinstance(one, ast.Name) and one.id in names) for one in called)
    return bool(loops or made) and (of_modules or not modules)
