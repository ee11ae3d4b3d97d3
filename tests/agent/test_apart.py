"""Work in a forked child leaves no trace in this process."""

import os
import random
import sys
import time
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from hotlap.agent.apart import apart
from hotlap.agent.guard import Guard

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")
AGENT: Any = SimpleNamespace(guard=Guard())


def test_it_answers_and_nothing_else_is_seen(capfd: pytest.CaptureFixture[str]) -> None:
    before = random.getstate()

    def work() -> str:
        print("not the user's", flush=True)
        os.environ["HOTLAP_TEST_APART"] = "1"
        return f"0.{random.getrandbits(10)} ü" + "x" * 5000

    said = apart(AGENT, work, 20.0)
    assert said is not None and said.startswith("0.") and 3000 < len(said) < 4100
    assert random.getstate() == before and "HOTLAP_TEST_APART" not in os.environ
    assert capfd.readouterr() == ("", "") and AGENT.guard.on


def test_an_error_and_a_late_answer_are_none() -> None:
    def fails() -> str:
        raise ValueError("the dataset's own")

    assert apart(AGENT, fails, 20.0) is None
    assert apart(AGENT, lambda: os._exit(0), 20.0) is None  # type: ignore[arg-type]
    begun = time.monotonic()
    assert apart(AGENT, lambda: time.sleep(100) or "", 0.2) is None  # type: ignore[func-returns-value]
    assert time.monotonic() - begun < 20
    assert not [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]


def test_an_empty_answer_is_an_answer() -> None:
    assert apart(AGENT, str, 20.0) == ""
