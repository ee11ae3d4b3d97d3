"""Not a lever: the ops of a forward over a sequence, and what of them depends on its length.

A dispatch mode writes down every op with where its arguments come from. Two such tapes of forwards over T and T + 1
tokens, beside each other, tell of each number whether it grows with the sequence, and by how much for each token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

from ._call_inputs import ODD, Unfit
from ._effects import PLAIN

MOST_OPS: Final = 20_000
SMALL: Final = 64
"""Elements of a tensor that is made of Python's numbers in each forward, and compared by value."""
WAITS: Final = ("_local_scalar_dense", "is_nonzero", "equal", "allclose", "nonzero", "masked_select", "unique2")


class Made(NamedTuple):
    """An output of an op of the tape, by numbers; op -1 is the argument of the forward."""

    op: int
    out: int = 0


class Outside(NamedTuple):
    """A tensor that no op of the tape made."""

    tensor: Any


class Size(NamedTuple):
    """A whole number that is `slope` times the length of the sequence, plus `base`."""

    slope: int
    base: int

    def at(self, length: int) -> int:
        """For a sequence of so many tokens."""
        return self.slope * length + self.base


Sizes = tuple[int | Size, ...]
TOKENS: Final = Made(-1)


@dataclass
class Op:
    """args, kwargs: with Made, Outside, plain values, and lists of these. shapes: of its outputs; many: whether they
    come as a list. view: of its first argument."""

    func: Any
    args: Any
    kwargs: dict[str, Any]
    shapes: list[Any]
    dtypes: list[Any]
    many: bool
    view: bool = False

    @property
    def name(self) -> str:
        """Without the overload."""
        return str(self.func._schema.name).removeprefix("aten::")


class Tape:
    """What is known while a forward runs. Tensors are known by identity as long as they live."""

    def __init__(self, tokens: Any) -> None:
        import weakref

        self._ref = weakref.ref
        self._known: dict[int, tuple[Any, Made]] = {id(tokens): (weakref.ref(tokens), TOKENS)}
        self.ops: list[Op] = []
        self.odd = ""
        """The first thing that can't be written down, and why."""

    def where(self, tensor: Any) -> Made | Outside:
        """Where a tensor comes from."""
        known = self._known.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else Outside(tensor)

    def note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Write down an op that was done."""
        if not self.odd:
            try:
                self._note(func, args, kwargs, out)
            except (Unfit, *ODD) as error:  # not in the midst of somebody's forward
                self.odd = (str(error).strip() or repr(error)).splitlines()[0][:200]

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        import torch

        op = Op(func, self._read(args), self._read(kwargs), [], [], isinstance(out, (tuple, list)), func.is_view)
        func = self._functional(op)
        outs = list(out) if op.many else [out]
        made = [one if isinstance(one, torch.Tensor) else None for one in outs]  # attention tells its longest lengths
        if len(self.ops) >= MOST_OPS or not any(one is not None for one in made):
            raise Unfit(f"{op.name} makes no tensor" if len(self.ops) < MOST_OPS else "it has too many ops")
        op.func = func
        op.shapes = [None if one is None else tuple(one.shape) for one in made]
        op.dtypes = [None if one is None else one.dtype for one in made]
        for at, one in enumerate(made):
            if one is not None:
                self._known[id(one)] = self._ref(one), Made(len(self.ops), at)
        self.ops.append(op)

    def _read(self, value: Any) -> Any:
        import torch

        if isinstance(value, torch.Tensor):
            if type(value) not in {torch.Tensor, torch.nn.Parameter} or value.layout != torch.strided:
                raise Unfit(f"it has a tensor of class {type(value).__name__}, {value.layout}")
            return self.where(value)
        if isinstance(value, (tuple, list)):
            return [self._read(item) for item in value]
        if isinstance(value, dict):
            return {name: self._read(item) for name, item in value.items()}
        if isinstance(value, torch.Generator):
            raise Unfit("it draws random numbers")
        return value

    def _functional(self, op: Op) -> Any:
        """The op itself, or what does not write to its argument where it does. Raises Unfit."""
        import torch

        func = op.func
        if func.namespace != "aten":
            raise Unfit(f"it calls {func}, whose meaning is not known")
        if torch.Tag.nondeterministic_seeded in func.tags and not op.name.startswith("_scaled_dot_product"):
            raise Unfit(f"it draws random numbers ({op.name})")
        if op.name in WAITS:
            raise Unfit(f"what it does hangs on values ({op.name})")
        if not func._schema.is_mutable:
            return func
        written = [at for at, arg in enumerate(func._schema.arguments) if arg.alias_info and arg.alias_info.is_write]
        functional = getattr(getattr(torch.ops.aten, op.name[:-1], None), func._overloadname, None)
        made = op.args[0] if op.args else None
        if written != [0] or not op.name.endswith("_") or functional is None or not isinstance(made, Made):
            raise Unfit(f"it writes to a tensor ({op.name})")
        views = [one for one in self.ops if one.view and isinstance(one.args[0], Made) and one.args[0] == made]
        if made == TOKENS or self.ops[made.op].view or views:
            raise Unfit(f"it writes to a tensor of which there are views ({op.name})")
        return functional


def taped(tape: Tape, seen: Any = None) -> Any:
    """A context in which ops are done and written down. seen: called with an op's number, the op, its arguments
    and its output."""
    return _mode()(tape, seen)


@cache
def _mode() -> Any:
    """One class for all: a class is garbage that waits for the collector, with all that its methods see."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self, tape: Tape, seen: Any) -> None:
            super().__init__()
            self.tape, self.seen = tape, seen

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if func._can_decompose():  # in inference mode ops that consist of others come as they are
                with self:
                    out = func.decompose(*args, **kwargs)
                if out is not NotImplemented:
                    return out
            out = func(*args, **kwargs)
            self.tape.note(func, args, kwargs, out)
            if self.seen is not None and not self.tape.odd:
                self.seen(len(self.tape.ops) - 1, func, args, kwargs, out)
            return out

    return Mode


