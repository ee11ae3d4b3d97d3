"""Not a lever: the work of a causal forward for its last token alone, with keys and values of those before it kept.

A dimension that grows with the sequence is a `Row` (one entry for each token of the sequence) or a `COLUMN` (one for
each token that is looked at). Of rows, only the last is computed. Where rows are looked at as columns (the second
factor of a product of matrices, keys and values of an attention) they are kept, in a buffer with room for the longest
sequence, and a softmax over columns leaves out those that are not there yet. What each op does to the last row is in
`_prefix_rules`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from ._call_inputs import Unfit
from ._prefix_tape import TOKENS, Growing, Made, Outside, Size, Sizes, each, put


class Row(NamedTuple):
    """One entry for each token. outer: where a dimension is several in one, the product of those before the tokens."""

    outer: int = 1


COLUMN: Final = "column"
Kind = Row | str | None


@dataclass
class Last:
    """What is known of an op's output when only the last token is computed. shape: of the whole, for any length; alone:
    it is of the last token in the whole as well, so nothing that others have may hang on it."""

    node: Any
    kinds: tuple[Kind, ...]
    shape: Sizes
    made: Made
    alone: bool = False

    @property
    def dim(self) -> int | None:
        """Where tokens lie one after another, a row each; None where they don't."""
        return self.kinds.index(Row()) if Row() in self.kinds else None


@dataclass
class Cache:
    """A tensor whose rows are kept. made: where the forward makes it; dim: of the rows."""

    made: Made
    dim: int
    tensor: Any


@dataclass
class Looks:
    """An op that has to be causal: no token may look at a later one. by: what says so: its output, its mask, or its
    first argument."""

    op: int
    by: Literal["output", "mask", "first"]


