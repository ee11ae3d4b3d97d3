"""The lever bf16-autocast: what it may win."""

import pytest
from contexts import context

from hotlap.levers.precision.bf16_autocast import LEVER

LEAST = 0.02  # of a step, of which a lever is tried


@pytest.mark.parametrize("other", ["graph-training", "compile"])
def test_where_launches_are_the_bound_it_wins_beside_what_makes_none(other: str) -> None:
    alone = context(cuda=True, active={"tf32": {}}, bound="launch")
    beside = context(cuda=True, active={"tf32": {}, other: {}}, bound="launch")
    computing = context(cuda=True, active={"tf32": {}, other: {}})
    assert LEVER.share(alone) < LEAST < LEVER.share(beside) == LEVER.share(computing)


def test_tf32_leaves_less_to_win() -> None:
    assert LEVER.share(context(cuda=True, active={"tf32": {}})) < LEVER.share(context(cuda=True)) / 2
