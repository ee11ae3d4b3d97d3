"""`constant-tensors` gives what torch makes of numbers, leaves all else alone, and lets forwards be recorded. Here the
CPU is taken for a device that is copied to."""

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from contexts import ROOT, context
from fake_graphs import BEFORE, recorded
from msgspec.structs import replace
from torch import nn
from torch.utils.checkpoint import checkpoint

from agent.harness import Runner, check_clean, check_same
from hotlap.agent.model_code import ModelCode
from hotlap.agent.seams import Refused
from hotlap.levers import _constants, constant_tensors
from hotlap.levers._constants import COMPILED, NONE_SEEN, PATIENCE, Constants
from hotlap.levers._training_graph import GraphedTraining
from hotlap.records.run import Lever

FUNCTIONS = ("tensor", "as_tensor", "arange", "tril_indices", "triu_indices")
METHODS = ("__getitem__", "__setitem__", "new_tensor", "to", "cuda")


def standing() -> list[Any]:
    """What stands in torch's places now."""
    return [getattr(torch, name) for name in FUNCTIONS] + [getattr(torch.Tensor, name) for name in METHODS]


class Whole(nn.Module):
    """Its code makes the mode look from the beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[[0, 1]]


class In:
    """The lever, around functions of an input."""

    def __init__(self) -> None:
        self.whys: list[str] = []
        self.slow = 0
        self.constants = Constants(self.whys.append, self._slow)

    def _slow(self) -> None:
        self.slow += 1

    def __call__(self, forward: Callable[..., Any], module: nn.Module | None = None) -> Callable[..., Any]:
        return self.constants.wrap(module or Whole(), forward)

    @property
    def used(self) -> int:
        return self.constants.used


@pytest.fixture
def lever(monkeypatch: pytest.MonkeyPatch) -> Iterator[In]:
    monkeypatch.setattr(_constants, "AWAY", ("cpu",))
    before, found = standing(), In()
    yield found
    assert standing() == before and not torch._C._len_torch_function_stack()


def rows_and_columns(x: torch.Tensor) -> torch.Tensor:
    rows = torch.tensor([i for i in range(4) for j in range(i)])
    columns = torch.tensor([j for i in range(4) for j in range(i)])
    return x[:, rows, columns]


def set_rows(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, [0, 2]] = x[:, [1, 3]]
    return y


FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tensors on the host as index": rows_and_columns,
    "a list in an index": lambda x: x[:, [0, 2, 2]],
    "a list as index": lambda x: x[[1, 0]],
    "lists": lambda x: x[[0, 1], [1, 2]],
    "a negative one": lambda x: x[..., [-1, 0]],
    "a list to write to": set_rows,
    "tensor": lambda x: x * torch.tensor([0.1, 0.2, 0.3, -0.0], device=x.device),
    "a number": lambda x: x * torch.tensor(0.1, device="cpu"),
    "half": lambda x: x * torch.tensor([[0.1]], device=x.device, dtype=torch.float16),
    "moved": lambda x: x * torch.tensor(0.1).to(x) + torch.tensor([1, 2, 3, 4]).to("cpu"),
    "moved with a dtype": lambda x: x + torch.tensor(3).to(x.device, torch.float64) + torch.tensor(2).to(device="cpu"),
    "new_tensor": lambda x: x - x.new_tensor([1, 2, 3, 4]),
    "as_tensor": lambda x: x - torch.as_tensor([[1.5], [2], [True], [0]], dtype=x.dtype, device=x.device),
    "arange": lambda x: x[torch.arange(2), torch.arange(2, 4)],
    "views": lambda x: x[(slice(None), *torch.tril_indices(4, 4, -1).unbind())] + x[:, torch.arange(6)[2:3], 1],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_values_and_gradients_are_equal_over_steps(lever: In, form: Callable[[torch.Tensor], torch.Tensor]) -> None:
    forward, made = lever(form), 0
    for step in range(4):
        both = []
        for call in (forward, form):
            x = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(step)).requires_grad_()
            y = call(x)
            (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum().backward()
            both.append((y.detach(), x.grad))
        assert both[0][0].dtype == both[1][0].dtype
        assert all(torch.equal(a, b) for a, b in zip(*both, strict=True) if a is not None and b is not None)
        made = len(lever.constants.kept) if step == 0 else made
    assert lever.used >= 4 and len(lever.constants.kept) == made and lever.slow <= 2 * made, "made once"
    assert not lever.whys


def test_other_numbers_are_another_tensor(lever: In) -> None:
    forward = lever(lambda x, values: (torch.tensor(values, device="cpu"), x[values] if len(values) == 2 else None))
    x = torch.arange(6.0)
    for values in ([1, 2], [1, 3], [1, 2], [2, 1, 0], [1, 3]):
        made, rows = forward(x, values)
        assert made.tolist() == values
        assert rows is None or rows.tolist() == values
    assert lever.used == 9


def test_contents_are_told_apart_by_types_and_bits(lever: In) -> None:
    forward = lever(lambda data, **how: torch.tensor(data, device="cpu", **how))
    nests: list[Any] = [
        [True], [1], [1.0], True, 1, 1.0, [0.0], [-0.0], [[1]], [[1], [2]], [[1, 2]], ((1, 2),), (1, 2), [float("nan")],
        [1, 2.5], [True, 2], [2**40], [], [[]],
    ]  # fmt: skip
    for data in nests * 2:
        expected, made = torch.tensor(data), forward(data)
        assert made.dtype == expected.dtype and made.shape == expected.shape
        assert made.numpy().tobytes() == expected.numpy().tobytes()
    assert forward([1], dtype=torch.float16).dtype == torch.float16
    torch.set_default_dtype(torch.float64)
    try:
        assert forward([1.0]).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert forward([1.0]).dtype == torch.float32
    assert lever.used == 2 * len(nests) + 3


def test_what_the_script_does_to_a_tensor_is_its_own_affair(lever: In) -> None:
    held = []

    def body(x: torch.Tensor) -> torch.Tensor:
        one, other = torch.tensor([0, 1], device="cpu"), torch.tensor([0, 1], device="cpu")
        index = torch.tensor([0, 1])
        before = x[index]
        one += 5
        index.numpy()[0] = 1  # no version tells of it
        held.append((one, other))
        return torch.stack([before, x[index]])

    forward, x = lever(body), torch.arange(4.0)
    for _ in range(3):
        assert forward(x).tolist() == [[0, 1], [1, 1]]
    assert all(one.tolist() == [5, 6] and other.tolist() == [0, 1] for one, other in held)
    assert lever.used


def test_all_else_passes_through(lever: In) -> None:
    array, tensor = np.array([1, 2]), torch.tensor([3, 4])
    weight = nn.Parameter(torch.zeros(2))

    def body() -> list[Any]:
        array[0] += 1
        tensor[0] += 1
        leaf = torch.tensor([1.0], device="cpu", requires_grad=True)
        assert leaf.is_leaf and leaf.requires_grad
        made = [
            torch.tensor(array, device="cpu"), torch.as_tensor(array), torch.as_tensor(tensor), leaf.detach(),
            torch.tensor([array, array], device="cpu"), torch.tensor([np.float32(array[0])], device="cpu"),
            torch.tensor([weight[0], 1], device="cpu"), torch.tensor(range(2)), torch.arange(3, dtype=torch.int8),
            weight.new_tensor(array), weight[array % 2], weight[tensor > 3], weight[[True, False]], weight[0],
            torch.tensor(data=[1]), torch.tensor([1], device="meta"), torch.tensor(1, dtype=torch.int8).to(torch.int16),
        ]  # fmt: skip
        with pytest.raises((ValueError, TypeError)):
            torch.tensor([[1], [1, 2]], device="cpu")
        with pytest.raises(RuntimeError):
            torch.tensor([1], device="nonsense")
        with pytest.raises(TypeError):
            torch.tensor([1], nonsense=1)
        with pytest.raises(IndexError):
            weight[[7]]
        return made

    forward = lever(body)
    for step in range(3):
        made = forward()
        assert made[0].tolist() == made[1].tolist() == [step + 2, 2] and made[1].data_ptr() == array.ctypes.data
        assert made[2] is tensor and made[4][0].tolist() == [step + 2, 2] and made[5].dtype == torch.float32
        assert made[6].tolist() == [0, 1] and made[8].dtype == torch.int8 and made[15].is_meta
    assert lever.used == 3, "weight[[7]]"


def test_outside_of_the_forward_all_is_torchs(lever: In) -> None:
    functions = standing()[: len(FUNCTIONS)]
    seen: list[Any] = []

    def body(fail: bool) -> None:
        seen.append((torch.tensor([1], device="cpu"), torch.tensor is functions[0]))
        if fail:
            raise KeyError

    forward = lever(body)
    forward(False)
    assert not seen[-1][1]
    with pytest.raises(KeyError):
        forward(True)
    assert standing()[: len(FUNCTIONS)] == functions and not lever.constants._made
    used = lever.used
    x = torch.arange(4.0)
    assert x[[1, 2]].tolist() == torch.tensor([1.0, 2.0], device="cpu").to("cpu").tolist()
    assert x.new_tensor([1]).tolist() == [1] and lever.used == used


def test_other_threads_are_left_alone(lever: In) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        other = threading.Thread(target=lambda: (x[[3]], torch.tensor([9.0], device="cpu"), torch.arange(2)))
        other.start()
        other.join()
        return x[[1]]

    assert lever(body)(torch.arange(4.0)).tolist() == [1] and len(lever.constants.kept) == 1


def test_what_is_kept_is_bounded(lever: In, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_constants, "MOST", 5)
    monkeypatch.setattr(_constants, "MOST_BYTES", 100)
    forward = lever(lambda data: torch.tensor(data, device="cpu"))
    for i in range(20):
        assert forward([i]).tolist() == [i] and forward([7] * 500).tolist() == [7] * 500
    assert len(lever.constants.kept) == 5 and lever.constants.bytes < 500


def test_numbers_that_change_all_the_time_leave_steps_to_be_timed(lever: In) -> None:
    forward = lever(lambda i: torch.tensor([i], device="cpu"))
    for i in range(3 * PATIENCE):
        assert forward(i).item() == i
    assert lever.slow == 2 * PATIENCE


def test_under_other_modes_transforms_and_inference_torch_makes_them(lever: In) -> None:
    from torch._subclasses import FakeTensorMode

    def under_fake() -> Any:
        with FakeTensorMode():
            return torch.tensor([1.0], device="cpu")

    forward = lever(lambda call: call())
    assert type(forward(under_fake)).__name__ == "FakeTensor"
    x = torch.arange(6.0).view(2, 3)
    vmapped = forward(lambda: torch.vmap(lambda row: row[[0, 1]] * torch.tensor([1.0, 2.0], device="cpu"))(x))
    assert vmapped.tolist() == [[0, 2], [3, 8]]
    gradient = forward(lambda: torch.func.grad(lambda v: (v * torch.tensor(2.0, device="cpu")).sum())(x))
    assert gradient.tolist() == [[2, 2, 2]] * 2
    with torch.inference_mode():
        assert forward(lambda: torch.tensor([1.0], device="cpu")).is_inference()
    with torch.device("meta"):
        assert forward(lambda: torch.tensor([1.0])).is_meta and torch.tensor([1.0]).is_meta
        assert forward(lambda: torch.arange(2)).is_meta
    assert not lever.used
    assert not forward(lambda: torch.tensor([1.0], device="cpu")).is_inference() and lever.used == 1


def test_checkpointed_parts_save_the_same_in_each_run(lever: In) -> None:
    part = nn.Linear(4, 4)

    def body(x: torch.Tensor) -> Any:
        def inner(y: torch.Tensor) -> torch.Tensor:
            rows = torch.tensor([2, 1])
            return part(y)[:, rows] * torch.tensor([1.0, 2.0], device="cpu")

        return checkpoint(inner, x, use_reentrant=False)

    x = torch.randn(3, 4)
    gradients = []
    for forward in (lever(body), body):
        part.zero_grad()
        forward(x).sum().backward()
        gradients.append(part.weight.grad)
    assert torch.equal(*gradients) and lever.used == 1


class Told(torch.Tensor):
    """Compares with what stands in torch's place."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in KNOWN:
            return KNOWN[func]
        return super().__torch_function__(func, types, args, kwargs)


