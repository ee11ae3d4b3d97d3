"""Losses read while their backward runs, and batches that nobody waits for. The device is faked: it holds the CPU's
tensors, and a fetch is what they are as the event is reached."""

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
from contexts import context
from torch import nn

from agent.harness import Runner, check_same
from hotlap.agent.compiled import hide_from_compiler
from hotlap.agent.guard import Guard
from hotlap.levers.host._early_reads import (
    CHECK_EVERY,
    CHECKED,
    DIFFERENT,
    MOST_BYTES,
    NOTHING,
    PATIENCE,
    TWICE,
    Device,
    EarlyReads,
    moved,
)
from hotlap.levers.host.fewer_syncs import LEVER, patch
from hotlap.records.session import LeverUse


class Fake:
    """values: of a tensor that something wrote to since the event, by its address, what it was then."""

    def __init__(self) -> None:
        self.marks = self.fetched = 0
        self.capturing = False
        self.values: dict[int, Any] = {}
        self.staged_ones: list[Any] = []

    def holds(self, tensor: Any) -> bool:
        return bool(tensor.requires_grad or tensor.numel() == 1)

    def mark(self, place: Any) -> Any:
        self.marks += not self.capturing
        return None if self.capturing else self.marks

    def fetch(self, tensor: Any, after: Any) -> Any:
        assert after == self.marks and not tensor.requires_grad
        self.fetched += 1
        return self.values.get(tensor.data_ptr(), tensor).clone()

    def stages(self, tensor: Any, args: Any, kwargs: Any, always: bool) -> bool:
        return bool(args) and args[0] == "meta" and len(args) == 1 and not kwargs

    def staged(self, tensor: Any) -> Any:
        self.staged_ones.append(tensor.clone())
        return self.staged_ones[-1]


class Loop:
    """A training step in parts, with the patches in."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.device = Fake()
        self.whys: list[tuple[str, bool]] = []
        self.unsteady = 0
        self.reads = EarlyReads(self.device, lambda why, used: self.whys.append((why, used)), self._unsteady)
        self.model = nn.Linear(4, 1)
        self.view: Any = None
        guard = Guard()
        guard.report = lambda where, what, trace, lever: self.problems.append(what)
        self.problems: list[str] = []
        self.guarded = functools.partial(guard.spare, "lever", self.reads.fail)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    def _unsteady(self) -> None:
        self.unsteady += 1

    def loss(self) -> Any:
        return self.model(torch.randn(8, 4)).pow(2).mean()

    def step(self) -> Any:
        loss = self.loss()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def fetches(self, read: Callable[[], Any]) -> int:
        """How many early reads a read takes."""
        before = self.device.fetched
        read()
        return self.device.fetched - before


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    monkeypatch.setattr(torch.autograd, "_engine_run_backward", torch.autograd._engine_run_backward)
    for name in ("item", "__float__", "__int__", "cpu", "to", "cuda"):
        monkeypatch.setattr(torch.Tensor, name, getattr(torch.Tensor, name))
    for function in (patch, EarlyReads.covers):
        hide_from_compiler(function.__module__)
    one = Loop()
    patch(one.reads, one.guarded)
    yield one


@pytest.mark.parametrize("name", ["mark", "fetch", "staged"])
def test_an_error_of_its_own_is_not_the_script_s(loop: Loop, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was raised where the script reads its loss, moves a batch or calls backward, and ended the job."""

    def fails(*_: Any) -> None:
        raise AttributeError("this torch has no such thing")

    monkeypatch.setattr(loop.device, name, fails)
    values = [(loop.step().item(), torch.ones(2).to("meta").shape) for _ in range(4)]
    loop.reads.off = True
    again = Loop()
    assert values == [(again.step().item(), (2,)) for _ in range(4)]
    assert loop.problems == ["AttributeError: this torch has no such thing"]


# reads that are covered


READS: dict[str, Callable[[Any], Any]] = {
    "item": lambda loss: loss.item(),
    "float": float,
    "format": lambda loss: f"{loss:.9f}",
    "detached": lambda loss: loss.detach().item(),
    "cpu of what is detached": lambda loss: loss.detach().cpu(),
    "data": lambda loss: loss.data.item(),
}


@pytest.mark.parametrize("name", READS)
def test_a_loss_is_read_while_its_backward_runs(loop: Loop, name: str) -> None:
    values: list[Any] = []
    assert loop.fetches(lambda: values.extend(READS[name](loop.step()) for _ in range(40))) == 40
    loop.reads.off = True
    again = Loop()
    expected = [READS[name](again.step()) for _ in range(40)]
    assert values == expected, "the same values, to the bit"
    assert loop.unsteady == CHECKED and not loop.whys


def test_parts_of_a_loss_are_covered_by_its_backward(loop: Loop) -> None:
    first, second = loop.loss(), loop.loss()
    whole = (first + second) / 2
    whole.backward()
    for part in (first, second, whole, whole.view(1), whole.unsqueeze(0)[0]):
        assert loop.fetches(part.item) == int(part._base is None or part is not whole)
    scaled = loop.loss()
    (scaled * 1024.0).backward()  # as a GradScaler does
    assert loop.fetches(scaled.item) == 1


