"""Which gradients the probe calls rounding: those of weights without effect, where the optimizer's eps tells."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from hotlap.agent.probe import NEIGHBOURS, _rounding, _sample

IMAGES, LABELS = torch.rand(32, 16, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 4


def learnt(model: nn.Module, make: Callable[..., torch.optim.Optimizer], **settings: float) -> torch.optim.Optimizer:
    """An optimizer of a model that has gradients."""
    functional.cross_entropy(model(IMAGES), LABELS).backward()
    return make(model.parameters(), **settings)


def places(optimizer: torch.optim.Optimizer) -> dict[int, list[int]]:
    """What `_rounding` says, by parameter; all of these have 32 elements sampled, or fewer."""
    counts = [min(32, len(p.reshape(-1))) for group in optimizer.param_groups for p in group["params"]]
    assert sum(counts) == len(_sample(optimizer))
    found, at, left = {}, 0, set(_rounding(optimizer))
    for index, count in enumerate(counts):
        found[index] = sorted(place - at for place in left if at <= place < at + count)
        at += count
    return {index: mine for index, mine in found.items() if mine}


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 4))


class Attends(nn.Module):
    """Three tokens of 8 features, attended by one query; the bias of the keys moves all scores alike."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.all, self.head = nn.Linear(8, 24), nn.Linear(8, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        query, key, value = self.all(images.reshape(-1, 2, 8)).chunk(3, dim=-1)
        return self.head(functional.scaled_dot_product_attention(query, key, value).mean(1))


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_a_bias_before_a_batch_norm_is_rounding_and_nothing_else_is(make: Callable[..., torch.optim.Optimizer]) -> None:
    assert places(learnt(normed(), make)) == {1: list(range(32))}


def test_so_is_the_part_of_a_bias_that_is_attention_keys() -> None:
    torch.manual_seed(0)
    assert places(learnt(Attends(), torch.optim.AdamW)) == {1: list(range(8, 16))}


def test_an_update_that_no_eps_takes_part_in_is_compared_whole() -> None:
    assert not places(learnt(normed(), torch.optim.SGD, lr=0.1))
    assert not places(learnt(normed(), torch.optim.Adam, eps=1e-20))


def test_gradients_that_vanish_from_layer_to_layer_are_learnt_from() -> None:
    torch.manual_seed(0)
    layers = [part for _ in range(12) for part in (nn.Linear(16, 16), nn.Sigmoid())]
    optimizer = learnt(nn.Sequential(*layers, nn.Linear(16, 4)), torch.optim.Adam)
    sizes = [float(p.grad.abs().max()) for p in optimizer.param_groups[0]["params"]]
    assert sizes[0] < 1e-8 and sizes[-1] > 1e-2 and len(sizes) > 4 * NEIGHBOURS
    assert len(_rounding(optimizer)) < 0.05 * len(_sample(optimizer)), "but for a few small ones of each layer"


def test_a_gradient_of_zero_is_rounding_only_beside_some() -> None:
    model = normed()
    optimizer = learnt(model, torch.optim.Adam)
    bias, head = model[0].bias.grad, model[3].weight.grad  # type: ignore[index, union-attr]
    bias[:5], head[0] = 0.0, 0.0  # type: ignore[index]
    assert places(optimizer) == {1: list(range(32))}
    bias.zero_()  # type: ignore[operator, union-attr]
    assert not places(optimizer), "as of an expert that no token went to, or a layer that begins with zeros"


def test_where_a_gradient_is_not_finite_or_not_there_nothing_is_left_out() -> None:
    for broken in (torch.full((32,), float("nan")), torch.full((32,), float("inf"))):
        model = normed()
        optimizer = learnt(model, torch.optim.Adam)
        model[1].bias.grad = broken  # type: ignore[index, union-attr]
        assert not places(optimizer)
        optimizer.zero_grad()
        assert not places(optimizer)


def test_sparse_gradients_are_no_reason_to_fail() -> None:
    table = nn.EmbeddingBag(8, 4, sparse=True)
    table(torch.arange(6).reshape(2, 3)).sum().backward()
    assert _rounding(torch.optim.SparseAdam(table.parameters())) == []
