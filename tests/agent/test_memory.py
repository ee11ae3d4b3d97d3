"""Memory over steady steps, on the CPU: what is followed and what is not, whose it is, and runs as they are without."""

import functools
import gc
import operator
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from hotlap.agent import history as history_module
from hotlap.agent import memory as memory_module
from hotlap.agent import owners as owners_module
from hotlap.agent import windows as windows_module
from hotlap.agent.guard import Guard
from hotlap.agent.history import History
from hotlap.agent.lines import Places
from hotlap.agent.memory import Memory
from hotlap.agent.module_calls import ModuleCalls
from hotlap.agent.operations import Operations
from hotlap.agent.owners import Owners, models_of, of_models, of_variables
from hotlap.agent.torch_internals import RECORD_MEMORY
from hotlap.agent.windows import ALLOC, FREE, Columns
from hotlap.diagnose.diagnose import used
from hotlap.memory.usage import usage
from hotlap.records.memory import ACTIONS, MemoryUsage, MemoryWindow
from hotlap.records.phases import BACKWARD, FORWARD
from hotlap.records.session import Session

from .harness import SCRIPTS, Ran, Runner, check_clean, check_same

FLOATS = 256
BYTES = 4 * FLOATS
X = torch.rand(FLOATS)


def watched(act: Callable[[], Any], *alive: torch.Tensor) -> Operations:
    operations = Operations(operator.call, Columns())  # no frame of this file
    with operations.watching(list(alive)):
        act()
    return operations


def events(operations: Operations) -> list[tuple[int, int]]:
    """Action and bytes of each."""
    told = operations.columns.document()["events"]
    return list(zip(told["actions"], told["bytes"], strict=True))


def lines_of(operations: Operations, action: int = ALLOC) -> list[int]:
    """The user's innermost line of each event."""
    columns = operations.columns
    frames, stacks = list(columns.frames), list(columns.stacks)
    rows = [stack for kind, _, _, _, stack in columns.events if kind == action]
    return [frames[stacks[stack][0]][1] if stack >= 0 else 0 for stack in rows]


def here(offset: int) -> int:
    return sys._getframe(1).f_lineno + offset


# storages


def test_a_storage_is_followed_to_its_death() -> None:
    def act() -> None:
        one = X + 1
        two = one * 2
        del one
        kept.append(two)

    kept: list[torch.Tensor] = []
    operations = watched(act)
    assert events(operations) == [(ALLOC, BYTES), (ALLOC, BYTES), (FREE, BYTES)]
    assert (kept[0].data_ptr(), BYTES) in [(address, size) for address, size, _ in operations.blocks()]


def test_views_and_changes_in_place_are_no_new_memory() -> None:
    def act() -> None:
        made = X + 1
        made.view(16, 16).t()[2:].unsqueeze(0).add_(1)
        torch.add(X, 1, out=made)
        made.detach()

    assert events(watched(act)) == [(ALLOC, BYTES), (FREE, BYTES)]


def test_a_view_keeps_the_memory() -> None:
    def act() -> None:
        kept.append((X + 1)[:1])

    kept: list[torch.Tensor] = []
    assert events(watched(act)) == [(ALLOC, BYTES)]


def test_nothing_is_kept_alive() -> None:
    dead = []

    def act() -> None:
        leaf = (X + 1).requires_grad_()
        (leaf.exp() * leaf).sum().backward()
        references = [weakref.ref(leaf), weakref.ref(leaf.grad)]
        del leaf
        dead.extend(one() is None for one in references)

    watched(act)
    assert dead == [True, True]


def test_what_is_there_already_is_followed_too() -> None:
    operations = Operations(operator.call, Columns())
    one = torch.rand(FLOATS)
    reference = weakref.ref(one)
    alive = [one]
    with operations.watching(alive):
        alive.clear()
        assert (one.data_ptr(), BYTES, -1) in operations.blocks()
        del one
        assert reference() is None
    assert events(operations) == [(FREE, BYTES)]


def test_what_an_operation_is_given_that_nobody_knew_is_no_new_memory() -> None:
    given = torch.rand(FLOATS)

    def act() -> None:
        given.add_(1)

    operations = watched(act)
    assert events(operations) == [] and (given.data_ptr(), BYTES, -1) in operations.blocks()


