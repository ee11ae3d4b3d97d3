"""Time in Python's collector is counted without taking from the job what comes meanwhile."""

import gc
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hotlap.agent.host import REMEMBERED, Pauses

COLLECTS = """
import gc, time, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
kept = [[at] for at in range(600_000)]
until, said = time.time() + 60, False
while time.time() < until:
    gc.collect()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if not said:
        print("up", flush=True)
        said = True
print("it went on")
"""


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


def counted(pauses: Pauses, collections: int) -> tuple[int, int]:
    pauses.install()
    try:
        for _ in range(collections):
            gc.collect(0)
        pauses.read()
    finally:
        gc.callbacks.remove(pauses.callback)
    return pauses.collections, pauses.ns


def test_ctrl_c_that_comes_in_a_collection_ends_the_job(tmp_path: Path) -> None:
    """It was lost: Python raises it in the next code of Python's, and that was hotlap's callback of the collector."""
    script = tmp_path / "train.py"
    script.write_text(COLLECTS)
    command = [sys.executable, "-m", "hotlap", "run", "--out", str(tmp_path / "run"), sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "up\n"
        running.send_signal(signal.SIGINT)
        output = running.communicate(timeout=50)[0]
    assert "it went on" not in output and running.returncode in {130, -signal.SIGINT}


@pytest.mark.parametrize("collections", [3, REMEMBERED - 1, 3 * REMEMBERED])
def test_collections_are_counted_and_timed(collections: int, pauses: Pauses) -> None:
    """Of more than it remembers the last stand for all."""
    found, ns = counted(pauses, collections)
    assert collections <= found <= collections + 20 and ns > 100 * collections


def test_the_callback_runs_no_code_of_pythons(pauses: Pauses) -> None:
    seen: list[str] = []
    sys.setprofile(lambda frame, event, arg: seen.append(event))
    try:
        pauses.callback("start", {})
    finally:
        sys.setprofile(None)
    assert "call" not in seen
