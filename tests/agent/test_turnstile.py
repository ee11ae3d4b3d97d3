"""A process at a turnstile where nobody is, or somebody who talks nonsense: it ends as after any run of its steps."""

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotlap.agent.stopper import Stopper
from hotlap.agent.turnstile import MOST_LINE, Turnstile
from hotlap.launch.gate import Gate
from hotlap.records.session import Session

from .harness import Ran, Runner, check_clean, check_lines

STEPS = 8
GO_ON = b'{"run": 0}\n'


class Parent:
    """Answers each line of a process with the next of these, and goes when there are no more."""

    def __init__(self, path: Path, *answers: bytes) -> None:
        self.path, self.answers = str(path), answers
        self.heard: list[dict[str, Any]] = []

    def __enter__(self) -> "Parent":
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listening.bind(self.path)
        self.listening.listen()
        self.listening.settimeout(60)
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()
        return self

    def serve(self) -> None:
        connection, _ = self.listening.accept()
        connection.settimeout(60)
        with connection, contextlib.suppress(OSError), connection.makefile("rb") as lines:
            for answer in self.answers:
                line = lines.readline()
                if not line:
                    return
                self.heard.append(json.loads(line))
                connection.sendall(answer)
            if line := lines.readline():
                self.heard.append(json.loads(line))
        self.listening.close()

    def __exit__(self, *_: object) -> None:
        self.listening.close()
        self.thread.join(10)


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Short: a socket's may have 107 bytes."""
    yield tmp_path_factory.mktemp("t") / "s"


def check_stopped(ran: Ran, bare: Ran, most: int = 80) -> None:
    """It ended as an ordinary trial does, having done what it does alone so far."""
    check_clean(ran)
    check_lines(ran.folder)  # type: ignore[arg-type]
    assert (ran.code, ran.facts.stopped) == (0, True)
    assert STEPS <= len(ran.steps) <= most
    assert bare.output.startswith(ran.output) or ran.losses == bare.losses[: len(ran.losses)]


def at_turnstile(runner: Runner, path: Path | str) -> tuple[Ran, Ran]:
    bare = runner.bare("turns.py", "gan", "400")
    begun = time.monotonic()
    ran = runner.forked("turns.py", "gan", "400", steps=STEPS, turns=str(path))
    assert time.monotonic() - begun < Session.grace_s * 0.75, "it had to be ended hard"
    return ran, bare


@pytest.mark.parametrize("what", ["nobody", "refused", "no folder", "too long", "no socket"])
def test_a_turnstile_where_nobody_is(runner: Runner, path: Path, what: str) -> None:
    at: Path | str = path
    if what == "refused":
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gone:
            gone.bind(str(path))
    elif what == "no folder":
        at = path / "of" / "this"
    elif what == "too long":
        at = "/tmp/" + "x" * 200
    elif what == "no socket":
        path.write_text("a file")
    check_stopped(*at_turnstile(runner, at))


@pytest.mark.parametrize(
    "answers",
    [
        (), (GO_ON,), (GO_ON, b'{"end": true}\n'), (GO_ON, b"{}\n"), (GO_ON, b"what\n"), (GO_ON, b"[]\n"),
        (GO_ON, b"\xff\n"), (GO_ON, b'{"run": "five"}\n'), (GO_ON, b'{"run": -2}\n'), (GO_ON, b'{"run": null}\n'),
        (GO_ON, b"x" * (MOST_LINE + 70_000)), (b"what\n", b'{"run": 0}\n'),
    ],
    ids=range(12),
)  # fmt: skip
def test_a_parent_that_goes_or_talks_nonsense(runner: Runner, path: Path, answers: tuple[bytes, ...]) -> None:
    with Parent(path, *answers) as parent:
        ran, bare = at_turnstile(runner, path)
    check_stopped(ran, bare)
    assert [line["step"] for line in parent.heard[:2]] == [0, len(ran.steps)][: len(parent.heard)]


