"""The parts of the agent on their own, with a clock and marks that are told what to say."""

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from hotlap.agent import device
from hotlap.agent.device import DeviceMarks, LateLosses
from hotlap.agent.guard import MOST_ALIKE, Guard
from hotlap.agent.probe import leaves
from hotlap.agent.recorder import Folder, Recorder
from hotlap.agent.samples import Phase
from hotlap.agent.step_sampling import StepSampling
from hotlap.agent.steps import MOST_HELD, PATIENCE, UNUSED_OPTIMIZER_BACKWARDS, Steps
from hotlap.agent.stopper import ASK_EVERY, Agreed, Stopper
from hotlap.agent.timeline import GAP, MOST_CUTS, Segment, Stretch, Timeline
from hotlap.agent.torch_internals import batches_there, is_starved
from hotlap.records.phases import BACKWARD, DATA, FORWARD, H2D, OPTIMIZER, OTHER, PHASES
from hotlap.records.run import Step
from hotlap.records.session import Session
from hotlap.records.steady import GIVE_UP, WINDOW, Steady, steady_start
from hotlap.runs.folder import RankFolder


class Clock:
    """Every reading is later by as many ns as there were readings: each interval is unlike the others."""

    def __init__(self) -> None:
        self.now = self.count = 0

    def __call__(self) -> int:
        self.count += 1
        self.now += self.count
        return self.now


class Event:
    """A mark that knows when it was made, and in which stream; done once the test says so."""

    def __init__(self, at: float, waiting: list[bool], stream: int = 0) -> None:
        self.at, self.waiting, self.marked_in = at, waiting, stream

    def query(self) -> bool:
        return not self.waiting[0]

    def synchronize(self) -> None:
        self.waiting[0] = False

    def elapsed_time(self, later: "Event") -> float:
        return later.at - self.at


# what ranks agree on


class Rank:
    """A rank of a job; a store is shared with the others, and outlives a restart of them all, as torchrun's does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Any, number: int, restarts: str | None) -> None:
        self.patch, self.place = monkeypatch, (store, number)
        if restarts is None:
            monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
        else:
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
        self.agreed = Agreed("stop")

    def step(self, index: int, ready: bool = False) -> int | None:
        self.patch.setattr("hotlap.agent.stopper._ranks", lambda: self.place)
        return self.agreed.step(index, lambda: ready)


def test_ranks_that_were_restarted_agree_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the store stands still what those before agreed on: the second ones would have stopped in their fifth step."""
    store = torch.distributed.HashStore()
    for restarts, ends in ((None, 40), ("1", 80), ("2", 120)):
        first, second = (Rank(monkeypatch, store, number, restarts) for number in (0, 1))
        for index in range(ends):
            assert first.step(index) is second.step(index) is None, "what a run before this one has agreed on"
        at = first.step(ends, ready=True)
        assert at is not None and at >= ends + ASK_EVERY - 1
        assert [second.step(index) for index in range(ends, at)][-1] == first.step(at - 1) == at


def test_other_things_are_agreed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    store = torch.distributed.HashStore()
    first, second = (Rank(monkeypatch, store, number, "0") for number in (0, 1))
    assert first.step(0, ready=True) is not None
    second.agreed = Agreed("profile")
    assert second.step(0) is second.step(ASK_EVERY) is None


# the timeline

ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.sampled_from([DATA, H2D, FORWARD, BACKWARD, OPTIMIZER, OTHER])),
        st.tuples(st.just("leave"), st.booleans()),
        st.tuples(st.just("gap"), st.just(0)),
        st.tuples(st.just("close_gap"), st.just(0)),
        st.tuples(st.just("cut"), st.just(0)),
        st.tuples(st.just("unwind"), st.just(0)),
        st.tuples(st.just("fold"), st.just(0)),
        st.tuples(st.just("take"), st.just(0)),
    ),
    max_size=60,
)