def test_what_no_operation_returned_begins_where_it_is_seen_if_it_goes_again() -> None:
    def act() -> None:
        for _ in range(2):
            torch.from_numpy(np.ones(FLOATS, np.float32)).neg_()

    assert events(watched(act)) == [(ALLOC, BYTES), (FREE, BYTES)] * 2


def test_a_gradient_is_put_down_to_the_line_of_the_forward() -> None:
    layer = nn.Linear(FLOATS, 1, bias=False)

    def act() -> None:
        nonlocal line
        line = here(1)
        out = layer(X)
        out.backward()

    line = 0
    operations = watched(act)
    assert layer.weight.grad is not None
    address = layer.weight.grad.data_ptr()
    frames, stacks = list(operations.columns.frames), list(operations.columns.stacks)
    (stack,) = [stack for at, size, stack in operations.blocks() if (at, size) == (address, BYTES)]
    assert frames[stacks[stack][0]][1] == line


def test_inference_mode_within_and_around() -> None:
    def inner() -> None:
        with torch.inference_mode():
            del (X + 1).view(16, 16)[0]

    def act() -> None:
        with torch.inference_mode():
            made = X + 1
            del made

    assert events(watched(act)) == [(ALLOC, BYTES), (FREE, BYTES)]
    with torch.inference_mode():
        made = watched(act)
    assert events(made) == [(ALLOC, BYTES), (FREE, BYTES)]
    assert not _get_current_dispatch_mode_stack()


class Counts(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_scripts_own_goes_on() -> None:
    mode, kept = Counts(), []

    def act() -> None:
        mode.__enter__()
        kept.append(X + 1)

    def within() -> None:
        with Counts() as inner:
            made = X + 1
        assert inner.calls == 1
        del made

    operations = watched(lambda: (within(), act()))
    assert _get_current_dispatch_mode_stack() == [mode]
    before = mode.calls
    X.add(1)
    mode.__exit__(None, None, None)
    assert mode.calls == before + 1 and not _get_current_dispatch_mode_stack()
    assert events(operations)[:2] == [(ALLOC, BYTES), (FREE, BYTES)]


def test_what_has_no_memory_is_not_followed() -> None:
    def act() -> None:
        torch.ones(3, device="meta").add(1)
        torch.ones(0).add(1)
        (torch.eye(3).to_sparse() * 2).coalesce()  # its indices and values are
        torch.rand(4).untyped_storage().resize_(0)

    operations = watched(act)
    assert all(size > 0 for _, size in events(operations))
    assert len(events(operations)) % 2 == 0


def test_what_dies_after_the_window_is_not_told() -> None:
    kept = []
    operations = watched(lambda: kept.append(X + 1))
    kept.clear()
    assert events(operations) == [(ALLOC, BYTES)] and not any(
        size == BYTES for _, size, stack in operations.blocks() if stack >= 0
    )


def test_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows_module, "MOST_EVENTS", 5)
    operations = watched(lambda: [X + 1 for _ in range(20)])
    assert len(operations.columns.events) == 5 and operations.columns.document()["left_out"] > 0


# whose it is


def names(frame: Any, **more: Any) -> dict[str, Any]:
    return dict(of_variables(frame, Places(), **more))


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value


def test_variables_and_what_lies_in_them() -> None:
    tensor, in_dict, in_list = torch.rand(3), {"w": torch.rand(3), 7: torch.rand(3)}, [torch.rand(3)]
    deep, attribute = {"a": [{"b": Holder(torch.rand(3))}]}, Holder((torch.rand(3), deque([torch.rand(3)])))
    found = names(sys._getframe())
    assert found["tensor"] is tensor and found["in_dict['w']"] is in_dict["w"] and found["in_list[…]"] is in_list[0]
    assert found["in_dict[…]"] is in_dict[7]
    assert found["deep['a'][…]['b'].value"] is deep["a"][0]["b"].value
    assert found["attribute.value[…]"] is attribute.value[0] and found["attribute.value[…][…]"] is attribute.value[1][0]
    assert found["X"] is X  # of the module
    assert "deep['a'][…]['b'].value" not in names(sys._getframe(), deepest=2)