@dataclass
class Growing:
    """An op whose numbers are known for every length."""

    func: Any
    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    shapes: list[Sizes | None]
    dtypes: list[Any]
    many: bool
    uses: set[Made]


def beside(shorter: Tape, longer: Tape, length: int) -> list[Growing]:
    """What two tapes have in common, of a sequence of `length` tokens and of one more. Raises Unfit."""
    for tape in (shorter, longer):
        if tape.odd:
            raise Unfit(tape.odd)
    if [op.func for op in shorter.ops] != [op.func for op in longer.ops]:
        raise Unfit("it does other ops for a longer sequence")
    found = []
    for one, other in zip(shorter.ops, longer.ops, strict=True):
        pair = _Pair(length)
        args, kwargs = pair.same(one.args, other.args), pair.same(one.kwargs, other.kwargs)
        shapes = [a if a is None else tuple(pair.same(a, b)) for a, b in zip(one.shapes, other.shapes, strict=True)]
        if one.dtypes != other.dtypes or one.many != other.many:
            raise Unfit(f"{one.name} returns something else for a longer sequence")
        found.append(Growing(one.func, one.name, args, kwargs, shapes, one.dtypes, one.many, pair.uses))
    return found


def outside_of(tape: Tape) -> dict[int, Any]:
    """Tensors that no op of a tape made, by identity."""
    leaves = (leaf for op in tape.ops for leaf in each([op.args, op.kwargs]))
    return {id(leaf.tensor): leaf.tensor for leaf in leaves if isinstance(leaf, Outside)}


def alike(ops: Sequence[Growing], tape: Tape, length: int) -> bool:
    """Whether a tape of a sequence of so many tokens is what is known for every length."""
    if tape.odd or len(tape.ops) != len(ops):
        return False
    return all(
        one.func is other.func
        and one.dtypes == other.dtypes
        and _alike([one.args, one.kwargs], [other.args, other.kwargs], length)
        and _alike([x and list(x) for x in one.shapes], [x and list(x) for x in other.shapes], length)
        for one, other in zip(ops, tape.ops, strict=True)
    )


def _alike(a: Any, b: Any, length: int) -> bool:
    if isinstance(a, Size):
        return type(b) is int and b == a.at(length)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_alike(a[name], b[name], length) for name in a)
    if type(a) in {list, tuple}:
        same = type(b) in {list, tuple} and len(a) == len(b)
        return same and all(_alike(x, y, length) for x, y in zip(a, b, strict=True))
    return _same(a, b)


def _same(a: Any, b: Any) -> bool:
    """Whether two leaves of arguments are the same, and of a kind that can be told apart."""
    import torch

    if type(a) is not type(b):
        return False
    if isinstance(a, Outside):
        return a.tensor is b.tensor or _equal(a.tensor, b.tensor)
    if isinstance(a, Made):
        return bool(a == b)
    plain = (*PLAIN, torch.dtype, torch.device, torch.layout, torch.memory_format)
    return isinstance(a, plain) and repr(a) == repr(b)


class _Pair:
    """Two values of the same place."""

    def __init__(self, length: int) -> None:
        self._length = length
        self.uses: set[Made] = set()

    def same(self, a: Any, b: Any) -> Any:
        if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
            return {name: self.same(a[name], b[name]) for name in a}
        if type(a) in {tuple, list} and type(a) is type(b) and len(a) == len(b):
            return [self.same(x, y) for x, y in zip(a, b, strict=True)]
        if type(a) is int and type(b) is int and a != b:
            return Size(b - a, a - (b - a) * self._length)
        if _same(a, b):
            if isinstance(a, Made):
                self.uses.add(a)
            return a
        raise Unfit("it works with other values for a longer sequence")


def _equal(a: Any, b: Any) -> bool:
    """Whether both are the same numbers of Python's, made anew in each forward: `x[:, [-1]]` makes them where x is."""
    import torch

    small = a.device == b.device and all(one.numel() <= SMALL for one in (a, b))
    return small and a.dtype == b.dtype and torch.equal(a, b)


def each(value: Any) -> Iterator[Any]:
    """The leaves of arguments."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from each(item)
    else:
        yield value


def put(value: Any, leaf: Any) -> Any:
    """Arguments with `leaf(value)` for each of their leaves."""
    if isinstance(value, dict):
        return {name: put(item, leaf) for name, item in value.items()}
    if isinstance(value, list):
        return [put(item, leaf) for item in value]
    return leaf(value)


def at_length(sizes: Sequence[int | Size], length: int) -> list[int]:
    """Shapes of a sequence of so many tokens."""
    return [size.at(length) if isinstance(size, Size) else size for size in sizes]