KNOWN = {torch.Tensor.__getitem__: "an item", torch.Tensor.new_tensor: "a new one", torch.Tensor.to: "moved"}


def test_classes_of_tensors_are_told_what_they_know(lever: In) -> None:
    told = torch.zeros(3).as_subclass(Told)
    forward = lever(lambda x: [x[[1]], x.new_tensor([1]), x.to("cpu")])
    for call in (forward, lambda x: [x[[1]], x.new_tensor([1]), x.to("cpu")]):
        assert call(told) == ["an item", "a new one", "moved"]
    assert not lever.used
    forward(torch.zeros(3))
    assert lever.used == 2, "the mode looks"


def compiled_part(x: torch.Tensor) -> torch.Tensor:
    table = torch.tensor([0.5, 2.0], device=x.device) + x.new_tensor([1, 2]) + torch.as_tensor([1, 2])
    return x[:, [0, 1]] * table + x[:, torch.tensor([1, 1])] + torch.arange(2).to(x)


def test_the_compiler_sees_torch_as_it_is(lever: In) -> None:
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # of other tests
    compiled = torch.compile(compiled_part, backend="eager", fullgraph=True)
    x = torch.randn(3, 2)
    expected = compiled_part(x)
    forward = lever(lambda x: x[[0, 1, 2]])
    forward(x)
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert torch.equal(compiled(x), expected), "a loss, beside the forward"
        forward(x)
        assert torch.equal(compiled(x), expected) and lever.used == 2 and not lever.whys
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize("before", [False, True])
def test_where_something_in_the_forward_is_compiled_it_leaves(lever: In, before: bool) -> None:
    import torch._dynamo

    torch._dynamo.reset()
    there = standing()
    compiled = torch.compile(compiled_part, backend="eager", fullgraph=True)
    x = torch.randn(3, 2)
    if before:
        compiled(x)
    forward = lever(lambda x: torch.tensor([1.0], device="cpu") * compiled(x))
    for _ in range(3):
        assert torch.equal(forward(x), compiled_part(x))
    assert lever.whys == [COMPILED] and standing() == there
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert torch.equal(compiled(x), compiled_part(x))


