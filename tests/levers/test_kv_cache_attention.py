"""The lever kv-cache: attention by hand in the last token's work as one kernel, and the largest of a row in parts."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.levers.test_kv_cache import (
    DIM,
    HEADS,
    Decoder,
    Model,
    by_hand,
    fused,
    made_anew,
    prompt,
    rotated,
    windowed,
)

from hotlap.levers import _prefix_attention, _prefix_compiled
from hotlap.levers._prefix_compiled import compiled, largest


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(_prefix_attention, "suits", lambda device: True)
    monkeypatch.setattr(torch, "compile", lambda forward, **_: forward)
    with torch.no_grad():
        yield


class Fuses(Decoder):
    """Compiles nothing, and keeps the graph that a compiler would be given."""

    def __init__(self, attend: Callable[..., Any], half: bool = False) -> None:
        self.graphs: list[Any] = []
        model = Model(attend)

        def forward(tokens: Any) -> Any:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half):
                return model(tokens)

        super().__init__(model, forward, compiler=self._compile)
        for _ in range(3):
            self.go(prompt(), 20, most=0.05 if half else 1e-4)

    def _compile(self, work: Any, token: Any, place: Any) -> Any:
        made = compiled(work, token, place)
        self.graphs.append(made.__self__.graph)  # type: ignore[attr-defined]
        return made

    def count(self, name: str) -> int:
        """Of calls in the graph."""
        assert len(self.graphs) == 1 and not self.why
        return sum(name in str(node.target) for node in self.graphs[0].nodes)


def _finite(q: Any, k: Any, v: Any, mask: Any) -> Any:
    length = q.shape[2]
    scores = (q / 2) @ k.mT * 0.5 * 3
    return torch.where(mask[0, 0, :length, :length] > 0, scores, -1e9).softmax(-1) @ v


def _in_float(q: Any, k: Any, v: Any, mask: Any) -> Any:
    length = q.shape[2]
    scores = (q @ k.mT).float().masked_fill(mask[0, :, :length, :length] == 0, torch.finfo(torch.float32).min)
    return torch.softmax(scores * 0.4, -1, dtype=torch.float32).type_as(q) @ v


@pytest.mark.parametrize("attend", [by_hand, made_anew, windowed, _finite, _in_float])
def test_attention_of_the_last_token_is_one_call(attend: Callable[..., Any]) -> None:
    decoder = Fuses(attend, half=True)
    assert decoder.count("scaled_dot_product") == 2, "of each layer"
    assert decoder.count("softmax") == decoder.count("bmm") == decoder.count("aten.sum") == 0
    assert decoder.cached.cached >= 40


def test_masks_that_are_alike_are_made_once() -> None:
    decoder = Fuses(by_hand, half=True)
    assert decoder.count("constant") > 0 and decoder.count("index_select") == 3, "of positions, and a mask for each"
    masks = {node.args[0] for node in decoder.graphs[0].nodes if "index_select" in str(node.target)}
    assert len(masks) == 2


def _slopes(q: Any, k: Any, v: Any, mask: Any) -> Any:
    places = torch.arange(q.shape[2])
    far = (places[:, None] - places[None, :]).clamp(min=0)
    scores = q @ k.mT - torch.tensor([0.1, 0.2]).view(1, HEADS, 1, 1) * far
    return scores.masked_fill(places[None, :] > places[:, None], -math.inf).softmax(-1) @ v


def _turned(q: Any, k: Any, v: Any, mask: Any) -> Any:
    length = q.shape[2]
    return (q @ k.mT * -0.5).masked_fill(mask[0, 0, :length, :length] == 0, -math.inf).softmax(-1) @ v


def _capped(q: Any, k: Any, v: Any, mask: Any) -> Any:
    length = q.shape[2]
    scores = torch.tanh(q @ k.mT / 5) * 5
    return scores.masked_fill(mask[0, 0, :length, :length] == 0, -math.inf).softmax(-1) @ v


def _weighed(q: Any, k: Any, v: Any, mask: Any) -> Any:
    length = q.shape[2]
    return ((q @ k.mT).masked_fill(mask[0, 0, :length, :length] == 0, -math.inf).softmax(-1) * 1.25) @ v


def _looked_at(q: Any, k: Any, v: Any, mask: Any) -> Any:
    length = q.shape[2]
    weights = (q @ k.mT).masked_fill(mask[0, 0, :length, :length] == 0, -math.inf).softmax(-1)
    return weights @ v + (weights * weights) @ v


def _odd(q: Any, k: Any, v: Any, mask: Any) -> Any:
    both = by_hand(q[..., :3], k[..., :3], v, mask), by_hand(q, k, v[..., :5], mask)
    return torch.cat(both, -1)[..., : q.shape[-1]]


@pytest.mark.parametrize("attend", [rotated, _slopes, _turned, _capped, _weighed, _looked_at, _odd])
def test_what_is_something_else_stays_as_it_is(attend: Callable[..., Any]) -> None:
    """As a bias of other numbers than a mask's, which half precision would round."""
    decoder = Fuses(attend, half=True)
    assert decoder.count("scaled_dot_product") == 0 and decoder.count("softmax") > 0
    assert decoder.cached.cached >= 40


def test_attention_that_is_one_kernel_already_stays_that() -> None:
    assert Fuses(fused).count("scaled_dot_product") == 2


def test_other_devices_are_left_to_their_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(torch, "compile", lambda forward, **_: forward)
    assert Fuses(by_hand, half=True).count("scaled_dot_product") == 0
    for capability, version, there in (((9, 0), 91900, True), ((8, 0), 91900, False), ((9, 0), 91400, False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        monkeypatch.setattr(torch.backends.cudnn, "version", lambda found=version: found)
        assert _prefix_attention.suits(torch.device("cuda", 0)) == there


def test_single_precision_is_left_to_its_compiler() -> None:
    assert Fuses(by_hand).count("scaled_dot_product") == 0


def test_caches_lie_as_kernels_of_attention_ask_for() -> None:
    decoder = Fuses(by_hand)
    work = next(iter(decoder.cached._forms.values())).work
    assert work is not None
    caches = [cache for cache, _ in work.builder.caches.values()]
    assert len(caches) == 4 and {cache.dim for cache in caches} == {1, 2}, "keys are turned, and values are not"
    for cache in caches:
        assert cache.tensor.stride(cache.dim) == DIM // HEADS and cache.tensor.stride(3 - cache.dim) == 1


@pytest.mark.parametrize("columns", [1, 5, 63, 64, 65, 1000])
def test_the_largest_of_a_row_is_found_in_parts(columns: int) -> None:
    rows = torch.randint(-9, 9, (6, columns)).float()
    rows[0] = -math.inf
    rows[1] = 4.0
    assert torch.equal(largest(columns)(rows)[0], rows.argmax(-1, keepdim=True))


def test_the_largest_of_a_row_is_compiled_where_the_work_is() -> None:
    decoder = Fuses(by_hand)
    work = next(iter(decoder.cached._forms.values())).work
    assert work is not None and work.plain is not None
    rows = torch.randn(3, 50)
    compiling = _prefix_compiled.Compiling(lambda graph, rows: graph, lambda why: None)
    found = compiling.likeliest(work, rows)
    assert found is not None and torch.equal(found(rows), rows.argmax(-1, keepdim=True))

    def fails(graph: Any, rows: Any) -> Any:
        raise RuntimeError("no compiler")

    assert _prefix_compiled.Compiling(fails, lambda why: None).likeliest(work, rows) is None
    work.plain = None
    assert compiling.likeliest(work, rows) is None