def test_the_shortest_name_comes_first() -> None:
    tensor = torch.rand(3)
    wrapped = {"a": [tensor]}
    found = [name for name, one in of_variables(sys._getframe(), Places()) if one is tensor]
    assert found == ["tensor"] and wrapped


def test_outer_frames_of_the_users_are_looked_at() -> None:
    outer = torch.rand(3)

    def inner() -> dict[str, Any]:
        return names(sys._getframe())

    assert inner()["outer"] is outer


def test_what_hooks_hold_has_a_name() -> None:
    tensor, layer = torch.rand(3), nn.Linear(2, 2)

    def hook(*_: Any) -> None:
        tensor.add_(1)

    layer.register_forward_hook(hook)
    layer.register_forward_hook(functools.partial(hook, tensor.clone()))
    held = {name for name in names(sys._getframe()) if name.startswith("layer._forward_hooks")}
    assert "layer._forward_hooks[…][…]" in held  # what a partial has


def test_of_a_long_container_the_beginning_and_the_end_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners_module, "LONGEST", 4)
    monkeypatch.setattr(owners_module, "AT_THE_BEGINNING", 2)
    kept = [torch.rand(3) for _ in range(20)]
    found = [at for name, one in of_variables(sys._getframe(), Places()) for at, it in enumerate(kept) if it is one]
    assert sorted(found) == [0, 1, 16, 17, 18, 19]


def test_a_circle_ends() -> None:
    circle: list[Any] = [torch.rand(3)]
    circle.append(circle)
    assert names(sys._getframe())["circle[…]"] is circle[0]


def test_looking_keeps_nothing_alive() -> None:
    """Python 3.11 and 3.12 keep a frame's dictionary of variables, once asked for, until it is asked for again."""
    tensor = torch.rand(3)
    reference = weakref.ref(tensor)
    list(of_variables(sys._getframe(), Places()))
    del tensor
    assert reference() is None


def test_a_dictionary_that_the_script_has_from_locals_stays_full() -> None:
    tensor = torch.rand(3)
    mine = locals()
    list(of_variables(sys._getframe(), Places()))
    assert mine["tensor"] is tensor


class Odd:
    """Its code must not run."""

    @property
    def __class__(self) -> Any:  # as proxies have it
        raise RuntimeError("no request is being handled")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __hash__(self) -> int:
        raise RuntimeError


