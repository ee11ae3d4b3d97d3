"""What `compile` changes in captured graphs: bags of embeddings."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional

from hotlap.levers.compiler import _compiled_bags, compile
from hotlap.levers.compiler._compiled_bags import bags_as_sums
from hotlap.levers.compiler._graph import Compiled, Pass


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU stands for the device."""
    monkeypatch.setattr(_compiled_bags, "AWAY", ("cpu",))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Seen:
    """A compiled function, its graphs after the passes."""

    def __init__(self, function: Callable[..., torch.Tensor], *passes: Pass, mode: str | None = None) -> None:
        self.graphs: list[torch.fx.Graph] = []
        self.compiled = Compiled(function, mode, (*passes, lambda module, inputs: self.graphs.append(module.graph)))

    def __call__(self, *args: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.compiled(*args)
        return result

    def named(self, name: str) -> list[torch.fx.Node]:
        return [node for graph in self.graphs for node in graph.nodes if name in str(node.target)]


class Bags(nn.Module):
    """Two tables of different size."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(rows, 8, **options) for rows in (11, 300)])

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return torch.stack([table(indices % table.num_embeddings) for table in self.tables], dim=1)


@pytest.mark.parametrize("mode", [None, "default"])
@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_bags_are_sums_of_rows(kind: str, mode: str | None) -> None:
    torch.manual_seed(0)
    model = Bags(mode=kind)
    seen = Seen(model._call_impl, bags_as_sums, mode=mode)
    indices = torch.randint(0, 300, (32, 5))
    both = []
    for call in (seen, model):
        model.zero_grad()
        y = call(indices)
        y.square().sum().backward()
        both.append([y, *(p.grad for p in model.parameters())])
    torch.testing.assert_close(both[0], both[1], rtol=1e-5, atol=1e-5)
    assert len(seen.named("function embedding at")) == 2 and not seen.named("embedding_bag")


def test_a_sum_has_the_dtype_of_its_table() -> None:
    """Also under autocast, which adds in single precision on a GPU."""
    seen = Seen(lambda i, t: functional.embedding_bag(i, t, mode="sum"), bags_as_sums)
    assert seen(torch.randint(0, 20, (6, 5)), torch.randn(20, 4).bfloat16()).dtype == torch.bfloat16
    assert [node.kwargs for node in seen.named("sum")] == [{"dtype": torch.bfloat16}]


def with_offsets(indices: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return functional.embedding_bag(indices.view(-1), table, torch.arange(0, indices.numel(), 5), mode="sum")


NOT_TAKEN: dict[str, Callable[..., torch.Tensor]] = {
    "offsets": with_offsets,
    "max": lambda i, t: functional.embedding_bag(i, t, mode="max"),
    "weights": lambda i, t: functional.embedding_bag(i, t, mode="sum", per_sample_weights=torch.ones(i.shape)),
    "padding": lambda i, t: functional.embedding_bag(i, t, padding_idx=0),
    "frequency": lambda i, t: functional.embedding_bag(i, t, scale_grad_by_freq=True),
    "the old order": lambda i, t: functional.embedding_bag(t, i),
    "few rows": lambda i, t: functional.embedding_bag(i.remainder(2).repeat(1000, 1), t[:2]),
}


@pytest.mark.parametrize("form", NOT_TAKEN)
def test_other_bags_stay(form: str) -> None:
    seen = Seen(NOT_TAKEN[form], bags_as_sums)
    indices, table = torch.randint(0, 20, (6, 5)), torch.randn(20, 4)
    torch.testing.assert_close(seen(indices, table), NOT_TAKEN[form](indices, table))
    assert seen.named("embedding_bag")


def test_deterministic_algorithms_keep_their_kernels() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        seen = Seen(Bags(mode="sum"), bags_as_sums)
        seen(torch.randint(0, 10, (4, 5)))
        assert seen.named("embedding_bag")
    finally:
        torch.use_deterministic_algorithms(False)


def test_passes_only_where_the_code_names_something() -> None:
    assert compile._passes(nn.Linear(2, 2)) == []
    assert compile._passes(Bags(mode="sum")) == [bags_as_sums]
