"""Products of one shape with weights of their own, seen op by op: how many need nothing that the others make."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.agent.lines import Lines
from hotlap.agent.siblings import FEWEST, MANY

N = 6
X = torch.randn(4, 8)


class Member(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        keys = self.key(memory)
        score = self.query(x) @ keys.T
        return x + self.out(score.softmax(-1) @ memory)


MEMBERS = [Member() for _ in range(N)]
MORE = [Member() for _ in range(N)]
CONVOLUTIONS = [nn.Conv1d(4, 4, 3) for _ in range(N)]
LAYERS = [Attending() for _ in range(N)]


def times_of(step: Callable[[], Any]) -> dict[str, set[int]]:
    """By function of the products."""
    lines = Lines(operator.call)
    with lines.watching(ops=True):
        step()
    found: dict[str, set[int]] = {}
    for _, _, function, times, part, frames in lines.document()["siblings"]:
        found.setdefault(function.rpartition(".")[2], set()).add(times)
        assert 0 < part <= 1 and frames[-1][2] == function
    return found


def same_input() -> None:
    sum(one(X).sum() for one in MEMBERS).backward()


def own_rows() -> None:
    total = torch.zeros(())
    for one, x in zip(MEMBERS, torch.randn(N, 4, 8), strict=True):
        total = total + one(torch.cat([x, x])).sum()
    total.backward()


def over_a_horizon() -> None:
    states = list(torch.randn(N, 4, 8))
    for _ in range(3):
        states = [one(x) for one, x in zip(MEMBERS, states, strict=True)]


def one_group_after_another() -> None:
    x = X
    for group in (MEMBERS, MORE):
        x = torch.stack([one(x) for one in group]).mean(0)


def under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        [one(X) for one in MEMBERS]


@pytest.mark.parametrize("step", [same_input, own_rows, over_a_horizon, one_group_after_another, under_autocast])
def test_members_of_which_none_needs_what_the_others_make(step: Callable[[], None]) -> None:
    assert times_of(step) == {"forward": {N}}


def test_convolutions() -> None:
    def step() -> None:
        for one in CONVOLUTIONS:
            one(X[None, :, :])

    assert times_of(step) == {"step": {N}}


def layers() -> None:
    x = X
    for one in MEMBERS:
        x = one(x)


def through_memory() -> None:
    x = X.clone()
    for one in MEMBERS:
        x.copy_(one(x).detach())


def recurrent() -> None:
    state = None
    for at in range(4):
        _, state = RECURRENT(X[at][None, None], state)
    assert state is not None
    state.sum().backward()


RECURRENT = nn.GRU(8, 8, num_layers=2, bidirectional=True)


def test_the_products_of_a_recurrent_net_are_not_the_users_to_join() -> None:
    """Those with the states of all layers and directions need none of each other's results, within a time step."""
    assert times_of(recurrent) == {}


def test_products_without_weights_do_not_count() -> None:
    lines = Lines(operator.call)
    with lines.watching(ops=True):
        [one.layers[0](X) @ X.T for one in MEMBERS]
    assert [row[3:5] for row in lines.document()["siblings"]] == [(N, 1.0)]


@pytest.mark.parametrize("step", [layers, through_memory])
def test_layers_need_the_one_before(step: Callable[[], None]) -> None:
    assert times_of(step) == {"forward": {1}}


def test_of_layers_that_all_get_one_memory_other_products_need_the_layer_before() -> None:
    def step() -> None:
        x = X
        for one in LAYERS:
            x = one(x, X)

    assert times_of(step) == {"forward": {1, N}}


def one_for_all() -> None:
    [MEMBERS[0](x) for x in torch.randn(N, 4, 8)]


def few() -> None:
    [one(X) for one in MEMBERS[: (FEWEST - 1) // 2]]


def of_other_shapes() -> None:
    [MEMBERS[at].layers[0](torch.randn(at + 2, 8)) for at in range(N)]


@pytest.mark.parametrize("step", [one_for_all, few, of_other_shapes])
def test_what_is_no_group(step: Callable[[], None]) -> None:
    assert times_of(step) == {}


def samples_of(step: Callable[[], Any]) -> dict[str, set[int]]:
    """By function, how many products with the same weights need nothing that another made."""
    lines = Lines(operator.call)
    with lines.watching(ops=True):
        step()
    found: dict[str, set[int]] = {}
    for _, _, function, times, part, _ in lines.document()["samplewise"]:
        found.setdefault(function.rpartition(".")[2], set()).add(times)
        assert 0 < part <= 1
    return found


def sample_by_sample() -> None:
    torch.stack([MEMBERS[0](torch.randn(at + 2, 8)).mean(0) for at in range(MANY)]).sum().backward()


def one_after_another() -> None:
    x = X
    for _ in range(MANY):
        x = MEMBERS[0](x)


def read_of_each() -> None:
    seed = 0.0
    for _ in range(MANY):
        seed = MEMBERS[0](torch.full((4, 8), seed)).sum().item()


def by_hand() -> None:
    state = torch.zeros(4, 8)
    for x in torch.randn(MANY, 4, 8):
        state = (MEMBERS[0].layers[0](x) + MEMBERS[0].layers[1](state)).tanh()
    state.sum().backward()


def decodes() -> None:
    """As seq2seq with input feeding: it was told to be run sample by sample, as nothing needs the scores."""
    state, fed = None, torch.zeros(1, 4, 8)
    for _ in range(MANY):
        fed, state = DECODER(fed, state)
        MEMBERS[0].layers[0](fed)


DECODER = nn.GRU(8, 8)


def node(rows: torch.Tensor, depth: int) -> torch.Tensor:
    state = torch.zeros(1, 8)
    for _ in range(2 if depth else 0):
        state = state + node(rows, depth - 1)
    return (MEMBERS[0].layers[0](rows[depth]) + MEMBERS[0].layers[1](state)).tanh()


def trees() -> None:
    """A recursion over each of two samples, whose loss the host reads."""
    for rows in torch.randn(2, 4, 1, 8):
        node(rows, 3).sum().item()


def two_views() -> None:
    for x in torch.randn(2, 4, 8):
        MEMBERS[0](x)


@pytest.mark.parametrize(
    ("step", "found"),
    [
        (sample_by_sample, {"forward": {MANY}}),
        (one_after_another, {"forward": {1}}),
        (read_of_each, {"forward": {1}}),
        (two_views, {}),
        (by_hand, {"by_hand": {1, MANY}}),
        (decodes, {"decodes": {1, MANY}}),
        (trees, {"node": {5, 14}}),
    ],
)
def test_samples_that_a_model_is_given_one_by_one(step: Callable[[], None], found: dict[str, set[int]]) -> None:
    assert samples_of(step) == found