class OddList(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError


class OddDict(dict[Any, Any]):
    def items(self) -> Any:
        raise RuntimeError

    def __iter__(self) -> Any:
        raise RuntimeError


def test_no_code_of_what_is_looked_at_runs() -> None:
    odd, listed, mapped = Odd(), OddList([torch.rand(3)]), OddDict(w=torch.rand(3))
    odd.__dict__["inside"] = torch.rand(3)
    found = names(sys._getframe())
    assert len([name for name in found if name.startswith(("odd", "listed", "mapped"))]) == 3
    assert len(listed) == len(mapped) == 1


def test_parameters_and_what_goes_with_them() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    loose = nn.Parameter(torch.rand(3))
    optimizer = torch.optim.Adam([*net.parameters(), loose])
    (net(torch.rand(4, 2)).sum() + loose.sum()).backward()
    optimizer.step()
    model = SimpleNamespace(module=lambda: net)
    gone = SimpleNamespace(module=lambda: None)
    agent: Any = SimpleNamespace(
        script=SimpleNamespace(roots={1: model, 2: gone}), steps=SimpleNamespace(optimizers=[optimizer])
    )
    found = {(category, name): tensor for category, name, tensor in of_models(agent)}
    assert found["parameters", "0.weight"] is net[0].weight and found["gradients", "0.weight"] is net[0].weight.grad
    assert found["buffers", "1.running_mean"] is net[1].running_mean
    assert found["optimizer state", "exp_avg of 0.weight"] is optimizer.state[net[0].weight]["exp_avg"]
    assert found["parameters", "parameter 4"] is loose and ("gradients", "parameter 4") in found


def test_a_piece_has_an_owner_once_for_a_category() -> None:
    owners, tensor = Owners(), torch.rand(FLOATS)
    owners.add("held", "a", tensor)
    owners.add("held", "b", tensor.view(16, 16))
    owners.add("parameters", "w", tensor)
    owners.add("held", "meta", torch.rand(3, device="meta"))
    owners.add("held", "empty", torch.rand(0))
    assert [row[:4] for row in owners.rows] == [
        [tensor.data_ptr(), BYTES, "held", "a"],
        [tensor.data_ptr(), BYTES, "parameters", "w"],
    ]
    owners.again()
    owners.add("held", "c", tensor)
    assert owners.rows[-1][3] == "c"


# the allocator's history, on a device that is not there


class Allocator:
    """asked: whether to record, each time. recorded: somebody does already."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.recorded = False

    def snapshot(self, _device: int) -> dict[str, Any]:
        frames = [
            {"filename": torch.__file__, "line": 1, "name": "empty"},
            {"filename": "/home/me/train.py", "line": 7, "name": "main"},
        ]
        events = [
            {"action": "alloc", "addr": 16, "size": 500, "time_us": 1, "frames": frames},  # before the window
            {"action": "alloc", "addr": 32, "size": 300, "time_us": 2**52, "frames": frames},
            {"action": "free_requested", "addr": 32, "size": 300, "time_us": 2**52 + 1, "frames": frames},
            {"action": "free_completed", "addr": 32, "size": 300, "time_us": 2**52 + 2, "frames": frames},
            {"action": "segment_alloc", "addr": 0, "size": 2048, "time_us": 2**52 + 3, "frames": []},
        ]
        blocks = [
            {"address": 16, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": frames},
            {"address": 528, "size": 1024, "state": "inactive"},
            {"address": 1552, "size": 496, "state": "active_pending_free"},
        ]
        segment = {"device": 0, "address": 0, "total_size": 2048, "allocated_size": 512, "stream": 0, "blocks": blocks}
        pooled = {**segment, "segment_pool_id": (0, 1), "blocks": []}
        return {"device_traces": [events], "segments": [segment, pooled, {**segment, "device": 1}]}


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    made = Allocator()
    monkeypatch.setattr(history_module, "record_memory", lambda **how: made.asked.append(how["enabled"]))
    monkeypatch.setattr(history_module, "memory_is_recorded", lambda: made.recorded)
    monkeypatch.setattr(history_module, "memory_snapshot", made.snapshot)
    monkeypatch.setattr(memory_module, "observe_out_of_memory", lambda _: None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for name, value in (
        ("current_device", 0), ("memory_allocated", 512), ("memory_reserved", 4096), ("max_memory_allocated", 900),
        ("mem_get_info", (3000, 9000)), ("memory_stats", {"num_alloc_retries": 2, "num_device_alloc": 5}),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    return made


def test_the_history_is_begun_once_and_ended(allocator: Allocator) -> None:
    history = History(lambda: True)
    assert history.begin() and history.begin() and history.on
    history.end()
    history.end()
    assert allocator.asked == ["all", None] and not history.on


def test_a_history_that_the_script_records_is_left_alone(allocator: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    allocator.recorded = True
    assert not History(lambda: True).begin() and allocator.asked == []
    allocator.recorded = False
    theirs: list[Any] = []
    monkeypatch.setattr(*RECORD_MEMORY, lambda *args, **_: theirs.append(args))
    history = History(lambda: True)
    history.install()
    assert history.begin()
    getattr(*RECORD_MEMORY)("all")
    history.end()  # it is theirs now
    assert theirs == [("all",)] and allocator.asked == ["all"]
    assert not history.begin() and history.theirs


class Written:
    """What is left of an agent, and the files that it writes."""

    def __init__(self, folder: Path) -> None:
        self.path, self.files = str(folder), dict[str, Any]()
        self.guard = Guard()
        self.timeline = SimpleNamespace(
            stack=[FORWARD], watch=None, clock=time.perf_counter_ns, segment=SimpleNamespace(begun_ns=0)
        )
        self.recorder = SimpleNamespace(index=20)
        self.script, self.steps = SimpleNamespace(roots={}), SimpleNamespace(optimizers=[], unsampled="")
        self.profile = SimpleNamespace(tell=operator.call, no_ops=lambda: "")
        self.step_sampling = SimpleNamespace(ends=[])
        self.begun, self.thread = True, None

    def folder(self) -> Any:
        return self

    def replace(self, name: str, document: Any) -> None:
        self.files[name] = document


def memory_of(folder: Path) -> tuple[Memory, Written]:
    agent = Written(folder)
    return Memory(Session(folder=str(folder), package="", memory=True), agent), agent  # type: ignore[arg-type]


def test_a_window_of_the_allocator(allocator: Allocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "dump_memory", lambda path: Path(path).write_bytes(b"torch's"))
    memory, agent = memory_of(tmp_path)
    for number, _ in enumerate(memory.window()):
        assert memory.looking
        memory.phase(BACKWARD)
        agent.recorder.index += 1
        assert number < 3
    assert not memory.looking and allocator.asked == ["all"]
    window = msgspec.convert(agent.files["memory-steady.json"], MemoryWindow, strict=False)
    assert (window.device, window.source, window.first_step, window.steps) == ("cuda:0", "allocator", 21, 3)
    assert [ACTIONS[one] for one in window.events.actions] == ["alloc", "free", "reserve"]
    assert (window.blocks.addresses, window.blocks.bytes, window.blocks.rounded) == ((16,), (500,), (512,))
    assert [(one.free, one.graph) for one in window.segments] == [(1024, False), (0, True)]
    assert (window.allocated_bytes, window.reserved_bytes, window.peak_bytes) == (512, 4096, 900)
    assert (window.total_bytes, window.used_bytes, window.mallocs, window.retries) == (9000, 6000, 0, 0)
    assert [mark.phase for mark in window.marks].count("step end") == 3
    told = usage(window)
    assert {one.where for one in told.lines} == {("/home/me/train.py", 7, "main")}
    assert [path.name for path in tmp_path.iterdir()] == ["memory_snapshot.pickle"]


def test_a_snapshot_that_can_not_be_written_ends_the_look(
    allocator: Allocator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dump(path: str) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(memory_module, "dump_memory", dump)
    memory, agent = memory_of(tmp_path)
    with pytest.raises(OSError, match="no space"):
        list(memory.window())
    assert not memory.looking and "memory-steady.json" in agent.files


def test_no_window_where_the_script_records(allocator: Allocator, tmp_path: Path) -> None:
    allocator.recorded = True
    memory, agent = memory_of(tmp_path)
    assert list(memory.window()) == [] and allocator.asked == []
    memory.finish()
    assert "the script records" in agent.files["memory-steps.json"]["note"]


def test_without_memory_the_history_ends_with_the_first_steps(allocator: Allocator, tmp_path: Path) -> None:
    agent = Written(tmp_path)
    agent.begun, agent.recorder.index = False, 0
    memory = Memory(Session(folder=str(tmp_path), package=""), agent)  # type: ignore[arg-type]
    memory._cuda_begins()
    assert allocator.asked == []  # what comes before the loop costs nothing
    agent.begun = True
    memory.loop_begins()
    for step in (1, 2, 3):
        memory.step_done(step)
    memory.finish()
    assert allocator.asked == ["all", None] and agent.files == {}
    memory._ran_out(0, 4096, 9000, 100)
    assert not agent.files["memory-oom.json"]["events"]["actions"]  # none leads to what is there by then


def test_cuda_may_begin_in_the_loop(allocator: Allocator, tmp_path: Path) -> None:
    agent = Written(tmp_path)
    memory = Memory(Session(folder=str(tmp_path), package=""), agent)  # type: ignore[arg-type]
    memory.loop_begins()
    memory._cuda_begins()
    assert allocator.asked == []  # after its first steps
    agent.recorder.index = 0
    memory._cuda_begins()
    assert allocator.asked == ["all"]


def test_with_it_the_start_and_the_first_steps_are_told_apart(allocator: Allocator, tmp_path: Path) -> None:
    memory, agent = memory_of(tmp_path)
    memory._cuda_begins()
    memory.loop_begins()
    for step in (1, 2, 3):
        memory.step_done(step)
    assert list(agent.files) == ["memory-start.json", "memory-first.json"] and allocator.asked == ["all"]
    assert agent.timeline.watch is None and not memory.looking


def test_a_process_without_a_loop_leaves_nothing(tmp_path: Path) -> None:
    memory, agent = memory_of(tmp_path)
    agent.begun = False  # as a launcher of ranks
    memory.finish()
    assert agent.files == {}


def test_where_it_ran_out(allocator: Allocator, tmp_path: Path) -> None:
    memory, agent = memory_of(tmp_path)
    memory._begin()
    for _ in range(5):
        memory._ran_out(0, 4096, 9000, 100)
    window = msgspec.convert(agent.files["memory-oom.json"], MemoryWindow, strict=False)
    assert window.when == "oom" and window.ran_out is not None
    assert (window.ran_out.asked_bytes, window.ran_out.total_bytes, window.ran_out.free_bytes) == (4096, 9000, 100)
    assert (window.ran_out.phase, window.ran_out.step) == ("forward", 21)
    assert window.ran_out.frames[0][0] == __file__


class Wrapper(torch.Tensor):
    """Holds another, as quantized weights do; torch asks it for each operation."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Wrapper":
        made: Wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls(func(*(one.inner if isinstance(one, cls) else one for one in args)))


def test_tensors_without_memory_of_their_own_are_passed_over() -> None:
    def tensors() -> list[torch.Tensor]:
        ones = torch.ones(4, 4)
        return [ones.to_sparse(), Wrapper(ones) + 1, torch.ones(3, device="meta"), torch.empty(0)]

    owners, operations = Owners(), Operations(operator.call, Columns())
    with operations.watching(tensors()):
        for one in tensors():
            owners.add("held", "x", one)
    assert owners.rows == [] and operations.columns.events


def test_calls_of_modules_are_seen_while_they_are_looked_at() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.ReLU()))
    other, calls = torch.nn.Linear(2, 2), ModuleCalls()
    with calls.watching([("", net)], operator.call):
        net(other(torch.ones(1, 2)))
        with pytest.raises(RuntimeError):
            net(torch.ones(1, 3))
    net(torch.ones(1, 2))
    told = calls.document()
    assert told["names"] == ["Sequential", "0", "1", "1.0"]
    assert told["modules"] == [0, 1, -1, 2, 3, -1, -1, -1, 0, 1, -1, -1]  # ends also where it failed
    assert told["times"] == sorted(told["times"])


