"""A run of --steps N ends after them, whatever the script catches, on every rank, and nothing lingers."""

import contextlib
import sys
import threading
from pathlib import Path

import psutil
import pytest

from hotlap.diagnose.steps import steady_steps
from hotlap.diagnose.verdict import verdict
from hotlap.records.run import Lever
from hotlap.records.session import ENDED_HARD
from hotlap.runs.folder import RankFolder

from .harness import Runner, check_clean, check_lines, free_port


@pytest.mark.parametrize("kind", ["catch", "bare"])
def test_scripts_that_catch(kind: str, runner: Runner) -> None:
    """`except Exception` does not see the stop; what a bare `except` swallows ends the process in the end."""
    ran = runner.forked("endings.py", kind, steps=8)
    check_clean(ran)
    check_lines(ran.folder)
    assert ran.code == 0
    assert "caught" not in ran.output
    assert ran.facts.stopped
    assert 8 < len(ran.steps) <= 80


def test_the_steps_asked_for_are_steady_ones(runner: Runner) -> None:
    """A run that is over before its steps are is not stopped."""
    ran = runner.forked("endings.py", "none", steps=500)
    check_clean(ran)
    assert ran.code == 0
    assert len(ran.steps) == 12
    assert not ran.facts.stopped


LINGERS = """
import sys, time, torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    for step in range(100_000):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
finally:
    print("saving", flush=True)
    time.sleep(float(sys.argv[1]))
    print("saved", flush=True)
"""


@pytest.mark.parametrize(("takes_s", "code", "output"), [("0.5", 0, "saving\nsaved\n"), ("60", 121, "saving\n")])
def test_what_does_not_end_by_itself_ends_with_a_code_that_says_so(
    takes_s: str, code: int, output: str, runner: Runner, tmp_path: Path
) -> None:
    """A checkpoint that was being written was cut, and the exit code said that all was well."""
    (tmp_path / "lingers.py").write_text(LINGERS)
    grace_s = 30.0 if code == 0 else 1.0
    ran = runner.forked(str(tmp_path / "lingers.py"), takes_s, steps=8, grace_s=grace_s, hard_code=ENDED_HARD)
    assert (ran.code, ran.output) == (code, output)
    check_lines(ran.folder)
    assert ran.facts.stopped


CATCHES_ALL = """
import sys, torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
log = open(sys.argv[1], "w")
while True:
    try:
        log.write("a step")
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    except:
        pass
"""


def test_a_script_that_catches_its_end_ends_with_that_code_too(runner: Runner, tmp_path: Path) -> None:
    """What it had not written out was lost, and the exit code said that all was well."""
    (tmp_path / "catches.py").write_text(CATCHES_ALL)
    log = tmp_path / "log.txt"
    ran = runner.forked(str(tmp_path / "catches.py"), str(log), steps=8, hard_code=ENDED_HARD)
    check_clean(ran)
    assert (ran.code, log.read_text()) == (ENDED_HARD, "")
    assert ran.facts.stopped


@pytest.mark.parametrize(("kind", "evaluating"), [("often", {False}), ("always", {True})])
def test_the_steps_asked_for_are_those_that_are_kept(kind: str, evaluating: set[bool], runner: Runner) -> None:
    """Of 13 steps of a U-Net that was evaluated in every second one, a reader kept four."""
    ran = runner.forked("evaluation.py", kind, steps=8)
    check_clean(ran)
    assert (ran.code, ran.facts.stopped) == (0, True) and len(ran.steps) < 200
    steady = steady_steps(ran.steps, ran.facts).steps
    assert len(steady) >= 8 and {step.evaluation for step in steady} == evaluating