class TooLong(Exception):
    """A table of the model, such as its positions, ends before the length that was asked for."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"it has no room for more than {limit} tokens")
        self.limit = limit


class Tables:
    """Values of ops that do not hang on the tokens: weights that are cast, positions, masks."""

    def __init__(self, ops: Sequence[Growing], most: int) -> None:
        self._ops, self._most = ops, most
        self._values: dict[Made, Any] = {}

    def value(self, made: Made | Outside) -> Any:
        """For a sequence of the most tokens. Raises TooLong."""
        if isinstance(made, Outside):
            return made.tensor
        if made not in self._values:
            for at in self._missing(made):
                self._work(at)
        return self._values[made]

    def forget(self) -> None:
        """What is not used any more."""
        self._values.clear()

    def _missing(self, made: Made) -> list[int]:
        todo, found = [made.op], set()
        while todo:
            at = todo.pop()
            if at not in found:
                found.add(at)
                todo.extend(use.op for use in self._ops[at].uses if use not in self._values)
        return sorted(found)

    def _work(self, at: int) -> None:
        op = self._ops[at]

        def leaf(value: Any) -> Any:
            if isinstance(value, (Made, Outside)):
                return self._values[value] if isinstance(value, Made) else value.tensor
            return value.at(self._most) if isinstance(value, Size) else value

        args, kwargs = put(op.args, leaf), put(op.kwargs, leaf)
        self._look_up(op.name, args)
        out = op.func(*args, **kwargs)
        for number, one in enumerate(out if op.many else [out]):
            shape = op.shapes[number]
            if one is None or shape is None:
                continue
            for size, got in zip(shape, one.shape, strict=True):
                if isinstance(size, Size) and size.at(self._most) != got:
                    raise TooLong(self._most - abs(size.at(self._most) - got) // max(1, abs(size.slope)))
                if not isinstance(size, Size) and size != got:
                    raise Unfit(f"{op.name} makes other shapes for longer sequences")
            self._values[Made(at, number)] = one

    def _look_up(self, name: str, args: Sequence[Any]) -> None:
        """On a device an index out of range ends the process."""
        pairs: list[tuple[int, Any]] = []
        if name == "embedding":
            pairs = [(args[0].shape[0], args[1])]
        elif name == "index_select":
            pairs = [(args[0].shape[args[1]], args[2])]
        elif name == "index":
            pairs = [(args[0].shape[dim], index) for dim, index in enumerate(args[1]) if index is not None]
        elif name in {"gather", "take", "index_put", "scatter", "_unsafe_index"}:
            raise Unfit(f"it looks up positions by {name}")
        for rows, index in pairs:
            if index.dtype.is_floating_point or str(index.dtype) == "torch.bool":
                raise Unfit(f"it looks up positions by {index.dtype}")
            beyond = int(index.max()) + 1 - rows
            if beyond > 0:
                raise TooLong(self._most - beyond)


class Builder:
    """Makes a graph (`torch.fx`) of the last token's work. Its arguments: the token (batch, 1), and its place (1,).

    outputs: of the forward, which the graph returns; batch, length: of the tokens now; most: tokens that there is room
    for. Raises Unfit, TooLong.
    """

    def __init__(
        self, ops: Sequence[Growing], outputs: Sequence[Made], batch: int, length: int, most: int, device: Any
    ) -> None:
        import torch

        self.ops, self.most, self.device = ops, most, device
        self.tables, self._now, self._length = Tables(ops, most), Tables(ops, length), length
        self.caches: dict[tuple[Made, int], tuple[Cache, Last]] = {}
        self.looks: list[Looks] = []
        self.attributes: dict[str, Any] = {}
        self._constants: dict[int, Any] = {}
        self.graph = torch.fx.Graph()
        token, self.place = self.graph.placeholder("token"), self.graph.placeholder("place")
        self.there = self.call(torch.ops.aten.le.Tensor, self.constant(torch.arange(most, device=device)), self.place)
        """Which columns are there: (most,), boolean."""
        self.last: dict[Made, Last] = {TOKENS: Last(token, (None, Row()), (batch, Size(1, 0)), TOKENS)}
        self._growing = _growing(ops)
        on_tokens = dependent(ops)
        needed = _needed(ops, outputs)
        for at, op in enumerate(ops):
            if at in on_tokens and at in needed:
                self._add(at, op)
        self.results = [self._result(made) for made in outputs]
        self.graph.output(tuple(one.node for one in self.results))
        self.tables.forget()
        self._now.forget()

    def module(self) -> Any:
        """The graph as a callable."""
        import torch

        return torch.fx.GraphModule(self.attributes, self.graph)

    def _result(self, made: Made) -> Last:
        one = self.last.get(made)
        if one is None or [kind for kind in one.kinds if kind is not None] not in ([], [Row()]):
            raise Unfit("it returns something else than a value of each token")
        return one

    def _add(self, at: int, op: Growing) -> None:
        from ._prefix_rules import rule_of

        found = rule_of(op)(self, op, at)
        given = [self.last[use] for use in op.uses if use in self.last]
        alone, rows = any(one.alone for one in given), any(_has_rows(one.kinds) for one in given)
        for number, (node, kinds) in enumerate(found):
            shape = op.shapes[number]
            if shape is None:
                continue
            grown = [isinstance(size, Size) for size in shape]
            if len(kinds) != len(shape) or [kind is not None for kind in kinds] != grown:
                raise Unfit(f"it is not clear what {op.name} does to one token")
            if alone and _has_rows(kinds):
                raise Unfit("what it computes for a token hangs on later ones")
            only = alone or (rows and not _has_rows(kinds))
            self.last[Made(at, number)] = Last(node, kinds, shape, Made(at, number), only)

    # what rules use

    def call(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """A node that calls a function."""
        return self.graph.call_function(func, args, kwargs)

    def constant(self, tensor: Any) -> Any:
        """A node with this value."""
        if id(tensor) not in self._constants:
            name = f"constant_{len(self._constants)}"
            self.attributes[name] = tensor
            self._constants[id(tensor)] = self.graph.get_attr(name)
        return self._constants[id(tensor)]

    def of(self, value: Any) -> Last | None:
        """What is known of an argument that hangs on the tokens; None of others."""
        return self.last.get(value) if isinstance(value, Made) else None

    def shape(self, value: Made | Outside) -> Sizes:
        """Of any argument."""
        if isinstance(value, Outside):
            return tuple(value.tensor.shape)
        if value == TOKENS:
            return self.last[TOKENS].shape
        shape = self.ops[value.op].shapes[value.out]
        assert shape is not None, "it is used"
        return shape

    def aligned(self, value: Made | Outside, kinds: Sequence[Kind]) -> Any:
        """A node of an argument beside others with these kinds of dimensions, to the right. Of tables the last row."""
        import torch

        one = self.of(value)
        if one is not None:
            return one.node
        shape = self.shape(value)
        node = self.constant(self.table(value))
        for dim, size in enumerate(shape):
            kind = kinds[len(kinds) - len(shape) + dim]
            if not isinstance(size, Size):
                continue
            if kind is None or size != Size(1, 0) or kind not in {Row(), COLUMN}:
                raise Unfit("a table of positions is used where no token is")
            if kind == Row():
                node = self.call(torch.ops.aten.index_select.default, node, dim, self.place)
        return node

    def _begins_as_now(self, value: Made | Outside, table: Any, shape: Sizes) -> None:
        """Whether a table for a longer sequence begins with that for this one. Raises Unfit."""
        import torch

        if isinstance(value, Outside) or value.op not in self._growing:
            return
        for dim, size in enumerate(shape):
            if isinstance(size, Size):
                table = table.narrow(dim, 0, min(size.at(self._length), table.shape[dim]))
        if not torch.equal(table, self._now.value(value)):
            raise Unfit("positions are others in a longer sequence")

    def fixed(self, value: Any) -> Any:
        """A node of an argument that is the same for all tokens and lengths."""
        if not isinstance(value, (Made, Outside)):
            return value
        if self.of(value) is not None or any(isinstance(size, Size) for size in self.shape(value)):
            raise Unfit("something that grows with the sequence is used as a weight")
        return self.constant(self.table(value))

    def table(self, value: Made | Outside) -> Any:
        """What an argument is that does not hang on the tokens, with room for the most. Raises Unfit, TooLong."""
        table = self.tables.value(value)
        self._begins_as_now(value, table, self.shape(value))
        return table

    def sizes(self, shape: Sizes, kinds: Sequence[Kind]) -> list[int]:
        """A shape when only the last token is computed."""
        found = []
        for size, kind in zip(shape, kinds, strict=True):
            if isinstance(size, Size) and kind is not None:
                if size.base or (kind == COLUMN and size.slope != 1):
                    raise Unfit("a dimension is longer than the sequence")
                found.append(self.most if kind == COLUMN else size.slope)
            elif isinstance(size, Size):
                raise Unfit("a dimension grows that holds no tokens")
            else:
                found.append(size)
        return found

    def column(self, one: Last, dim: int) -> Last:
        """All rows so far of something whose last row is computed, as columns."""
        import torch

        if one.kinds[dim] == COLUMN:
            return one
        others = [kind for at, kind in enumerate(one.kinds) if at != dim and kind is not None]
        if one.kinds[dim] != Row() or one.shape[dim] != Size(1, 0) or others or one.made == TOKENS:
            raise Unfit("tokens look at each other in a way that is not known")
        if (one.made, dim) not in self.caches:
            kinds = tuple(COLUMN if at == dim else kind for at, kind in enumerate(one.kinds))
            dtype = self.ops[one.made.op].dtypes[one.made.out]
            # Numbers of a token lie beside each other, however the forward turns them: it is what attention's kernels
            # ask for. The graph turns them, as what a compiler makes of `index_copy_` lies as if nothing was turned.
            sizes, last = self.sizes(one.shape, kinds), max(len(kinds) - 2, 0)
            sizes.insert(last, sizes.pop(dim))
            laid = torch.zeros(sizes, dtype=dtype, device=self.device)
            name, buffer = f"cache_{len(self.caches)}", laid.movedim(last, dim)
            self.attributes[name] = laid
            row = self.call(torch.movedim, one.node, dim, last)
            node = self.call(torch.ops.aten.index_copy_.default, self.graph.get_attr(name), last, self.place, row)
            node = self.call(torch.movedim, node, last, dim)
            known = Last(node, kinds, one.shape, one.made)
            self.caches[one.made, dim] = Cache(one.made, dim, buffer), known
        return self.caches[one.made, dim][1]


def _has_rows(kinds: Sequence[Kind]) -> bool:
    return any(isinstance(kind, Row) for kind in kinds)


def dependent(ops: Sequence[Growing]) -> set[int]:
    """The ops whose values hang on the tokens."""
    found: set[int] = set()
    for at, op in enumerate(ops):
        if any(use == TOKENS or use.op in found for use in op.uses):
            found.add(at)
    return found


def _growing(ops: Sequence[Growing]) -> set[int]:
    """The ops in which a number grows with the sequence, and those that use what they make."""
    found: set[int] = set()
    for at, op in enumerate(ops):
        leaves = [*each([op.args, op.kwargs]), *(size for shape in op.shapes for size in shape or ())]
        if any(isinstance(leaf, Size) for leaf in leaves) or any(use.op in found for use in op.uses):
            found.add(at)
    return found


def _needed(ops: Sequence[Growing], outputs: Sequence[Made]) -> set[int]:
    found: set[int] = set()
    todo = [made.op for made in outputs]
    while todo:
        at = todo.pop()
        if at >= 0 and at not in found:
            found.add(at)
            todo.extend(use.op for use in ops[at].uses)
    return found