@given(ACTS, st.booleans())
@example(acts=[("gap", 0), ("enter", H2D), ("enter", DATA)], marking=True)
@example(acts=[("enter", FORWARD), ("leave", 1), ("cut", 0), ("fold", 0), ("enter", BACKWARD)], marking=False)
def test_every_nanosecond_is_in_one_phase(acts: list[tuple[str, int]], marking: bool) -> None:
    clock = Clock()
    made: list[Event] = []

    def mark() -> Event:
        made.append(Event(clock.now, [False]))
        return made[-1]

    timeline = Timeline(clock, mark)
    timeline.marking = marking
    begun = timeline.segment.begun_ns
    taken: list[Segment] = []
    for name, value in acts:
        if name == "enter":
            timeline.enter(value)
        elif name == "leave":
            timeline.leave(gap=bool(value))
        elif name == "gap":
            timeline.open_gap()
        elif name == "take":
            timeline.cut()
            taken.append(timeline.take())
        else:
            getattr(timeline, name)()
        assert 0 <= Phase(tuple(timeline.stack)).number < GAP
    timeline.unwind()
    taken.append(timeline.take())
    ends = [begun, *(segment.end_ns for segment in taken)]
    for segment, first, last in zip(taken, ends, ends[1:], strict=False):
        assert sum(segment.ns) == last - first
        assert segment.ns[GAP] == 0
        assert all(ns >= 0 for ns in segment.ns)
        assert all(phase != GAP for phase, *_ in segment.marks)
    marks = [event for segment in taken for _, event, _ in segment.marks]
    assert marks == made
    if timeline.marking:  # the device's cuts say the same as the host's
        at = begun
        for segment in taken:
            by_phase = [0.0] * 6
            for phase, event, ns in segment.marks:
                assert event.at == ns
                by_phase[phase] += event.at - at
                at = event.at
            assert by_phase == segment.ns[:6]


def spent(*turns: tuple[int, int, int]) -> list[int]:
    """Ns by phase of a forward of 3 ns and of what follows: a phase, how long after the last, and how long it takes."""
    now = [0]
    timeline = Timeline(lambda: now[0], None)
    for phase, after, lasts in ((FORWARD, 0, 3), *turns):
        now[0] += after
        timeline.enter(phase)
        now[0] += lasts
        timeline.leave(gap=phase == FORWARD)
    return timeline.segment.ns


def by_phase(**ns: int) -> list[int]:
    return [ns.get(name, 0) for name in PHASES] + [0]


def test_what_follows_a_forward_is_forward_up_to_a_backward_that_comes_next() -> None:
    assert spent((BACKWARD, 7, 1)) == by_phase(forward=10, backward=1)
    assert spent((OPTIMIZER, 7, 1)) == by_phase(forward=3, other=7, optimizer=1)
    assert spent((DATA, 7, 1)) == by_phase(forward=3, other=7, data=1)
    assert spent((DATA, 7, 1), (BACKWARD, 20, 1)) == by_phase(forward=3, other=27, data=1, backward=1)


def test_what_lies_between_two_forwards_is_other() -> None:
    assert spent((FORWARD, 7, 2), (BACKWARD, 20, 1)) == by_phase(forward=25, other=7, backward=1)


def test_a_loss_is_forward_after_a_transfer_or_a_forward_without_gradients() -> None:
    """A target, or a teacher's answer."""
    assert spent((H2D, 7, 2), (BACKWARD, 20, 1)) == by_phase(forward=30, h2d=2, backward=1)
    assert spent((OTHER, 7, 2), (BACKWARD, 20, 1)) == by_phase(forward=30, other=2, backward=1)


def test_a_forward_of_plain_functions_begins_after_the_last_transfer() -> None:
    """Two transfers, each after 5 ns, and 5 ns up to the backward."""
    now = [0]
    timeline = Timeline(lambda: now[0], None)
    steps = Steps(timeline, lambda segment, kind: None)
    steps.functional = True
    for _ in range(2):
        now[0] += 5
        steps.transfer_begin()
        now[0] += 1
        steps.transfer_end()
    now[0] += 5
    steps.backward_begin()
    assert timeline.segment.ns == by_phase(h2d=2, other=10, forward=5)


def test_an_evaluation_that_is_not_timed_is_not_the_forwards() -> None:
    now = [0]
    timeline = Timeline(lambda: now[0], None)
    steps = Steps(timeline, lambda segment, kind: None)
    steps.forward_begin(1, True, False, None)
    now[0] += 3
    steps.forward_end(True, None)
    now[0] += 5
    steps.evaluating()
    now[0] += 20
    steps.backward_begin()
    assert timeline.segment.evaluation
    assert timeline.segment.ns == by_phase(forward=3, other=25)