def test_names_of_several_models_begin_with_theirs() -> None:
    def agent(*modules: Any) -> Any:
        roots = {at: SimpleNamespace(module=lambda one=one: one) for at, one in enumerate(modules)}
        return SimpleNamespace(script=SimpleNamespace(roots=roots))

    one, two, linear = torch.nn.Sequential(torch.nn.ReLU()), torch.nn.Sequential(), torch.nn.Linear(1, 1)
    assert [name for name, _ in models_of(agent(one, one[0]))] == [""]
    assert [name for name, _ in models_of(agent(one, two, linear))] == ["Sequential1.", "Sequential2.", "Linear."]


# whole runs


def looked(ran: Ran) -> MemoryUsage:
    found = used(ran.ranks[0])
    assert found is not None
    return found


def line_of(mark: str) -> int:
    """The line of memory.py that ends in `# line: mark`."""
    text = (SCRIPTS / "memory.py").read_text().splitlines()
    (at,) = [number for number, line in enumerate(text, 1) if line.endswith(f"# line: {mark}")]
    return at


@pytest.mark.parametrize("kind", ["plain", "unfed", "gan", "lbfgs", "infer", "locals", "leak", "graph", "attribute"])
def test_a_run_is_as_it_is_without(kind: str, runner: Runner) -> None:
    ran = runner.untouched("memory.py", kind, memory=True)
    window, found, series = ran.ranks[0].memory(), looked(ran), ran.ranks[0].memory_series
    assert window is not None and (window.device, window.source, window.steps) == ("cpu", "operations", 3)
    assert found.peak_bytes == sum(one.bytes for one in found.parts) > 0
    assert found.part("unknown") <= 0.05 * found.peak_bytes
    assert series is not None and series.note == "" and all(series.resident)
    assert list(series.steps) == list(range(1, len(series.steps) + 1))
    probed = [step.step for step in ran.steps if step.probe]
    assert 3 <= len(probed) <= 6
    names = {name for one in window.owners for name in (one.name, one.category)}
    assert {"Sequential1.0.weight" if kind == "gan" else "0.weight", "parameters"} <= names
    if kind not in {"leak", "graph", "attribute", "lbfgs"}:
        assert found.grown_bytes == 0.0 and found.stays == ()