def test_what_was_read_before_later_backwards_stays_covered(loop: Loop) -> None:
    """A GAN: the discriminator's loss is read after the generator's step."""
    discriminator = loop.step()
    generator = loop.step()
    assert loop.fetches(discriminator.item) == loop.fetches(generator.item) == 1


# reads that have to wait


def accuracy(loop: Loop, loss: Any) -> Any:
    return (loop.model(torch.ones(1, 4)) > 0).float().mean()


def later(loop: Loop, loss: Any) -> Any:
    return loss * 2


def rewritten(loop: Loop, loss: Any) -> Any:
    with torch.no_grad():
        return loss.mul_(2)


def rewritten_detached(loop: Loop, loss: Any) -> Any:
    return loss.detach().mul_(2)


def next_loss(loop: Loop, loss: Any) -> Any:
    return loop.loss()


def parameter(loop: Loop, loss: Any) -> Any:
    return loop.model.bias


def view_of_parameter(loop: Loop, loss: Any) -> Any:
    return loop.view


def gradient(loop: Loop, loss: Any) -> Any:
    return loop.model.bias.grad


def many(loop: Loop, loss: Any) -> Any:
    return loop.model.weight.grad


def without_node(loop: Loop, loss: Any) -> Any:
    return torch.tensor(3.0)


WAITS = (
    accuracy, later, rewritten, rewritten_detached, next_loss, parameter, view_of_parameter, gradient, without_node,
)  # fmt: skip


@pytest.mark.parametrize("made", WAITS, ids=lambda made: made.__name__)
def test_what_came_later_is_waited_for(loop: Loop, made: Callable[[Loop, Any], Any]) -> None:
    loop.step()
    loop.view = loop.model.bias[0]  # its node is older than the loss
    loss = loop.step()
    tensor = made(loop, loss)
    expected = tensor.detach().numpy().copy()
    assert loop.fetches(tensor.item) == 0
    assert tensor.item() == expected.item()


def test_a_tensor_that_took_the_place_of_a_loss_is_not_it(loop: Loop) -> None:
    loop.step()  # its loss is gone
    others = [torch.tensor(float(n)) for n in range(64)]
    for n, other in enumerate(others):
        assert loop.fetches(other.item) == 0 and other.item() == n


def test_other_threads_wait(loop: Loop) -> None:
    loss = loop.step()
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(loop.fetches(loss.item)))
    thread.start()
    thread.join()
    assert found == [0] and loop.fetches(loss.item) == 1


def test_nothing_is_marked_in_a_capture_or_by_gradients_that_are_asked_for(loop: Loop) -> None:
    loop.device.capturing = True
    assert loop.fetches(loop.step().item) == 0
    loop.device.capturing = False
    loss = loop.loss()
    torch.autograd.grad(loss, list(loop.model.parameters()))
    assert loop.fetches(loss.item) == loop.device.marks == 0


def test_with_arguments_and_where_it_is_differentiated_a_copy_is_torchs_own(loop: Loop) -> None:
    loss = loop.step()
    assert loop.fetches(loss.cpu) == 0 and loss.cpu().grad_fn is not None
    assert loop.fetches(lambda: loss.detach().cpu(memory_format=torch.preserve_format)) == 0


# giving up


def test_gradients_that_are_differentiated_make_it_give_up(loop: Loop) -> None:
    """Their nodes are numbered by other threads."""
    loop.step()
    loop.loss().backward(create_graph=True)
    assert loop.whys == [(TWICE, False)]
    assert loop.fetches(loop.step().item) == 0


def test_so_do_penalties(loop: Loop) -> None:
    loop.step().item()
    torch.autograd.grad(loop.loss(), list(loop.model.parameters()), create_graph=True)
    assert loop.whys == [(TWICE, True)]


def test_a_write_that_torch_does_not_count_is_seen_by_comparing(loop: Loop) -> None:
    """Through `.data`: the first reads are made both ways, and the script gets what it would get."""
    loss = loop.step()
    loop.device.values[loss.data_ptr()] = loss.detach().clone()
    loss.data.mul_(2)
    expected = loss.detach().numpy().item()
    assert loss.item() == expected
    assert loop.whys == [(DIFFERENT, True)]
    assert loop.fetches(loop.step().item) == 0, "it is off"


def test_later_reads_are_compared_now_and_then(loop: Loop) -> None:
    for _ in range(2 * CHECK_EVERY):
        loop.step().item()
    assert loop.unsteady == CHECKED and not loop.whys
    loss = loop.step()
    loop.reads.reads = 3 * CHECK_EVERY - 1
    loop.device.values[loss.data_ptr()] = loss.detach() + 1
    assert loss.item() == loss.detach().numpy() and loop.whys == [(DIFFERENT, True)]


def test_no_number_is_like_itself(loop: Loop) -> None:
    with torch.no_grad():
        loop.model.weight.fill_(float("nan"))
    assert loop.step().item() != 0 and not loop.whys


