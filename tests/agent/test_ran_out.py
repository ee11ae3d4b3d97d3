"""Host memory runs out: the script ends as it does without hotlap, and what it held then is told."""

from pathlib import Path

import pytest

from hotlap.agent import ended
from hotlap.memory.ran_out import ran_out
from hotlap.records.memory import MemoryWindow
from hotlap.records.run import Environment, Run
from hotlap.runs.folder import RunFolder

from .harness import Ran, Runner, check_same

ASKED = 1 << 34
FAILED = Run(
    command=("python", "lacks.py"), cwd="/", status="failed", exit_code=1,
    environment=Environment(hotlap="0", python="3", os="", cpu="", cores=1, memory_gib=1.0),
)  # fmt: skip


def window_of(ran: Ran) -> MemoryWindow | None:
    return RunFolder(ran.folder or Path()).rank(0).memory("oom")


@pytest.mark.parametrize(
    ("where", "phase", "step", "line"),
    [
        ("forward", "forward", 4, "Net.forward"),
        ("backward", "backward", 4, "Greedy.backward"),
        ("loop", "other", 4, "more"),
        ("python", "other", 4, "more"),
        ("chained", "other", 4, "more"),
        ("before", "before the loop", 1, "more"),
    ],
)
def test_what_was_held_and_where(where: str, phase: str, step: int, line: str, runner: Runner) -> None:
    ran = runner.untouched("lacks.py", where)
    assert ran.code == 1 and "Traceback" in ran.output
    window = window_of(ran)
    assert window is not None and window.ran_out is not None
    told = window.ran_out
    assert (told.phase, told.step, told.frames[0][2]) == (phase, step, line)
    assert told.frames[-1][2] == "<module>" and told.frames[0][0].endswith("lacks.py")
    assert told.asked_bytes == (None if where == "python" else ASKED)
    assert told.total_bytes and told.resident_bytes and told.total_bytes > told.resident_bytes > 1 << 26
    assert (window.device, window.source) == ("cpu", "operations")
    names = {owner.name: owner for owner in window.owners}
    assert names["kept[…]"].category == "held" and names["kept[…]"].bytes == 1 << 20
    if where != "before":
        assert "first.weight" in names
        assert {owner.category for owner in window.owners} >= {"parameters", "optimizer state", "held"}
        assert where == "backward" or "gradients" in {owner.category for owner in window.owners}, "dropped before it"
    shown = ran_out(RunFolder(ran.folder or Path()), FAILED)
    assert shown is not None and not shown.went_on and shown.usage is not None
    assert shown.usage.part("held") >= 4 << 20 and shown.where == told.frames[0]


def test_of_one_that_is_caught_and_left_nothing_is_told(runner: Runner) -> None:
    """Nobody knows of it on the host; on a device the allocator tells, and the reader sees that the script went on."""
    ran = runner.untouched("lacks.py", "caught")
    assert ran.code == 0 and "caught" in ran.output and len(ran.losses) == 5
    assert window_of(ran) is None


def test_an_error_as_that_is_told(runner: Runner) -> None:
    """The script ends as it would, and the rest is recorded."""
    bare = runner.bare("lacks.py", "forward")
    ran = runner.forked("lacks.py", "forward", fail_in="memory")
    check_same(ran, bare)
    assert [(one.where, one.what) for one in ran.problems] == [("memory", "RuntimeError: injected into memory")]
    assert window_of(ran) is None and len(ran.steps) >= 3


def test_errors_that_lack_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(error: BaseException) -> tuple[bool, int | None] | None:
        monkeypatch.setattr("sys.last_exc", error, raising=False)
        found = ended.ended()
        return None if found is None else (found.cuda, found.asked_bytes)

    import torch

    gib = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 5 MiB is"
    assert asked(torch.cuda.OutOfMemoryError(gib)) == (True, 20 << 30)
    assert asked(RuntimeError("CUDA error: out of memory")) == (True, None)
    assert asked(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 96 bytes.")) == (
        False,
        96,
    )
    assert asked(MemoryError("Unable to allocate 1.50 GiB for an array with shape (1,)")) == (False, 3 << 29)
    assert asked(MemoryError()) == (False, None)
    assert asked(OSError(12, "Cannot allocate memory")) == (False, None)
    assert asked(RuntimeError("Tried to allocate 1.2.3 GiB; DefaultCPUAllocator: not enough memory")) == (False, None)
    assert asked(RuntimeError("shapes differ")) is None and asked(KeyboardInterrupt()) is None
    deep: BaseException = ValueError("no more than so many causes are looked at")
    deep.__cause__ = deep
    assert asked(deep) is None


def test_a_message_of_the_script_s_own_class_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(RuntimeError):
        def __str__(self) -> str:
            raise AssertionError("called")

    monkeypatch.setattr("sys.last_exc", Own("CUDA out of memory. Tried to allocate 2.00 MiB"), raising=False)
    assert ended.ended() == ended.Ended(True, 2 << 20, [])
