"""Parts of a profile that need no training: whose a line is, syncs as torch warns of them, labels for Nsight."""

import contextlib
import os
import sys
import threading
import warnings
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from hotlap.agent import lines as lines_module
from hotlap.agent import profile as profile_module
from hotlap.agent.guard import Guard
from hotlap.agent.lines import Lines, Places
from hotlap.agent.profile import Profile
from hotlap.agent.timeline import Timeline
from hotlap.records.phases import DATA, FORWARD
from hotlap.records.session import Session

HERE = Path(__file__).name
NO_MEMORY = SimpleNamespace(looking=False, operations=None, give_up=lambda: None)


def plainly(act: Any, *of: Any) -> None:
    act(*of)


# whose a line is


@pytest.mark.parametrize(
    ("path", "users"),
    [
        ("/home/me/train.py", True),
        ("/home/me/.venv/src/editable/train.py", True),
        ("/home/me/.venv/lib/python3.11/site-packages/lightning/loop.py", False),
        ("/usr/lib/python3/dist-packages/six.py", False),
        (os.__file__, False),
        (torch.__file__, False),
        (lines_module.__file__, False),
        ("<string>", False),
        ("<frozen runpy>", False),
    ],
)
def test_whose_a_file_is(path: str, users: bool) -> None:
    assert (Places()._number(path) >= 0) == users


def test_a_command_that_was_installed_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    main = "/x/lib/python3.11/site-packages/tuner/cli.py"
    monkeypatch.setattr(sys.modules["__main__"], "__file__", main, raising=False)
    places = Places()
    assert places._number("/x/lib/python3.11/site-packages/tuner/loop.py") == 0
    assert places._number("/x/lib/python3.11/site-packages/lightning/loop.py") == -1
    assert places.files == ["/x/lib/python3.11/site-packages/tuner/loop.py"]


def test_relative_names_are_made_absolute_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    places = Places()
    assert places._number("train.py") == 0
    monkeypatch.chdir("/")
    frame = SimpleNamespace(f_code=SimpleNamespace(co_filename="train.py", co_qualname="main"), f_lineno=7, f_back=None)
    assert places.innermost(frame) == (0, 7, "main")  # type: ignore[arg-type]
    assert places.files == [str(tmp_path / "train.py")]


# ops


def test_ops_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "LONGEST", 5)
    lines = Lines(plainly)
    with lines.watching(ops=True):
        for _ in range(8):
            torch.ones(1)
    assert [op[0] for op in lines.ops] == ["aten::ones"] * 5
    assert lines.document()["left_out"] == 3


def test_other_threads_are_not_logged() -> None:
    lines = Lines(plainly)
    with lines.watching(ops=True):
        thread = threading.Thread(target=torch.zeros, args=(1,))
        thread.start()
        thread.join()
        torch.ones(1)
    assert [op[0] for op in lines.ops] == ["aten::ones"]
    assert Path(lines.places.files[0]).name == HERE


def test_no_tensor_is_kept() -> None:
    lines = Lines(plainly)
    with lines.watching(ops=True):
        tensor = torch.ones(3) + 1
        gone = []
        weakref.finalize(tensor, gone.append, True)
        del tensor
        assert gone == [True]


def test_what_has_no_line_is_at_its_functions() -> None:
    """Python 3.11 had none in the middle of a `while`; the record of samples was refused for it."""
    code = test_what_has_no_line_is_at_its_functions.__code__
    frame: Any = SimpleNamespace(f_code=code, f_lineno=None, f_back=None)
    assert list(lines_module.calls(frame)) == [(code, code.co_firstlineno)]


