"""Lines at which the loop's thread sleeps or waits."""

from pathlib import Path

import pytest

from hotlap.diagnose.causes import SLEEPS
from hotlap.diagnose.sampled import with_samples
from hotlap.records.diagnosis import Finding
from hotlap.records.profile import Samples
from hotlap.records.run import HostFacts
from made_runs import diagnosis_of

SOURCE = """
def draw(self):
    for row in range(100):
        self.fill(row)
    self.clock.tick(100)
    self.link.step_and_answer(row)
    out = subprocess.run(["nvidia-smi"])
    x = torch.tensor(rows)
    while True:
        time.sleep(0.01)
"""
ALONE = HostFacts(steps=9, took_ms=10.0, stood_ms=9.0, user_ms=1.0, waited_ms=1.0, threads_waited_ms=1.5)
OTHERS_RUN = HostFacts(steps=9, took_ms=10.0, stood_ms=9.0, user_ms=9.0, waited_ms=1.0, threads_waited_ms=1.0)
OTHERS_STARVE = HostFacts(steps=9, took_ms=10.0, stood_ms=9.0, user_ms=1.0, waited_ms=1.0, threads_waited_ms=8.0)


def found_at(
    line: int, stood: float, folder: Path, device: str = "cpu", host: HostFacts | None = ALONE, inside: str = ""
) -> Finding:
    """At a line that takes 80 ms of ten steps."""
    file = folder / "game.py"
    file.write_text(SOURCE)
    row = ("other", 0, line, "draw", inside, 80.0)
    rest = ("other", 0, 99, "main", "", 8.0)
    still = ((*row[:5], stood),) if stood else ()
    said = Samples(steps=10, looks=100, files=(str(file),), lines=(row, rest), stood=still)
    before = Finding(id="host-code", bound="unknown", share=0.5, evidence="x", instead="log every n steps")
    run = diagnosis_of(bound="unknown", step_ms=10.0, findings=(before,), device=device)
    return with_samples(run, said, host=host).findings[0]


@pytest.mark.parametrize(
    ("line", "inside", "it"),
    [
        (5, "", "self.clock.tick"),
        (6, "", "self.link.step_and_answer"),
        (6, "socket.SocketIO.readinto", "socket.SocketIO.readinto"),
    ],
)
def test_the_line_and_what_is_called_there(line: int, inside: str, it: str, tmp_path: Path) -> None:
    """Also where that lies in a loop over single elements."""
    found = found_at(line, 70.0, tmp_path, inside=inside)
    assert (found.title, found.where and found.where.line, found.named) == (SLEEPS.title, line, True)
    assert f"`{it}`" in found.instead and "log every n steps" not in found.instead


@pytest.mark.parametrize(
    ("line", "device", "host", "told"),
    [
        (5, "cuda", ALONE, True),  # what it calls is known to sleep
        (6, "cuda", ALONE, False),  # it may be the device
        (6, "cpu", OTHERS_RUN, False),  # it may be what other threads compute
        (6, "cpu", OTHERS_STARVE, False),  # or would
        (6, "cpu", None, False),
        (5, "cpu", OTHERS_RUN, True),
    ],
)
def test_what_else_it_may_wait_for(line: int, device: str, host: HostFacts | None, told: bool, tmp_path: Path) -> None:
    assert (found_at(line, 70.0, tmp_path, device, host).title == SLEEPS.title) is told


def test_where_it_runs_or_the_cause_says_more_it_does_not_sleep(tmp_path: Path) -> None:
    for line in (5, 6, 8):
        assert found_at(line, 0.0, tmp_path).title != SLEEPS.title
        assert found_at(line, 3.0, tmp_path).title != SLEEPS.title, "0.3 ms of a step"
    assert found_at(4, 0.0, tmp_path).title == "a Python loop over single elements"
    assert found_at(10, 70.0, tmp_path).title == "the loop sleeps"
    assert found_at(7, 70.0, tmp_path).title == "a program is started in the loop"
    inside_torch = found_at(6, 70.0, tmp_path, inside="torch.all_reduce")
    assert inside_torch.id == "communication" and inside_torch.title != SLEEPS.title
