"""Products called from one line of which none needs what others make. Of one shape with weights of their own: the
members of an ensemble, or heads, that are run one after another. With the same weights: samples that a model is given
one by one."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from .dead import Made
from .op_call import CASTS, Chain, OpCall, Place, is_weight
from .torch_internals import is_plain, storage

FEWEST: Final = 4
"""Calls, and weights, of one shape from one line."""
MANY: Final = 8
"""Calls with the same weights: two views of a batch, or a few crops, are no samples."""
MOST_GROUPS: Final = 24
"""Lines and shapes that are looked at: each takes a walk over the step's ops."""

Multiplied = tuple[Any, tuple[int, ...]]
"""Of a product: its name and shapes; None of a cast. And which weights it is given, by storage."""
Members = dict[int, frozenset[int]]
"""Products, by where they are among the ops, and the weights, or samples, of each."""
Groups = defaultdict[tuple[Chain, Any], Members]
"""By frames, and what they have in common."""


def multiplied(call: OpCall) -> Multiplied | None:
    """Of an op that multiplies with weights, or casts them."""
    at = call.factors
    if call.name == CASTS:
        those = call.args[:1]
    elif call.name == "aten::convolution":
        those = call.args[:2]
    elif at is not None:
        those = call.args[at : at + 2]
    else:
        return None
    if not all(map(is_plain, those)):
        return None
    weights = tuple(storage(one) for one in those if is_weight(one))
    return None if call.name == CASTS else (call.name, *(one.shape for one in those)), weights


def rows(ops: Sequence[Made]) -> list[tuple[Any, ...]]:
    """Of each line with such products, most first: the line; with how many weights of their own they could be one
    product, in the mean over those that need each other, 1 where all do; of the line's products with weights, the part
    that they are; and the user's frames."""
    groups: Groups = defaultdict(dict)
    for at, shapes, weights in _products(ops):
        if not ops[at].recurrent:  # the products of torch's own nets are not the user's to join
            groups[ops[at].chain, shapes][at] = weights
    return _rows(ops, groups, FEWEST)


def samplewise(ops: Sequence[Made]) -> list[tuple[Any, ...]]:
    """As `rows`, of lines with as many products with the same weights. What the host reads of one the next may need."""
    groups: Groups = defaultdict(dict)
    for at, _, weights in _products(ops):
        groups[tuple(dict.fromkeys(ops[at].chain)), weights][at] = frozenset({at})  # each call of a recursion once
    return _rows(ops, groups, MANY, lambda members: _unread(ops, members))


def _rows(
    ops: Sequence[Made],
    groups: Groups,
    least: int,
    runs: Callable[[Members], Iterable[Members]] = lambda members: [members],
) -> list[tuple[Any, ...]]:
    """As `rows`, of groups with so many different ones. runs: of a group, of which none may need another run's."""
    at_line, found = Counter[Place](), Counter[tuple[Chain, int]]()
    for (chain, _), members in groups.items():
        at_line[chain[-1]] += sum(ops[at].size for at in members)
    several = (key for key, members in groups.items() if len(set(members.values())) >= least)
    for key in sorted(several, key=lambda key: -len(groups[key]))[:MOST_GROUPS]:
        times = max(_together(ops, one) for one in runs(groups[key]))
        found[key[0], times] += sum(ops[at].size for at in groups[key])
    return [(*chain[-1], times, size / at_line[chain[-1]], chain) for (chain, times), size in found.most_common()]


def _products(ops: Sequence[Made]) -> Iterator[tuple[int, Any, frozenset[int]]]:
    """Those with weights: where among the ops, their shapes, and which weights."""
    weights_in: dict[int, frozenset[int]] = {}
    for at, made in enumerate(ops):
        if made.multiplied is None:
            continue
        shapes, given = made.multiplied
        weights = frozenset(given).union(*(weights_in.get(one, ()) for one in made.reads))
        if shapes is None:
            weights_in.update(dict.fromkeys(made.writes, weights))
        elif weights and made.chain:
            yield at, shapes, weights


def _unread(ops: Sequence[Made], members: Members) -> list[Members]:
    """Those between two of the host's readings of what hangs on them: it may have made the next one's input, as an
    environment does of an action."""
    runs, of_them = [Members()], set[int]()
    for at in range(min(members), max(members) + 1):
        made = ops[at]
        if at in members:
            runs[-1][at] = members[at]
            of_them.update(made.writes)
        elif not of_them.isdisjoint(made.reads):
            of_them.update(made.writes)
            if made.kept:
                runs.append(Members())
                of_them.clear()
    return [one for one in runs if one]


def _together(ops: Sequence[Made], members: Members) -> int:
    """How many different weights those have, in the mean, that come after as many others that they need."""
    level: dict[int, int] = {}
    at_level: defaultdict[int, set[frozenset[int]]] = defaultdict(set)
    for at in range(min(members), len(ops)):
        made = ops[at]
        after = max((level[one] for one in made.reads if one in level), default=0)
        if at in members:
            after += 1
            at_level[after].add(members[at])
        if after:
            level.update(dict.fromkeys(made.writes, after))
    return round(sum(map(len, at_level.values())) / len(at_level))