def test_it_leaves_where_nothing_is_made(lever: In) -> None:
    there = standing()
    forward = lever(lambda x: x[0] + 1)
    for _ in range(PATIENCE + 2):
        forward(torch.zeros(2))
    assert lever.whys == [NONE_SEEN] and standing() == there


def test_a_model_on_the_host_is_left_alone() -> None:
    with pytest.raises(Refused, match="not on a CUDA device"):
        In()(lambda x: x)


class Interacting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 12)
        self.scale = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inside(x).view(-1, 3, 4)
        pairs = torch.bmm(y, y.transpose(1, 2))[:, torch.tensor([1, 2, 2]), torch.tensor([0, 0, 1])]
        return pairs * torch.tensor([self.scale, 1.0, 2.0], device=x.device) + y[:, [0], 0] + y.new_tensor(0.5)


def graphed(lever: In, model: nn.Module) -> GraphedTraining:
    return recorded(model, lever(model._call_impl, model), GraphedTraining, lever.whys)


def test_a_forward_with_them_is_recorded(lever: In, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording, a dispatch mode here, looks on. Another number in the model is another recording."""
    monkeypatch.setattr(_constants, "LOOKS_ON", (*_constants.LOOKS_ON, "fake_graphs"))
    torch.manual_seed(0)
    model = Interacting()
    twin = copy.deepcopy(model)
    forward = graphed(lever, model)
    for step in range(12):
        if step == 7:
            model.scale = twin.scale = 0.25
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
        for one in (forward, twin):
            loss = one(x).square().mean()
            loss.backward()
        assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
        for p in (*model.parameters(), *twin.parameters()):
            p.grad = None
    assert lever.used and not lever.whys and forward.replays == 12 - 2 * BEFORE and forward.changes == 1


class Indexed(nn.Module):
    """how: to index by."""

    def __init__(self, how: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 4)
        self.how = how

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.inside(x)[self.how(lengths)]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (lambda lengths: lengths, ""),
        (lambda lengths: torch.cat([lengths, lengths]) > 0, "the host waits for the device in it (aten::index)"),
        (lambda lengths: lengths.tolist(), "the host waits for the device in it (tolist)"),
        (lambda lengths: slice(int(lengths.numpy()[0])), "the host waits for the device in it (numpy)"),
    ],
)
def test_what_may_be_recorded(lever: In, how: Callable[[torch.Tensor], Any], why: str) -> None:
    """Rows by integers are as many as these; values of arguments must not become a part of the record."""
    model = Indexed(how)
    forward = graphed(lever, model)
    for step in range(BEFORE + 3):
        x, lengths = torch.randn(4, 4), torch.tensor([step % 3, 1])
        assert torch.equal(forward(x, lengths), model(x, lengths) if why else model.inside(x)[lengths])
    assert lever.whys == ([why] if why else []) and bool(forward.replays) is not bool(why)


def test_a_script_trains_the_same(runner: Runner) -> None:
    before = "import hotlap.levers._constants as own; own.AWAY, own.PATIENCE = ('cpu',), 1"  # or it leaves, a problem
    bare = runner.bare("constants.py")
    ran = runner.forked("constants.py", before=before, levers=(Lever(name="constant-tensors"),))
    check_clean(ran)
    check_same(ran, bare)
    assert ran.facts.roots[0].constants and (ran.ranks[0] / "levers.jsonl").exists()


def test_beside_the_compiler_it_leaves(runner: Runner) -> None:
    before = "import torch, hotlap.levers._constants as own, hotlap.levers._graph as graph; own.AWAY = ('cpu',); "
    before += "graph.Compiled._compile = lambda self: torch.compile(self._original, backend='eager', fullgraph=True)"
    bare = runner.bare("constants.py")
    levers = (Lever(name="constant-tensors"), Lever(name="compile", settings={"mode": "default"}))
    ran = runner.forked("constants.py", before=before, levers=levers)
    check_same(ran, bare)
    assert [(problem.lever, problem.what) for problem in ran.problems] == [("constant-tensors", f"Refused: {COMPILED}")]
    assert '"left_out"' in (ran.ranks[0] / "levers.jsonl").read_text()


def test_a_script_on_the_host_is_left_alone(runner: Runner) -> None:
    bare = runner.bare("constants.py")
    ran = runner.forked("constants.py", levers=(Lever(name="constant-tensors"),))
    check_same(ran, bare)
    assert [problem.what for problem in ran.problems] == ["Refused: the model is not on a CUDA device"]


def test_it_applies_where_the_code_of_the_model_makes_such(lever: In) -> None:
    makes = (replace(ROOT, constants=True),)
    assert constant_tensors.LEVER.applies(context(True, roots=makes)).yes
    assert "copied" in constant_tensors.LEVER.applies(context(False, roots=makes)).why
    assert "compile keeps" in constant_tensors.LEVER.applies(context(True, roots=makes, active={"compile": {}})).why
    assert "makes no tensors" in constant_tensors.LEVER.applies(context(True)).why
    assert not constant_tensors.LEVER.applies(context(True, roots=(replace(ROOT, constants=True, compiled=True),))).yes


class ByList(nn.Module):
    def forward(self, x: torch.Tensor, i: int) -> torch.Tensor:
        return x[:, [0, 2, 5]] if i else x[[i, 0], :]


class ByNothing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x[0], x[1]]
        return torch.cat(parts)[:2]


class ByHeld(nn.Module):
    def __init__(self, rows: Any = (2, 0)) -> None:
        super().__init__()
        self.rows, self.weight = list(rows), nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, self.rows]


class ByOneOfHeld(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = [2, 0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[self.rows[0]] + len(self.rows)


def test_the_code_of_the_model_is_read() -> None:
    assert ModelCode([Interacting()]).constants and ModelCode([ByList()]).constants and ModelCode([ByHeld()]).constants
    assert not ModelCode([ByNothing(), nn.Linear(2, 2)]).constants
    assert not ModelCode([ByOneOfHeld()]).constants and not ModelCode([ByHeld(["a"])]).constants


def test_a_list_that_a_module_holds_is_kept_as_an_index(lever: In) -> None:
    module = ByHeld()
    forward = lever(module.forward, module)
    x = torch.arange(6.0).reshape(2, 3)
    for _ in range(3):
        assert torch.equal(forward(x), x[:, [2, 0]])
    assert lever.used == 3 and len(lever.constants.kept) == 1


def test_the_source_that_it_shows_computes_the_same() -> None:
    class Model(nn.Module):
        pass

    names: dict[str, Any] = {"torch": torch, "self": Model(), "x": torch.randn(3, 6)}
    exec(constant_tensors.LEVER.source({}), names)
    assert torch.equal(names["y"], names["x"][:, [0, 2, 5]])
    assert not names["self"].state_dict()