def test_an_evaluation_of_any_length_holds_little() -> None:
    """Between two steps: 20,000 batches and forwards without gradients, or with gradients that nobody asks for."""
    timeline, emitted = Timeline(Clock(), None), list[Segment]()
    steps = Steps(timeline, lambda segment, kind: emitted.append(segment))
    steps.optimizers_built = 1
    for training in (False, True):
        for _ in range(20_000):
            steps.data_begin()
            steps.data_end(8, training)
            steps.forward_begin(1, training, not training, None)
            steps.forward_end(training, None)
            assert len(timeline.cuts) <= MOST_CUTS + 8
        steps.backward_begin()
        steps.backward_end()
        begun = timeline.segment.begun_ns
        steps.optimizer_begin(1)
        assert steps.optimizer_end(1)
        steps.optimizer_boundary(1)
        assert sum(emitted[-1].ns) == emitted[-1].end_ns - begun
        assert emitted[-1].ns[FORWARD] > 0


# steps


def loop(turns: str, built: int, sizes: str = "") -> list[int]:
    """Run optimizers named by letters, a forward and a backward before each; returns the backwards in each step."""
    emitted: list[int] = []
    timeline = Timeline(Clock(), lambda: None)
    steps = Steps(timeline, lambda segment, kind: emitted.append(len(segment.losses)))
    keep = [Named() for _ in range(built)]
    for optimizer in keep:
        steps.optimizer_built(optimizer)
    for letter in turns:
        steps.forward_begin(1, True, False, 1)
        steps.forward_end(True, None)
        steps.backward_begin()
        timeline.segment.losses.append(0.0)
        steps.backward_end()
        if letter != "-":
            steps.optimizer_begin(ord(letter))
            assert steps.optimizer_end(ord(letter))
            steps.optimizer_boundary(ord(letter))
    steps.finish()
    return emitted


class Named:
    """What stands for an optimizer."""

    param_groups = ()


@pytest.mark.parametrize(
    ("turns", "built", "expected"),
    [
        ("AAAA", 1, [1, 1, 1, 1]),
        ("--A--A--A", 1, [3, 3, 3]),
        ("ABABAB", 2, [2, 2, 2]),
        ("AABAABAAB", 2, [3, 3, 3]),
        ("ABBABB", 2, [3, 3]),
        ("AAAAAB" * 3, 2, [6, 6, 6]),
        ("ABCABC", 3, [3, 3]),
        ("AB", 2, [2]),
        ("ABABA", 2, [2, 2]),
        ("ABABAABAAB", 2, [2, 2, 3, 3]),
        ("AAA", 2, [1, 1, 1]),
        ("A" * 30, 2, [1] * 30),
        ("A" * (PATIENCE + 2) + "B" * (PATIENCE + 2), 2, [1] * (2 * PATIENCE + 4)),
        ("A" * 12 + "AB" * 4, 2, [1] * 13 + [2, 2, 2]),
        ("ABAB" + "C" + "AB" * 4, 3, [2, 2, 3, 2, 2, 2]),
        ("ABC" * 3 + "AD" + "ABC" * 3, 4, [3, 3, 3, 2, 3, 3, 3]),
        ("A" + "BC" * 6, 3, [1, 2, 2, 2, 2, 2, 2]),
        ("A" + "BBC" * 4, 3, [1, 3, 3, 3, 3]),
        ("A" * 14 + "B" + "A" * 20, 2, [1] * 14 + [2] + [1] * 19),
        ("----", 0, [1, 1, 1, 1]),
        ("-" * UNUSED_OPTIMIZER_BACKWARDS + "--", 1, [UNUSED_OPTIMIZER_BACKWARDS, 1, 1]),
        ("-" * 5, 1, []),
    ],
)
def test_cycles(turns: str, built: int, expected: list[int]) -> None:
    assert loop(turns, built) == expected


def test_what_has_no_cycle_is_not_held_for_ever() -> None:
    """Two letters that never say the same three times (Thue and Morse), after one that does not return."""
    turns = "A" + "".join("BC"[at.bit_count() % 2] for at in range(4 * MOST_HELD))
    emitted = loop(turns, 3)
    assert emitted[:MOST_HELD] == [1] * MOST_HELD
    assert sum(emitted) > len(turns) - MOST_HELD


@given(st.text("AB-", max_size=60), st.integers(0, 3))
def test_no_backward_is_in_two_steps(turns: str, built: int) -> None:
    emitted = loop(turns, built)
    assert sum(emitted) <= len(turns)
    assert all(count > 0 for count in emitted)


def test_an_optimizer_inside_another_is_one_step() -> None:
    emitted: list[str] = []
    steps = Steps(Timeline(Clock(), lambda: None), lambda segment, kind: emitted.append(kind))
    assert steps.optimizer_begin(1)
    assert not steps.optimizer_begin(1)  # a subclass that calls super
    assert not steps.optimizer_end(1)
    assert not steps.optimizer_begin(2)  # a wrapper that holds another
    assert not steps.optimizer_end(2)
    assert steps.optimizer_end(1)
    steps.optimizer_boundary(1)
    assert emitted == ["train"]