def test_a_parent_that_goes_in_a_turn(runner: Runner, path: Path) -> None:
    """It makes the steps of its turn, and ends where it would stand still."""
    with Parent(path, GO_ON, b'{"run": 5}\n', b'{"run": 3, "levers": []}\n') as parent:
        ran, bare = at_turnstile(runner, path)
    check_stopped(ran, bare)
    steps = [line["step"] for line in parent.heard]
    assert steps[0] == 0 and [b - a for a, b in itertools.pairwise(steps[1:])] == [5, 3]
    assert len(ran.steps) == steps[-1]
    assert [n for n, step in enumerate(ran.steps) if step.probe and n >= steps[1]] == [steps[1], steps[2]]


def test_workers_that_stood_still_end_with_a_process_whose_parent_is_gone(runner: Runner, path: Path) -> None:
    with Parent(path, GO_ON, b'{"run": 1}\n'):
        ran = runner.forked("loader.py", "map", "--workers", "2", steps=4, least_steps=4, turns=str(path))
    check_clean(ran)
    assert ran.code == 0 and ran.losses == runner.bare("loader.py", "map").losses[: len(ran.losses)]


def test_a_process_stands_once_after_its_first_steps_and_not_before_them(runner: Runner, path: Path) -> None:
    with Parent(path, GO_ON, b'{"run": 2}\n') as parent:
        ran = runner.forked("turns.py", "gan", "400", steps=STEPS, turns=str(path), first_steps=3)
    check_stopped(ran, runner.bare("turns.py", "gan", "400"))
    steps = [line["step"] for line in parent.heard]
    assert steps == [0, len(ran.steps) - 2, len(ran.steps)]
    assert [at for at, step in enumerate(ran.steps[: steps[1]]) if step.probe] == [3], "the one after it has stood"


def test_where_nobody_is_after_the_first_steps_the_run_ends_as_ever(runner: Runner, path: Path) -> None:
    bare = runner.bare("turns.py", "gan", "400")
    check_stopped(runner.forked("turns.py", "gan", "400", steps=STEPS, turns=str(path), first_steps=3), bare)


def test_a_model_that_is_run_before_it_is_trained_stands_after_first_steps_of_its_training() -> None:
    agent = SimpleNamespace(script=SimpleNamespace(in_flight=lambda infers: 0), steps=SimpleNamespace(infers=False))
    stopper = Stopper(Session(folder="", package="", steps=90, turns="s", first_steps=4), agent)  # type: ignore[arg-type]
    stood: list[int] = []
    index = 0
    stopper.turnstile = SimpleNamespace(after_first_steps=lambda: stood.append(index))  # type: ignore[assignment]
    for index, kind in enumerate(["inference"] * 6 + ["train"] * 9):
        stopper.step_done(10.0, disturbed=False, kind=kind)
        stopper.look(index, kind)
    assert stood == [3, 9]


def test_many_turns_through_a_gate(path: Path) -> None:
    """Both ends, without a process: what one says the other understands."""
    gate = Gate(path)
    put_in: list[dict[str, Any]] = []
    agent = SimpleNamespace(
        rank=0, world=1, recorder=SimpleNamespace(drain=lambda wait: None, previous_event=None, host_anchor=None),
        write_facts=lambda kind, stopped: None, seams=SimpleNamespace(put_in=put_in.append),
        timeline=SimpleNamespace(segment=SimpleNamespace(probe=False, cuts=[], begun_ns=0)),
        marks=SimpleNamespace(mark=lambda: None),
    )  # fmt: skip
    turns: list[int | None] = []

    def run() -> None:
        turnstile, step = Turnstile(str(path), agent), 12  # type: ignore[arg-type]
        turnstile.before_loop()
        while (more := turnstile.wait(step, "train")) is not None:
            turns.append(more)
            step += more
        turns.append(None)

    running = threading.Thread(target=run)
    running.start()
    while not gate.at_start:
        gate.wait(1.0)
    gate.begin()
    for number in range(50):
        while not gate.arrived:
            gate.wait(1.0)
        assert gate.step == 12 + number
        gate.tell({"run": 1, "levers": [["tf32", {"at": number}]]} if number % 2 else {"run": 1})
    while not gate.arrived:
        gate.wait(1.0)
    gate.close()
    running.join(10)
    assert turns == [1] * 50 + [None] and put_in == [{"tf32": {"at": number}} for number in range(1, 50, 2)]
