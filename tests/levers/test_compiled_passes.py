"""What `compile` changes in captured graphs: constants on the device, bags of embeddings."""

from collections.abc import Callable, Iterator

import pytest
import torch
from test_constant_tensors import FORMS
from torch import nn
from torch.nn import functional

from hotlap.levers import _compiled_bags, _compiled_constants, compile
from hotlap.levers._compiled_bags import bags_as_sums
from hotlap.levers._compiled_constants import NAME, keep_on_device
from hotlap.levers._effects import Effects, watched
from hotlap.levers._forward_graph import _with_numbers
from hotlap.levers._graph import Compiled, Pass


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU stands for the device."""
    monkeypatch.setattr(_compiled_constants, "AWAY", ("cpu",))
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


HELD = {name: form for name, form in FORMS.items() if name not in {"a number", "moved with a dtype", "moved", "arange"}}


@pytest.mark.parametrize("mode", [None, "default"])
@pytest.mark.parametrize("form", HELD)
def test_constants_are_held_and_equal(form: str, mode: str | None) -> None:
    if mode and form not in {"tensors on the host as index", "a list to write to", "tensor"}:
        pytest.skip("the compiler is asked for three of them")
    seen = Seen(FORMS[form], keep_on_device, mode=mode)
    for step in range(3):
        both = []
        for call in (seen, FORMS[form]):
            x = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(step)).requires_grad_()
            y = call(x)
            y.float().square().sum().backward()
            both.append((y, x.grad))
        torch.testing.assert_close(both[0], both[1], rtol=1e-6, atol=1e-6)
    assert seen.named(NAME) and not seen.named("tensor of type") and not seen.named("tril_indices")


def test_lists_in_an_index_are_held() -> None:
    seen = Seen(FORMS["a list in an index"], keep_on_device)
    seen(torch.randn(2, 4, 4))
    assert "[0, 2" not in str(seen.graphs[0]) and seen.named(NAME)


def written(x: torch.Tensor) -> torch.Tensor:
    made = torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)
    made.add_(x.sum())
    return x * made


def test_what_the_script_writes_to_is_its_own_copy() -> None:
    seen, x = Seen(written, keep_on_device), torch.ones(2, 4)
    first = seen(x)
    assert torch.equal(seen(x), first) and torch.equal(first, written(x)) and seen.named(NAME)


def written_on_the_host(x: torch.Tensor) -> torch.Tensor:
    rows = torch.tensor([0, 1])
    rows.add_(1)
    return x[rows]


def by_a_number(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor(0.5) + torch.tensor([x.size(0)] * 4)


def given_back(x: torch.Tensor) -> torch.Tensor:
    rows = torch.tensor([0, 1])
    return x[rows] * 0 + rows.view(2, 1)


def one_of_them(x: torch.Tensor) -> torch.Tensor:
    rows = torch.tensor([0, 2])
    return x[rows[1]]


def masks(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    for mask in torch.tensor([[True, False, True, False], [False, True, False, True]]).unbind():
        y[:, mask] = 1.0
    return y


@pytest.mark.parametrize("form", [written_on_the_host, by_a_number, given_back, one_of_them, masks])
def test_others_compute_what_they_did(form: Callable[..., torch.Tensor]) -> None:
    seen = Seen(form, keep_on_device)
    for size in (4, 5, 6):
        x = torch.randn(size, 4)
        assert torch.equal(seen(x), form(x))


@pytest.mark.parametrize("form", [written_on_the_host, one_of_them, masks])
def test_others_stay_on_the_host(form: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compiled_constants, "AWAY", ("meta",))
    seen = Seen(form, keep_on_device)
    seen(torch.empty(4, 4, device="meta"))
    assert seen.graphs and not seen.named(NAME)


def index_written(x: torch.Tensor) -> torch.Tensor:
    rows = torch.tensor([0, 1], device=x.device)
    rows += 1
    return x[rows]


def index_written_between(x: torch.Tensor) -> torch.Tensor:
    rows = torch.tensor([[0, 1], [2, 3]], device=x.device)
    first = x[rows[0]]
    rows[0, 0] = 3
    return first + x[rows[0]]


def index_written_by_another_name(x: torch.Tensor) -> torch.Tensor:
    rows = torch.tensor([0, 1], device=x.device)
    same = rows.to(x.device)
    same += 1
    return x[rows]


@pytest.mark.parametrize("form", [index_written, index_written_between, index_written_by_another_name])
def test_an_index_that_the_script_writes_to(form: Callable[..., torch.Tensor]) -> None:
    seen, x = Seen(form, keep_on_device), torch.randn(4, 4)
    for _ in range(2):
        assert torch.equal(seen(x), form(x))


def test_what_is_moved_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compiled_constants, "AWAY", ("meta",))
    seen = Seen(lambda x: x * torch.tensor([1.0, 2.0]).to(x.device), keep_on_device)
    assert seen(torch.empty(3, 2, device="meta")).shape == (3, 2)
    assert seen.named(NAME) and not seen.named("tensor of type")


def test_large_ones_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compiled_constants, "MOST_BYTES", 16)
    seen = Seen(FORMS["tensors on the host as index"], keep_on_device)
    seen(torch.randn(2, 4, 4))
    assert not seen.named(NAME)


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


OUTSIDE = torch.tensor([0, 1])


def filled(x: torch.Tensor) -> torch.Tensor:
    rows = torch.tensor([2, 3])
    rows.copy_(OUTSIDE)
    return x[:, rows]


def changed(x: torch.Tensor) -> torch.Tensor:
    rows = torch.tensor([2, 3])
    rows += 1
    rows[0] = 0
    return x[:, rows - 1]


@pytest.mark.parametrize(("form", "waits"), [
    (lambda x: x[:, torch.tensor([[0, 1], [2, 3]])[0]], False),
    (lambda x: x[:, torch.tensor([0, 1]) + 1], False),
    (lambda x: x[:, OUTSIDE], True),
    (lambda x: x[:, torch.tensor([0, 1]) + OUTSIDE], True),
    (lambda x: x[:, torch.from_numpy(OUTSIDE.numpy())], True),
    (filled, True),
    (changed, False),
])  # fmt: skip
def test_copies_of_numbers_are_told_from_others(form: Callable[..., torch.Tensor], waits: bool) -> None:
    """The meta device stands for the other one."""
    effects = watched(nn.Linear(4, 4), form, (torch.randn(4, 4, device="meta"),), {})[1]
    assert "aten::index" in effects.copies and bool(effects.waits) == waits and not effects.odd


def test_graphs_are_recorded_of_what_keeps_its_numbers_on_the_device() -> None:
    kept, other = Constant(), Constant()
    compile._passes(kept)
    for module, waits in ((kept, ""), (other, "aten::index")):
        assert _with_numbers(Effects(copies="aten::index"), module).waits == waits
    assert _with_numbers(Effects(copies="aten::index", waits="item"), kept).waits == "item"


class Constant(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, [0, 2]]


def test_passes_only_where_the_code_names_something() -> None:
    assert compile._passes(nn.Linear(2, 2)) == []
    assert compile._passes(Constant()) == [keep_on_device]
    assert compile._passes(Bags(mode="sum")) == [bags_as_sums]
