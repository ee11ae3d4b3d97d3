"""Peaks of memory that evaluations and checkpoints raise, and who is said to have raised them."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotlap.agent import peaks as peaks_module
from hotlap.agent.guard import Guard
from hotlap.agent.peaks import EVERY_NS, PEAKS, Peaks

from .harness import Runner, check_clean, check_same

PLACE = ("train.py", 9, "evaluate")


class Loop:
    """Marks that a test raises by hand, and a loop around them."""

    def __init__(self) -> None:
        self.steps = SimpleNamespace(backwards=20, optimizer_steps=20, optimizers_built=1, evaluates=False)
        self.ns, self.mark, self.reads, self.quiet = 0, 10, 0, True
        self.peaks = Peaks(Guard(), self.steps, lambda: self.ns, lambda: self.quiet)  # type: ignore[arg-type]

    def read(self) -> dict[str, int]:
        self.reads += 1
        return {"host": self.mark}

    def trains(self, mark: int = 0) -> None:
        """A step."""
        self.peaks.trains()
        self.steps.backwards += 1
        self.mark, self.ns = max(self.mark, mark), self.ns + EVERY_NS

    def evaluates(self, mark: int) -> None:
        self.peaks.begins()
        self.peaks.evaluates()
        self.mark = max(self.mark, mark)

    def found(self) -> dict[str, tuple[int, int]]:
        return {one["kind"]: (one["training_bytes"], one["peak_bytes"]) for one in self.peaks.facts()}


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    made = Loop()
    monkeypatch.setattr(peaks_module, "_read", made.read)
    yield made


def test_an_evaluation_that_raises_the_peak(loop: Loop) -> None:
    loop.evaluates(15)
    loop.trains()
    loop.evaluates(16)
    loop.trains()
    assert loop.found() == {"evaluation": (10, 16)}


def test_training_that_has_more_is_training_s(loop: Loop) -> None:
    loop.evaluates(15)
    loop.trains(20)
    loop.evaluates(18)
    loop.trains()
    assert loop.found() == {"evaluation": (20, 15)}


@pytest.mark.parametrize(
    "what", ["nothing seen", "a backward", "cold", "an instrument", "below the peak", "a first optimizer step"]
)
def test_what_is_not_surely_an_evaluation_s(what: str, loop: Loop) -> None:
    if what == "cold":
        loop.steps.backwards = 2
    if what == "a first optimizer step":
        loop.steps.optimizer_steps = 1
    loop.quiet = what != "an instrument"
    loop.peaks.begins()
    if what != "nothing seen":
        loop.peaks.evaluates()
    loop.mark = 10 if what == "below the peak" else 15
    loop.steps.backwards += what == "a backward"
    loop.trains()
    loop.trains()
    loop.peaks.begins()
    assert loop.found() == {}


def test_a_script_may_reset_its_marks(loop: Loop) -> None:
    loop.evaluates(15)
    loop.trains()
    loop.mark = 3
    loop.evaluates(12)
    loop.trains(9)
    loop.peaks.begins()
    assert loop.found() == {"evaluation": (10, 15)}


def test_a_checkpoint_after_an_evaluation(loop: Loop) -> None:
    loop.evaluates(12)
    loop.peaks.saves()
    loop.mark = 19
    loop.peaks.saved()
    loop.trains()
    assert loop.found() == {"evaluation": (10, 12), "checkpoint": (10, 19)}


def test_forwards_in_each_of_many_short_steps_are_seldom_looked_at(loop: Loop) -> None:
    for _ in range(100):
        loop.evaluates(10)
        loop.peaks.trains()
        loop.steps.backwards += 1
        loop.ns += EVERY_NS // 50
    assert loop.reads <= 2 * 100 // 50


def test_an_error_ends_that_part_alone(loop: Loop) -> None:
    def fails() -> dict[str, int]:
        raise RuntimeError

    peaks_module._read = fails
    loop.evaluates(15)
    assert loop.found() == {} and loop.peaks._guard.on and not loop.steps.evaluates


@pytest.mark.parametrize(("kind", "told"), [("evaluates", "evaluation"), ("saves", "checkpoint"), ("plain", None)])
@pytest.mark.parametrize("looked_at", [True, False])
def test_a_run_says_which_raised_it(kind: str, told: str | None, looked_at: bool, runner: Runner) -> None:
    """In steps that are looked at, and in those that are not."""
    times = "30" if looked_at else "300"
    bare, ran = runner.bare("peaks.py", kind, times), runner.forked("peaks.py", kind, times)
    check_same(ran, bare)
    check_clean(ran)
    raised: list[Any] = [one for one in ran.facts.raised if one.peak_bytes - one.training_bytes > 2**26]
    assert [(one.kind, one.memory) for one in raised] == ([(told, "host")] if told else [])
    for one in raised:
        text = Path(one.place[0]).read_text().splitlines()
        assert text[one.place[1] - 1].endswith(f"# {kind}") and not one.gradients
        assert 1.01 * (ran.facts.peak_rss_bytes or 0) >= one.peak_bytes >= one.training_bytes + 2**27


def test_an_error_in_it_does_not_end_the_run(runner: Runner) -> None:
    ran = runner.forked("peaks.py", "saves", "30", fail_in=PEAKS)
    check_same(ran, runner.bare("peaks.py", "saves", "30"))
    assert [one.where for one in ran.problems] == [PEAKS] and len(ran.steps) == 30 and not ran.facts.raised
