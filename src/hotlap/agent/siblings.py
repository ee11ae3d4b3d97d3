"""Products of one shape with weights of their own, called from one line, of which none needs what others make: as the
members of an ensemble, or heads, that are run one after another."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final

import torch

from .dead import Made
from .op_call import Chain, OpCall, Place
from .torch_internals import base_of, is_plain, storage

FEWEST: Final = 4
"""Calls, and weights, of one shape from one line."""
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


def _groups(ops: Sequence[Made]) -> dict[tuple[Chain, Any], dict[int, frozenset[int]]]:
    """By frames and shapes, the products with weights, and which."""
    weights_in: dict[int, frozenset[int]] = {}
    groups: defaultdict[tuple[Chain, Any], dict[int, frozenset[int]]] = defaultdict(dict)
    for at, made in enumerate(ops):
        if made.multiplied is None:
            continue
        shapes, given = made.multiplied
        weights = frozenset(given).union(*(weights_in.get(one, ()) for one in made.reads))
        if shapes is None:
            weights_in.update(dict.fromkeys(made.writes, weights))
        elif weights and made.chain:
            groups[made.chain, shapes][at] = weights
    return groups


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