class Other(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_modes_that_the_script_leaves_on_stay_on() -> None:
    """One that was opened inside the window is still open when it ends."""
    lines, other = Lines(plainly), Other()
    with lines.watching(ops=True):
        other.__enter__()
    assert _get_current_dispatch_mode_stack() == [other]
    other.__exit__(None, None, None)
    assert _get_current_dispatch_mode_stack() == []


def test_an_error_of_an_op_is_the_scripts() -> None:
    lines = Lines(plainly)
    with lines.watching(ops=True), pytest.raises(RuntimeError, match="size"):
        torch.ones(2) + torch.ones(3)
    assert _get_current_dispatch_mode_stack() == []


# syncs


@pytest.fixture
def sync_mode(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the mode was set to; on it warns as torch does."""
    asked: list[str] = []

    def set_mode(mode: str) -> None:
        asked.append(mode)
        if mode == "warn":
            warnings.warn("Synchronization debug mode is a prototype feature and does not yet", stacklevel=1)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    return asked


def wait() -> None:
    warnings.warn(
        "called a synchronizing CUDA operation (Triggered internally at CUDAFunctions.cpp:150.)", stacklevel=1
    )


def test_syncs_and_other_warnings(sync_mode: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is logged, however often it comes from one line; the script's own warnings go where they went."""
    shown: list[str] = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *rest: shown.append(str(message)))
    before, filters = warnings.showwarning, list(warnings.filters)
    lines = Lines(plainly)
    with lines.watching_syncs():
        for _ in range(2):
            wait()
        warnings.warn("of the script", stacklevel=1)
    assert sync_mode == ["warn", "default"]
    assert [(sync[0], sync[3]) for sync in lines.syncs] == [("called a synchronizing CUDA operation", "wait")] * 2
    assert shown == ["of the script"]
    assert warnings.showwarning is before
    assert list(warnings.filters) == filters


def test_syncs_where_the_script_changes_warnings(sync_mode: list[str]) -> None:
    """Filters that the script puts back, and a hook that it leaves in, are its own."""
    filters = list(warnings.filters)
    lines = Lines(plainly)

    def own(*args: Any, **kwargs: Any) -> None: ...

    with warnings.catch_warnings():
        with lines.watching_syncs():
            warnings.resetwarnings()
            warnings.showwarning = own
        assert warnings.showwarning is own
    assert list(warnings.filters) == filters


def test_on_a_device_the_next_step_is_looked_at_too(sync_mode: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """For what both copy to it; in sync debug mode, where that is free."""
    written: dict[str, Any] = {}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr("hotlap.agent.op_call.is_capturing", lambda: False)
    folder = SimpleNamespace(replace=lambda name, document: written.update(document))
    script = SimpleNamespace(roots={})
    agent: Any = SimpleNamespace(folder=lambda: folder, guard=Guard(), script=script, compiled_frames=0, world=1)
    table = torch.randn(8, 8)
    for _ in Profile(Session(folder="", package="", profile_steps=2), agent)._line_windows():
        table.to("meta")
        torch.randn(8, 8).to("meta")
    assert [(row[2], row[3]) for row in written["copied"]] == [("test_on_a_device_the_next_step_is_looked_at_too", 256)]
    assert sync_mode == ["warn", "default"] and _get_current_dispatch_mode_stack() == []


def test_without_a_trace_no_step_is_followed_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each backward to the end would be looked through, and what is known of the ops kept."""
    folder = SimpleNamespace(replace=lambda name, document: None)
    agent: Any = SimpleNamespace(
        folder=lambda: folder, guard=Guard(), script=SimpleNamespace(roots={}), compiled_frames=0, world=1
    )
    profile = Profile(Session(folder="", package="", profile_steps=2), agent)
    profile.foreign = True
    monkeypatch.setattr(profile, "_sample_window", lambda: iter(()))
    followed = [profile.seen is not None for _ in profile._windows()]
    assert followed == [True] and profile.seen is None
    assert profile.record["note"] == "the script runs its own profiler"


# labels


def test_labels_for_nsight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step and phase, in a run without --profile, once Nsight is there and CUDA is in use."""
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", calls.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: calls.append("pop"))
    agent: Any = SimpleNamespace(
        timeline=Timeline(lambda: 0, lambda: None), guard=Guard(), recorder=SimpleNamespace(index=4), memory=NO_MEMORY
    )
    profile = Profile(Session(folder="", package=""), agent)
    for name in profile_module.NSIGHT:
        monkeypatch.delenv(name, raising=False)
    profile.label_for_nsight()
    assert agent.timeline.watch is None
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    profile.label_for_nsight()
    assert agent.timeline.watch is profile
    for index in (4, 5):
        agent.recorder.index = index
        profile.due = True
        agent.timeline.enter(DATA)
        agent.timeline.leave()
        agent.timeline.enter(FORWARD)
        agent.timeline.unwind()
    step = ["hotlap:data", "pop", "hotlap:forward", "pop"]
    assert calls == ["ProfilerStep#4", *step, "pop", "ProfilerStep#5", *step]
    assert not profile.on


def test_a_label_that_fails_takes_all_labels_out(monkeypatch: pytest.MonkeyPatch) -> None:
    agent: Any = SimpleNamespace(
        timeline=Timeline(lambda: 0, lambda: None), guard=Guard(), recorder=SimpleNamespace(index=4), pid=0,
        memory=NO_MEMORY,
    )  # fmt: skip
    problems: list[str] = []
    agent.guard.report = lambda where, what, trace, lever: problems.append(where)
    profile = Profile(Session(folder="", package="", profile_steps=3), agent)

    def broken(name: str) -> Any:
        raise RuntimeError("no NVTX")

    profile.labels.kinds.append(broken)
    agent.timeline.watch = profile
    agent.timeline.enter(DATA)
    agent.timeline.leave()
    assert problems == [profile_module.LABEL]
    assert agent.guard.on
    assert agent.timeline.watch is None
    assert profile.boundary()


def test_waits_that_are_no_ops_are_logged_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(f"device {device}"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: waited.append("cache"))
    before = torch.cuda.synchronize, torch.cuda.empty_cache, vars(torch.cuda.Stream).get("synchronize")
    lines = Lines(plainly)
    with lines.watching(ops=True):
        torch.cuda.synchronize(1)
        torch.cuda.empty_cache()
    torch.cuda.synchronize()
    assert waited == ["device 1", "cache", "device None"]
    assert [name for name, *_ in lines.calls] == ["torch.cuda.synchronize", "torch.cuda.empty_cache"]
    assert before == (torch.cuda.synchronize, torch.cuda.empty_cache, vars(torch.cuda.Stream).get("synchronize"))


def test_a_mode_that_inference_mode_began_with_stays_until_its_end() -> None:
    lines = Lines(plainly)
    with contextlib.ExitStack() as watching:
        watching.enter_context(lines.watching(ops=True))
        with torch.inference_mode():
            assert lines.mode_stays
            lines.forget()
        assert not lines.mode_stays and len(_get_current_dispatch_mode_stack()) == 1
        assert (torch.ones(2) + 1).tolist() == [2, 2]  # torch raised here where the mode was gone
        assert lines.ops == []
    assert _get_current_dispatch_mode_stack() == []
    with torch.inference_mode():
        with lines.watching(ops=True):
            assert not lines.mode_stays
        assert _get_current_dispatch_mode_stack() == []


def test_targets_that_a_loss_leaves_out_are_counted() -> None:
    lines = Lines(plainly)
    hidden = torch.randn(2, 8, 4, requires_grad=True)
    inner, vocabulary = torch.randn(4, 4), torch.randn(4, 100)
    targets = torch.full((16,), -100)
    targets[:4] = 7
    with lines.watching(ops=True):
        logits = (hidden @ inner) @ vocabulary
        loss = torch.nn.functional.cross_entropy(logits.view(16, 100), targets)
    again = torch.nn.functional.cross_entropy(logits.view(16, 100), targets)
    assert torch.equal(loss, again), "it is what it was"
    (told,) = lines.document()["targets"]
    assert lines.places.files[told[0]] == __file__
    assert told[3:] == [0.75, 100, pytest.approx(100 / 104)]