@pytest.mark.parametrize(("kind", "code"), [("exits", 3), ("raises", 1)])
def test_the_exit_code_is_the_scripts(kind: str, code: int, runner: Runner) -> None:
    ran = runner.forked("memory.py", kind, memory=True)
    check_same(ran, runner.bare("memory.py", kind))
    check_clean(ran)
    assert ran.code == code and looked(ran).peak_bytes > 0


def test_what_is_kept_is_found_with_its_line(runner: Runner) -> None:
    found = looked(runner.untouched("memory.py", "leak", memory=True))
    stays = found.stays[0]
    assert stays.where is not None and stays.where[1:] == (line_of("hidden"), "train")
    assert (stays.names, stays.graph, stays.bytes, stays.blocks) == (("kept[…]",), False, 6 * 256 * 4.0, 1.0)
    assert found.grown_bytes >= stays.bytes


def test_what_an_object_of_the_scripts_keeps_is_found(runner: Runner) -> None:
    found = looked(runner.untouched("memory.py", "attribute", memory=True))
    stays = found.stays[0]
    assert stays.where is not None and stays.where[1] == line_of("attribute")
    assert stays.names == ("logger.seen[…]['out']",)


def test_a_loss_that_keeps_its_graph_is_found(runner: Runner) -> None:
    stays = looked(runner.untouched("memory.py", "graph", memory=True)).stays[0]
    assert stays.where is not None and stays.where[1] == line_of("graph")
    assert stays.graph and stays.names == ("kept[…]",) and stays.bytes > 6 * 256 * 4


