"""Products called from one line of which none needs what others make. Of one shape with weights of their own: the
members of an ensemble, or heads, that are run one after another. With the same weights: samples that a model is given
one by one."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from .dead import Made
from .op_call import Chain, OpCall, Place
from .torch_internals import base_of, is_plain, storage

FEWEST: Final = 4
"""Calls, and weights, of one shape from one line."""
MANY: Final = 8
"""Calls with the same weights: two views of a batch, or a few crops, are no samples."""
MOST_GROUPS: Final = 24
"""Lines and shapes that are looked at: each takes a walk over the step's ops."""
CASTS: Final = "aten::_to_copy"

Multiplied = tuple[Any, tuple[int, ...]]
"""Of a product: its name and shapes; None of a cast. And which weights it is given, by storage."""


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
    weights = tuple(storage(one) for one in those if _is_weight(one) or _is_weight(base_of(one)))
    return None if call.name == CASTS else (call.name, *(one.shape for one in those)), weights


def _is_weight(one: Any) -> bool:
    return isinstance(one, torch.nn.Parameter)


def rows(ops: Sequence[Made]) -> list[tuple[Any, ...]]:
    """Of each line with such products, most first: the line; with how many weights of their own they could be one
    product, in the mean over those that need each other, 1 where all do; of the line's products with weights, the part
    that they are; and the user's frames."""
    at_line, found = Counter[Place](), Counter[tuple[Chain, int]]()
    groups = _groups(ops)
    for (chain, _), members in groups.items():
        at_line[chain[-1]] += sum(ops[at].size for at in members)
    several = (key for key, members in groups.items() if len(set(members.values())) >= FEWEST)
    for key in sorted(several, key=lambda key: -len(groups[key]))[:MOST_GROUPS]:
        found[key[0], _together(ops, groups[key])] += sum(ops[at].size for at in groups[key])
    return [(*chain[-1], times, size / at_line[chain[-1]], chain) for (chain, times), size in found.most_common()]


def samplewise(ops: Sequence[Made]) -> list[tuple[Any, ...]]:
    """As `rows`, of lines with as many products with the same weights."""
    at_line, groups = Counter[Place](), defaultdict[tuple[Chain, frozenset[int]], list[int]](list)
    for at, _, weights in _products(ops):
        at_line[ops[at].chain[-1]] += ops[at].size
        groups[ops[at].chain, weights].append(at)
    found, several = Counter[tuple[Chain, int]](), [key for key, members in groups.items() if len(members) >= MANY]
    for key in sorted(several, key=lambda key: -len(groups[key]))[:MOST_GROUPS]:
        members = groups[key]
        times = _together(ops, {at: frozenset({at}) for at in members})
        if times >= MANY and not _read_between(ops, members):
            found[key[0], times] += sum(ops[at].size for at in members)
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


def _groups(ops: Sequence[Made]) -> dict[tuple[Chain, Any], dict[int, frozenset[int]]]:
    """By frames and shapes, the products with weights, and which."""
    groups: defaultdict[tuple[Chain, Any], dict[int, frozenset[int]]] = defaultdict(dict)
    for at, shapes, weights in _products(ops):
        groups[ops[at].chain, shapes][at] = weights
    return groups


def _read_between(ops: Sequence[Made], members: Sequence[int]) -> bool:
    """Whether the host reads what hangs on one of them before the last of them: it may have made the next one's input,
    as an environment does of an action."""
    of_them, own = set[int](), set(members)
    for at in range(members[0], members[-1]):
        made = ops[at]
        if at in own or not of_them.isdisjoint(made.reads):
            if made.kept and at not in own:
                return True
            of_them.update(made.writes)
    return False


def _together(ops: Sequence[Made], members: dict[int, frozenset[int]]) -> int:
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