def test_it_leaves_itself_out_where_nothing_is_read_or_sent(loop: Loop) -> None:
    for step in range(PATIENCE + 2):
        assert loop.whys == ([] if step < PATIENCE else [(NOTHING, False)])
        loop.step()
    assert len(loop.whys) == 1


# batches


def test_what_is_sent_is_a_copy_of_its_own(loop: Loop) -> None:
    x = torch.arange(4.0)
    assert x.to("meta").is_meta and loop.reads.sent == 1
    x.zero_()
    assert loop.device.staged_ones[0].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert x.to("meta", torch.float16).dtype == torch.float16 and loop.reads.sent == 1
    assert x.to(torch.float64).dtype == torch.float64 and loop.reads.sent == 1
    for _ in range(PATIENCE + 1):
        loop.step()
    assert not loop.whys


def cuda_device(begun: bool = True) -> Device:
    device = Device()
    device._known.update({0: object()} if begun else {})
    return device


@pytest.mark.parametrize(
    ("args", "kwargs", "always", "expected"),
    [
        (("cuda",), {}, False, True),
        (("cuda:0",), {}, False, True),
        ((0,), {}, False, True),
        ((torch.device("cuda", 0),), {}, False, True),
        ((), {"device": "cuda"}, False, True),
        ((), {}, True, True),
        ((), {}, False, False),
        ((True,), {}, False, False),
        (("cpu",), {}, False, False),
        ((torch.float16,), {}, False, False),
        (("cuda", torch.float16), {}, False, False),
        (("cuda",), {"non_blocking": True}, False, False),
        (("cuda",), {"copy": True}, False, False),
        ((torch.ones(1),), {}, False, False),
        (("cudax",), {}, False, False),
    ],
)
def test_which_moves_are_staged(
    args: Any, kwargs: Any, always: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert cuda_device().stages(torch.ones(2), args, kwargs, always) is expected
    assert cuda_device(begun=False).stages(torch.ones(2), args, kwargs, always) is False, "before the first backward"


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.uint8])
def test_what_is_staged_is_the_same(dtype: torch.dtype) -> None:
    given = torch.randint(0, 2, (3, 4, 5)).to(dtype)[1:]
    got = moved(given, torch.empty_like(given))
    assert got.equal(given) and got.data_ptr() != given.data_ptr()


def test_what_is_not_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    large, small = torch.empty(MOST_BYTES + 1, dtype=torch.uint8), torch.empty(MOST_BYTES, dtype=torch.uint8)
    assert cuda_device().stages(small, ("cuda",), {}, False) and not cuda_device().stages(large, ("cuda",), {}, False)
    complex_one = torch.ones(2, dtype=torch.complex64).conj()
    for odd in (torch.ones(2, 3).T, torch.ones(4)[::2], complex_one, complex_one.imag):
        assert not cuda_device().stages(odd, ("cuda",), {}, False)
    for odd in (torch.ones(2, requires_grad=True), torch.ones(2).to_sparse(), torch.empty(0), torch.ones(2).to("meta")):
        assert not cuda_device().stages(odd, ("cuda",), {}, False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not cuda_device().stages(small, ("cuda",), {}, False)


# compiled code, and the lever


@pytest.mark.filterwarnings("error:Dynamo does not know")
def test_compiled_code_reads_and_moves_as_ever(loop: Loop) -> None:
    loop.step().item()

    @torch.compile(backend="eager", fullgraph=True)  # type: ignore[untyped-decorator]
    def work(x: Any) -> Any:
        return x.to(torch.float64).cpu() + 1

    assert loop.fetches(lambda: work(torch.ones(1))) == 0
    assert work(torch.ones(1)).tolist() == [2.0]

    @torch.compile(backend="eager")  # type: ignore[untyped-decorator]
    def reading(x: Any) -> Any:
        return x + float(x.sum().item())

    assert reading(torch.ones(2)).tolist() == [3.0, 3.0]


def test_subclasses_see_torchs_own_functions(loop: Loop) -> None:
    class Mine(torch.Tensor):  # type: ignore[misc]
        seen: ClassVar[list[Any]] = []

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            cls.seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    loop.step()
    mine = torch.ones(()).as_subclass(Mine)
    assert mine.item() == 1.0 and torch.Tensor.item in Mine.seen


def test_without_a_gpu_a_training_is_what_it_is(runner: Runner) -> None:
    """Its patches are in, and nothing is on a device."""
    for argv in (("loader.py", "map"), ("optimizers.py", "gan", "1", "1"), ("optimizers.py", "lbfgs")):
        ran = runner.forked(*argv, levers=(LeverUse(LEVER.name, {}),))
        check_same(ran, runner.bare(*argv))
        assert ran.code == 0 and [problem.what for problem in ran.problems] == []


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, None),
        ({"world": 2}, "several processes"),
        ({"roots": (), "optimizers": ()}, "no model"),
        ({"mode": "inference", "backwards": 0}, "only infers"),
    ],
)
def test_where_it_applies(facts: dict[str, Any], why: str | None) -> None:
    applies = LEVER.applies(context(True, **facts))
    assert applies.yes is (why is None) and (why or "wait for the whole step") in applies.why
    assert not LEVER.applies(context(False)).yes