MADE_AHEAD = """
import time
import torch

WORKERS, MAKING_S = 4, 0.12

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        time.sleep(MAKING_S)
        return torch.ones(4)

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, x in enumerate(torch.utils.data.DataLoader(Slow(), num_workers=WORKERS, prefetch_factor=4)):
    if step == 0:
        time.sleep(1.5)  # so that all are there that can be
    elif step < 16:
        time.sleep(0.03)  # three more of each worker's come meanwhile
    loss = model(x).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("seconds", [None, 0.5])
def test_a_loop_faster_than_its_workers_is_timed_when_it_has_to_wait_for_them(
    seconds: float | None, runner: Runner, tmp_path: Path
) -> None:
    """12 batches or more are there when it begins to run fast. Then no more come than four workers make, asleep for
    120 ms each."""
    script = tmp_path / "made_ahead.py"
    script.write_text(MADE_AHEAD)
    ran = runner.forked(str(script), steps=24, seconds=seconds)
    check_clean(ran)
    assert ran.facts.stopped and ran.facts.in_flight == 16
    steady = steady_steps(ran.steps, ran.facts).steps
    assert len(steady) >= 8 and any(step.starved for step in ran.steps[: steady[0].step + 1])
    made = len(steady) - 16 // 4 - 4  # the rest may have been there, or under way, at the first of them
    assert sum(step.wall_ms for step in steady) >= made * 120 / 4


@pytest.mark.parametrize(("kind", "ended"), [("stopped", "[False, False]"), ("own", "[True, True]")])
def test_workers_that_outlive_an_epoch_end_before_the_process(kind: str, ended: str, runner: Runner) -> None:
    """Older versions of torch wait 5 s at exit for each that nobody told. What the script does alone stays its own."""
    ran = runner.under(["persistent_workers.py"], steps=6 if kind == "stopped" else 500)
    check_clean(ran)
    assert (ran.code, ran.facts.stopped) == (0, kind == "stopped")
    assert f"alive at exit {ended}" in ran.output


def test_workers_that_a_lever_lets_live_end_before_the_process(runner: Runner) -> None:
    settings = {"workers": 2, "prefetch": 2, "pin_memory": False, "persistent": True}
    ran = runner.under(["persistent_workers.py", "not"], levers=(Lever(name="loader-workers", settings=settings),))
    check_clean(ran)
    assert ran.code == 0
    assert "alive at exit [False, False]" in ran.output


def test_inference_stops_too(runner: Runner) -> None:
    ran = runner.forked("inference.py", "no_grad", "long", steps=3)
    check_clean(ran)
    assert (ran.code, ran.facts.stopped, ran.facts.mode) == (0, True, "inference")
    assert len(ran.steps) < 1200


def test_every_rank_under_torchrun_which_restarts_them(runner: Runner) -> None:
    """All ranks stop at the same step; no process of the command is left, and all were seen while it ran. The second
    start's wrote to `rank-2` and `rank-3`, whoever came first, and the verdict was of one process."""
    command = [
        str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "2", "--max-restarts", "1",
        "--master-port", free_port(), "ranks.py", "torchrun", "fails", "long",
    ]  # fmt: skip
    seen: set[psutil.Process] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.2):
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process().children(recursive=True):
                    if "ranks.py" in child.cmdline():
                        seen.add(child)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        ran = runner.under(command, python=False, steps=8)
    finally:
        over.set()
        watcher.join()
    check_clean(ran)
    check_lines(ran.folder)
    assert ran.code == 0
    assert len(seen) >= 5
    assert [process for process in seen if process.is_running()] == []
    facts = [(rank.number, rank.facts) for rank in ran.ranks]
    assert [(number, found.rank, found.world, found.stopped) for number, found in facts if found] == [
        (0, 0, 2, True),
        (1, 1, 2, True),
    ]
    (steps,) = {len(list(rank.steps)) for rank in ran.ranks}
    assert steps > 8
    found = verdict(ran.folder)
    assert found.ranks == 2 and "restarted" in found.unknown[0]
    first = [RankFolder(ran.folder / f"rank-{number}") for number in range(2)]
    assert [len(list(rank.steps)) <= 6 for rank in first] == [True, True]


def test_ranks_that_share_no_folder_stop_together(runner: Runner) -> None:
    """As on two machines: rank 0 stopped alone, and the others waited for it in a collective."""
    port = free_port()
    ranks = runner.forked_at_once([["ranks.py", "alone", port, str(number), "long"] for number in range(2)], steps=8)
    assert [ran.code for ran in ranks] == [0, 0]
    for ran in ranks:
        check_clean(ran)
        assert ran.facts.stopped
    assert len(ranks[0].steps) == len(ranks[1].steps) < 200


POOL = """
import time
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from hotlap.agent.compiled import end_compile_workers

config.compile_threads = 2
pool = AsyncCompile.process_pool()
future = pool.submit(time.sleep, 600) if {busy} else pool.submit(abs, -3)
assert {busy} or future.result() == 3
if not {busy}:  # as it is while they start
    AsyncCompile._ready_future = pool.submit(time.sleep, 600)
end_compile_workers()
print("ended" if pool.process.poll() is not None else "runs", flush=True)
pool.process.kill()
"""


@pytest.mark.parametrize(("busy", "said"), [(False, "ended"), (True, "runs")])
def test_compile_workers_that_have_nothing_to_do_are_not_waited_for(
    runner: Runner, tmp_path: Path, busy: bool, said: str
) -> None:
    """The script ends as it would, and says nothing of it."""
    (tmp_path / "pool.py").write_text(POOL.format(busy=busy))
    ran = runner.bare(str(tmp_path / "pool.py"))
    assert ran.output.splitlines()[:1] == [said]
    assert busy or (ran.code == 0 and ran.output == "ended\n")