# batches of workers


class Length:
    """A queue of which only the length counts."""

    def __init__(self, length: int) -> None:
        self.length = length

    def qsize(self) -> int:
        return self.length


def iterator(taken: int, sent: int, outstanding: int, queues: tuple[int, int]) -> Any:
    """Of 4 workers with 2 batches each. queues: the loop's, and that of what is not pinned yet."""
    own, results = (Length(length) for length in queues)
    return SimpleNamespace(
        _num_workers=4, _prefetch_factor=2, _rcvd_idx=taken, _send_idx=sent, _tasks_outstanding=outstanding,
        _data_queue=own, _worker_result_queue=results,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("taken", "sent", "outstanding", "queues", "there", "starved"),
    [
        (20, 28, 8, (0, 0), 0, True),
        (20, 28, 6, (0, 0), 2, True),  # two came before their turn
        (20, 28, 5, (0, 0), 3, False),
        (20, 28, 8, (1, 2), 3, False),
        (7, 15, 8, (0, 0), 0, False),  # an epoch's first
        (8, 16, 8, (0, 0), 0, True),
    ],
)
def test_when_workers_starve_a_loop(
    taken: int, sent: int, outstanding: int, queues: tuple[int, int], there: int | None, starved: bool
) -> None:
    asked = iterator(taken, sent, outstanding, queues)
    assert batches_there(asked) == there and is_starved(asked) is starved


def test_a_queue_that_is_both_is_counted_once() -> None:
    asked = iterator(20, 28, 8, (3, 0))
    asked._worker_result_queue = asked._data_queue
    assert batches_there(asked) == 3