def test_two_models_and_their_state(runner: Runner) -> None:
    window = runner.untouched("memory.py", "gan", memory=True).ranks[0].memory()
    assert window is not None
    sizes = {(one.category, one.bytes) for one in window.owners}
    assert {("parameters", 4096), ("parameters", 128), ("gradients", 4096), ("gradients", 128)} <= sizes


@pytest.mark.parametrize(("kind", "note"), [("compiled", "torch.compile"), ("mode", "dispatch mode")])
def test_where_operations_can_not_be_watched_that_is_said(kind: str, note: str, runner: Runner) -> None:
    ran = runner.untouched("memory.py", kind, memory=True)
    series = ran.ranks[0].memory_series
    assert ran.ranks[0].memory() is None and series is not None and note in series.note


def test_a_run_that_ends_before_has_the_series_alone(runner: Runner) -> None:
    ran = runner.forked("memory.py", "short", memory=True)
    assert ran.losses == runner.bare("memory.py", "short").losses and len(ran.losses) == 4
    check_clean(ran)
    assert ran.ranks[0].memory() is None and ran.ranks[0].memory_series is not None


def test_with_a_profile_memory_comes_last(runner: Runner) -> None:
    ran = runner.untouched("profiled.py", "plain", "12", memory=True, profile_steps=2)
    assert ran.ranks[0].trace.is_file() and looked(ran).peak_bytes > 0


def test_without_being_asked_nothing_is_written(runner: Runner) -> None:
    ran = runner.untouched("memory.py", "plain")
    assert not list(ran.ranks[0].path.glob("memory*"))


# the series


def test_a_long_series_is_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(Session(folder="", package="", memory=True), SimpleNamespace())  # type: ignore[arg-type]
    monkeypatch.setattr("hotlap.agent.memory.SERIES", 8)
    for step in range(1, 101):
        memory._point(step)
    steps = [point[0] for point in memory._series]
    assert len(steps) < 8 and steps == list(range(steps[0], 101, steps[0]))


def test_nothing_is_left_on_after_all_this() -> None:
    gc.collect()
    assert not _get_current_dispatch_mode_stack()