@pytest.mark.parametrize(("seconds", "made"), [(None, 65), (0.2, 17)])
def test_a_run_waits_until_what_was_made_ahead_is_used_up_but_not_for_ever(seconds: float | None, made: int) -> None:
    """Steps of 50 ms; 48 batches are there, and a new one comes with every fourth step."""
    stopper = Stopper(Session(folder="", package="", steps=10, seconds=seconds), None)  # type: ignore[arg-type]
    stopper.steady, stopper.in_flight = Steady(0, settled=True), 48
    while not stopper._enough():
        done = len(stopper.walls)
        stopper.step_done(50.0, disturbed=False, there=max(0, 48 - done * 3 // 4), starved=done >= 64)
        assert done < 200
    stopped = len(stopper.walls)
    assert (stopped > 64) is (seconds is None) and stopped >= made
    assert stopper._draining(stopper.steady) is (seconds is not None)


# steady state


def test_steady_after_warm_up() -> None:
    walls = [900.0, 50.0, 11.0] + [10.0] * 20
    found = steady_start(walls, [False] * len(walls))
    assert found is not None
    assert found.settled
    assert 1 <= found.start <= 3
    assert steady_start(walls[: 2 * WINDOW], [False] * 2 * WINDOW) is None


def test_steady_waits_for_compiles_and_for_what_was_in_flight() -> None:
    walls = [10.0] * 40
    disturbed = [at in {0, 7} for at in range(40)]
    found = steady_start(walls, disturbed)
    assert found is not None
    assert (found.start, found.settled) == (8 if 8 - WINDOW < 1 else found.start, True)
    assert not any(disturbed[found.start : found.start + WINDOW])
    later = steady_start(walls, [False] * 40, in_flight=9)
    assert later is not None
    assert later.start == 9


def test_a_step_time_that_never_settles_is_said_to_be_unsteady() -> None:
    walls = [1.5**at for at in range(GIVE_UP + 2 * WINDOW + 2)]
    found = steady_start(walls, [False] * len(walls))
    assert found is not None
    assert (found.start, found.settled) == (GIVE_UP, False)


@given(st.lists(st.floats(0.01, 1e5), max_size=90), st.data())
def test_steady_never_begins_in_a_disturbed_window(walls: list[float], data: st.DataObject) -> None:
    disturbed = data.draw(st.lists(st.booleans(), min_size=len(walls), max_size=len(walls)))
    found = steady_start(walls, disturbed)
    if found is not None:
        assert 1 <= found.start < len(walls)
        assert not any(disturbed[found.start : found.start + 2])


# lines


def recorded(folder: Path, segments: list[Segment], marks: Any = None) -> tuple[Recorder, Path]:
    made = Folder(str(folder), 0)
    recorder = Recorder(lambda: made, marks or DeviceMarks(), LateLosses())
    for segment in segments:
        recorder.add(segment)
        recorder.drain()
    return recorder, Path(made.path) / "steps.jsonl"


def segment_of(ns: list[int], end: int, losses: list[float | None]) -> Segment:
    segment = Segment(end - sum(ns))
    at = segment.begun_ns
    for phase, taken in enumerate(ns):
        at += taken
        segment.cuts.append((phase, at))
    segment.end_ns, segment.losses, segment.full, segment.kind = end, losses, True, "train"
    return segment


def test_a_long_run_keeps_its_first_steps_and_its_last(tmp_path: Path) -> None:
    recorder, path = recorded(tmp_path, [])
    recorder.most_bytes = 4000
    for at in range(200):
        recorder.add(segment_of([10, 0, 10, 10, 10, 10], 1000 * at, []))
        recorder.drain()
    assert sorted(one.name for one in path.parent.iterdir()) == [
        "steps-before.jsonl", "steps-last.jsonl", "steps.jsonl",
    ]  # fmt: skip
    assert all(one.stat().st_size < 4400 for one in path.parent.iterdir())
    numbers = [step.step for step in RankFolder(path.parent).steps]
    gaps = [(before, after) for before, after in itertools.pairwise(numbers) if after != before + 1]
    assert (numbers[0], numbers[-1], len(gaps)) == (0, 199, 1)


@pytest.mark.parametrize(
    ("losses", "loss", "several", "nonfinite"),
    [
        ([], None, None, False),
        ([0.1], 0.1, None, False),
        ([math.nan], None, None, True),
        ([math.inf, 1.0], None, (None, 1.0), True),
        ([1e-300, 2.5], 2.5, (1e-300, 2.5), False),
        ([None], None, None, False),
        ([None, 1.0], None, (None, 1.0), False),
    ],
)
def test_a_line_is_json_and_a_step(
    losses: list[float | None], loss: float | None, several: Any, nonfinite: bool, tmp_path: Path
) -> None:
    segment = segment_of([1, 20, 300, 4000, 50000, 600000], 654321, losses)
    segment.samples, segment.evaluation, segment.compiles = 3, True, 2
    _, path = recorded(tmp_path, [segment])
    (line,) = path.read_text().splitlines()
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    step = msgspec.json.decode(line, type=Step)
    assert (step.loss, step.losses, step.nonfinite) == (loss, several, nonfinite)
    assert (step.step, step.samples, step.evaluation, step.compiles, step.skipped) == (0, 3, True, 2, False)
    assert step.wall_ms == 0.654321
    assert sum(getattr(step.phases, name) for name in PHASES) == pytest.approx(step.wall_ms, abs=4e-4)
    assert step.gpu_ms is None


@given(
    st.lists(st.one_of(st.none(), st.floats()), max_size=4), st.lists(st.integers(0, 10**12), min_size=6, max_size=6)
)
def test_any_line_is_json(tmp_path_factory: pytest.TempPathFactory, losses: list[float | None], ns: list[int]) -> None:
    _, path = recorded(tmp_path_factory.mktemp("line"), [segment_of(ns, sum(ns), losses)])
    raw = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    step = msgspec.json.decode(path.read_bytes(), type=Step)
    assert sum(raw["phases"].values()) == pytest.approx(step.wall_ms, abs=4e-4)
    if len(losses) == 1 and losses[0] is not None and math.isfinite(losses[0]):
        assert step.loss == losses[0]


def test_two_ranks_of_one_name_get_a_folder_each(tmp_path: Path) -> None:
    assert [Folder(str(tmp_path), 0).rank, Folder(str(tmp_path), 0).rank] == [0, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0", "rank-1"]


# marks on the device


class FakeMarks(DeviceMarks):
    """DeviceMarks whose events are the test's."""

    def __init__(self, waiting: list[bool]) -> None:
        super().__init__()
        self.waiting = waiting


def test_device_time_is_read_late_and_by_phase(tmp_path: Path) -> None:
    waiting = [True]
    marks = FakeMarks(waiting)
    made = Folder(str(tmp_path), 0)
    recorder = Recorder(lambda: made, marks, LateLosses())
    recorder.previous_event = Event(100.0, waiting)
    segment = segment_of([0, 0, 1_000_000, 2_000_000, 0, 0], 3_000_000, [])
    segment.marks = [[FORWARD, Event(104.0, waiting), 1_000_000], [BACKWARD, Event(111.5, waiting), 3_000_000]]
    recorder.add(segment)
    recorder.drain()
    path = Path(made.path) / "steps.jsonl"
    assert not path.exists()  # the device is still at it, and nobody waits
    waiting[0] = False
    recorder.drain()
    step = msgspec.json.decode(path.read_bytes(), type=Step)
    assert step.gpu_ms == 11.5
    assert step.gpu_phases is not None
    assert (step.gpu_phases.forward, step.gpu_phases.backward, step.gpu_phases.other) == (4.0, 7.5, 0.0)
    assert len(marks.free) == 2  # all but the last event, where the next step begins


@pytest.mark.parametrize(("ended_in", "total", "forward"), [(0, 11.5, 6.0), (1, None, None)])
def test_device_time_is_that_of_one_stream(
    ended_in: int, total: float | None, forward: float | None, tmp_path: Path
) -> None:
    """Seen on an H200: batches that were copied ahead in a stream of their own made a forward longer than the step."""
    made, done = Folder(str(tmp_path), 0), [False]
    recorder = Recorder(lambda: made, FakeMarks(done), LateLosses())
    recorder.previous_event = Event(100.0, done)
    segment = segment_of([0, 1_000_000, 1_000_000, 1_000_000, 0, 0], 3_000_000, [])
    ends = ((OTHER, 60.0, 1), (H2D, 61.0, 1), (FORWARD, 106.0, 0), (BACKWARD, 111.5, ended_in))
    segment.marks = [[phase, Event(at, done, stream), 1_000_000] for phase, at, stream in ends]
    recorder.add(segment)
    recorder.drain()
    step = msgspec.json.decode((Path(made.path) / "steps.jsonl").read_bytes(), type=Step)
    assert step.gpu_ms == total
    phases = step.gpu_phases
    assert (phases and phases.forward) == forward
    assert phases is None or (phases.backward, phases.h2d, phases.other) == (5.5, 0.0, 0.0)


def test_what_the_device_ends_with_the_host_is_told_as_the_host_s_pace(tmp_path: Path) -> None:
    """A forward of 10 ms that the host took as long to issue, and a backward that the device does for 6 ms more."""
    made, done = Folder(str(tmp_path), 0), [False]
    recorder = Recorder(lambda: made, FakeMarks(done), LateLosses())
    recorder.previous_event = Event(100.0, done)
    for at in range(2):
        begun = at * 20_000_000
        segment = segment_of([0, 0, 10_000_000, 4_000_000, 0, 6_000_000], begun + 20_000_000, [])
        segment.begun_ns = begun
        for phase, host_ms, device_ms in ((FORWARD, 10, 10.02), (BACKWARD, 14, 20.0), (OTHER, 20, 20.01)):
            event = Event(100.0 + 20 * at + device_ms, done)
            segment.marks.append([phase, event, begun + host_ms * 1_000_000])
        recorder.add(segment)
    recorder.drain()
    for line in (Path(made.path) / "steps.jsonl").read_bytes().splitlines():
        step = msgspec.json.decode(line, type=Step)
        assert step.gpu_paced is not None and step.gpu_phases is not None
        assert step.gpu_paced.forward == step.gpu_phases.forward != 0.0
        assert step.gpu_paced.backward == 0.0 and step.gpu_phases.backward is not None
        assert step.gpu_phases.backward > 9.9


def unsampled_steps(folder: Path, events: list[Any]) -> tuple[Recorder, Stretch, Path]:
    """Three steps of 1, 2 and 1 ms that were not looked at, with the device's mark at the end of each."""
    made = Folder(str(folder), 0)
    recorder = Recorder(lambda: made, FakeMarks([False]), LateLosses())
    recorder.previous_event = Event(10.0, [False])
    stretch = Stretch(0, list(zip([1_000_000, 3_000_000, 4_000_000], events, strict=True)), "train", False)
    stretch.marked = True
    recorder.add_unsampled(stretch)
    return recorder, stretch, Path(made.path) / "steps.jsonl"


def test_steps_in_a_row_are_written_as_the_device_passes_them(tmp_path: Path) -> None:
    late = [True]
    recorder, stretch, path = unsampled_steps(tmp_path, [Event(12.0, [False]), Event(15.0, late), Event(16.5, late)])
    stretch.evaluated, stretch.skipped, stretch.compiles = frozenset({1}), frozenset({2}), 2
    recorder.drain()
    assert len(path.read_bytes().splitlines()) == recorder.written == 1
    late[0] = False
    recorder.drain()
    steps = [msgspec.json.decode(line, type=Step) for line in path.read_bytes().splitlines()]
    assert [step.step for step in steps] == [0, 1, 2]
    assert [step.wall_ms for step in steps] == [1.0, 2.0, 1.0]
    assert [step.gpu_ms for step in steps] == [2.0, 3.0, 1.5]
    assert [step.backlog_ms for step in steps] == [1.0, 2.0, 2.5]
    assert [step.evaluation for step in steps] == [False, True, False]
    assert [step.skipped for step in steps] == [False, False, True]
    assert [step.compiles for step in steps] == [0, 2, 0]
    assert {step.phases for step in steps} == {None}
    assert len(recorder.marks.free) == 3
    assert not recorder.waiting
    assert recorder.index == recorder.written == 3


def test_where_marks_are_of_one_stream_the_last_is_asked_first(tmp_path: Path) -> None:
    class Unasked(Event):
        def query(self) -> bool:
            pytest.fail("asked")

    last = [True]
    recorder, stretch, path = unsampled_steps(tmp_path, [Unasked(12.0, last), Unasked(13.0, last), Event(14.0, last)])
    stretch.one_stream, last[0] = True, False
    recorder.drain()
    assert len(path.read_bytes().splitlines()) == 3


@pytest.mark.parametrize("one_stream", [True, False])
def test_steps_in_a_row_without_a_mark_or_with_some(one_stream: bool, tmp_path: Path) -> None:
    """None can be recorded where a graph is captured, or on another device."""
    waiting = [True]
    recorder, stretch, path = unsampled_steps(tmp_path, [Event(12.0, waiting), None, None])
    stretch.one_stream = one_stream
    recorder.drain()
    assert not path.exists()
    recorder.drain(wait=True)
    steps = [msgspec.json.decode(line, type=Step) for line in path.read_bytes().splitlines()]
    assert [step.gpu_ms for step in steps] == [2.0, None, None]


def together(folder: Path, count: int, marked: dict[int, Event], at_once: int = 4) -> tuple[Recorder, Path]:
    """Steps of 1 ms that were not looked at, of which the device has marks at the end of some."""
    made = Folder(str(folder), 0)
    recorder = Recorder(lambda: made, FakeMarks([False]), LateLosses())
    recorder.previous_event = Event(10.0, [False])
    ends = [((at + 1) * 1_000_000, marked.get(at)) for at in range(count)]
    stretch = Stretch(0, ends, "train", False)
    stretch.marked, stretch.together = True, at_once
    recorder.add_unsampled(stretch)
    return recorder, Path(made.path) / "steps.jsonl"


def test_steps_that_have_one_mark_together_share_the_devices_time(tmp_path: Path) -> None:
    late = [True]
    marked = {3: Event(14.0, [False]), 7: Event(24.0, late), 8: Event(27.0, late)}
    recorder, path = together(tmp_path, 9, marked)
    recorder.drain()
    assert len(path.read_bytes().splitlines()) == recorder.written == 4  # only those whose mark was passed
    late[0] = False
    recorder.drain()
    steps = [msgspec.json.decode(line, type=Step) for line in path.read_bytes().splitlines()]
    assert [step.gpu_ms for step in steps] == [1.0] * 4 + [2.5] * 4 + [3.0]
    assert sum(step.gpu_ms or 0.0 for step in steps) == 27.0 - 10.0
    assert [step.backlog_ms for step in steps] == [None] * 3 + [0.0] + [None] * 3 + [6.0, 8.0]
    assert recorder.previous_event is marked[8] and len(recorder.marks.free) == 3


def test_steps_after_the_last_mark_have_no_device_time_and_it_begins_anew(tmp_path: Path) -> None:
    """Something unusual ended the row."""
    recorder, path = together(tmp_path, 6, {3: Event(14.0, [False])})
    recorder.drain(wait=True)
    steps = [msgspec.json.decode(line, type=Step) for line in path.read_bytes().splitlines()]
    assert [step.gpu_ms for step in steps] == [1.0] * 4 + [None] * 2
    assert recorder.previous_event is None


def test_of_very_short_unsampled_steps_every_fourth_and_the_last_is_marked() -> None:
    marks: list[int] = []
    agent = Mock()
    agent.guard.injected = lambda name, function: function
    sampling = StepSampling(Session(folder="", package=""), agent)
    sampling.clock = lambda: 0
    sampling.mark = lambda: marks.append(len(sampling.ends) + 1)
    sampling.together, sampling.turn, sampling.steps.unsampled, sampling.steps.unsampled_most = 4, lambda: None, 1, 9  # type: ignore[method-assign]
    sampling.steps.optimizer_steps, sampling.steps.unsampled_until, sampling.most = 0, 1, 10
    for _ in range(10):
        sampling.lapped()
    assert marks == [4, 8, 10] and not agent.guard.failed.called


def test_a_mark_counts_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Any] = []
    raw = iter([7, 7, 9, 7])
    for name, act in {
        "is_capturing": lambda: False,
        "current_device": lambda: 0,
        "raw_stream": lambda device: next(raw),
    }.items():
        monkeypatch.setattr(device, name, act)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "stream")
    monkeypatch.setattr(device, "record_event", lambda event, stream: recorded.append(event))
    marks = DeviceMarks()
    marks.alive = marks.ready = True
    events = marks.free = [Event(0.0, [False]) for _ in range(4)]
    order = list(reversed(events))
    found = [(marks.mark(), marks.streams) for _ in range(4)]
    assert found == list(zip(order, [1, 1, 2, 3], strict=True))
    assert recorded == order
    assert [event.marked_in for event in order] == [7, 7, 9, 7]


def test_at_the_end_of_the_process_the_device_is_waited_for(tmp_path: Path) -> None:
    waiting = [True]
    made = Folder(str(tmp_path), 0)
    recorder = Recorder(lambda: made, FakeMarks(waiting), LateLosses())
    segment = segment_of([1], 1, [])
    segment.marks = [[OTHER, Event(1.0, waiting), 1]]
    recorder.add(segment)
    recorder.drain(wait=True)
    assert len((Path(made.path) / "steps.jsonl").read_bytes().splitlines()) == 1


def test_marks_of_two_devices_switch_the_marks_off() -> None:
    class Foreign(Event):
        def elapsed_time(self, later: Event) -> float:
            raise RuntimeError("events of two devices")

    marks = DeviceMarks()
    marks.alive = True
    assert marks.elapsed(Event(1.0, [False]), None) is None
    assert marks.alive
    assert marks.elapsed(Foreign(1.0, [False]), Event(2.0, [False])) is None
    assert not marks.alive
    assert marks.mark() is None


# the guard


@pytest.mark.parametrize("error", [OSError("disk full"), RuntimeError("anything")])
def test_an_error_while_recording_an_error_stays_inside(error: Exception) -> None:
    guard = Guard()

    def report(*args: Any) -> None:
        raise error

    guard.report = report
    assert guard.call("hook", lambda: 1 / 0) is None
    assert not guard.on


def test_a_part_that_fails_again_and_again_fills_no_disk() -> None:
    """A lever that fails at each epoch's loader wrote 4 KB each time."""
    guard, said = Guard(), list[str]()
    guard.report = lambda where, what, trace, lever: said.append(where)
    for _ in range(1000):
        guard.spare("lever planted", lambda: None, lambda: 1 / 0, lever="planted")
    guard.spare("facts", lambda: None, lambda: 1 / 0)
    assert said == ["lever planted"] * MOST_ALIKE + ["facts"]


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_what_the_user_or_the_stop_raises_passes_the_guard(signal: Callable[[], BaseException]) -> None:
    def raises() -> None:
        raise signal()

    guard = Guard()
    with pytest.raises(BaseException) as caught:
        guard.call("hook", raises)
    assert type(caught.value) is signal
    assert guard.on


# the tensors of a batch


def test_leaves_of_strange_batches() -> None:
    import torch

    class Strange:
        """Has an `items` that is no mapping's."""

        def __init__(self) -> None:
            self.x = torch.ones(2)

        def items(self, key: str) -> str:
            return key

    one = torch.ones(1)
    assert [leaf.shape[0] for leaf in leaves({"a": one, "b": [torch.ones(3), "text", None]})] == [1, 3]
    assert [leaf.shape[0] for leaf in leaves(Strange())] == [2]
    assert list(leaves(["text", 3, None])) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [1.5, -0.0078125, float("inf"), 0.0])
def test_a_loss_is_read_without_an_op(dtype: torch.dtype, value: float) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        loss = torch.tensor([3.0, value, 2.0], dtype=dtype)[1]
        taken = LateLosses().take(loss)
    assert LateLosses.value(taken) == value
    assert not any("item" in event.key for event in profile.key_averages())


def test_a_loss_that_does_not_lie_in_memory_as_it_is() -> None:
    """Zeros that autograd makes have no memory; a negated view has that of what it negates."""
    for loss, value in ((torch._efficientzerotensor(()), 0.0), (torch.tensor(1 + 2j).conj().imag, -2.0)):
        assert LateLosses.value(LateLosses().take(loss)) == value
