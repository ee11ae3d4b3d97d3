"""An error inside any hook: hotlap goes off, says so, and the script does not notice."""

import pytest

from hotlap.agent import guard, start
from hotlap.records.session import LeverUse

from .harness import Runner, check_lines, check_same

HOOKS = [*guard.HOOKS] if start.SEAMS else []  # the agent's start imports whatever has hooks
TRANSFERS = {"transfer_begin", "transfer_end"}
SCALED = {"grad_scale", "grad_scaler_step"}
PROBED = {"clip"}
"""In trials alone."""
SPARE = {
    name
    for name in HOOKS
    if name.startswith("profile_")
    or name in {"facts", "habits", "memory", "peaks", "port", "unused_forwards", "wasted", "worker_samples"}
}
"""Parts that hotlap goes on without; see test_profile.py, test_facts.py, test_habits.py, test_rendezvous.py,
test_peaks.py, test_ran_out.py, test_unused.py, test_wasted.py and test_worker_samples.py."""
CHILDREN = {"fork"}
"""See test_children.py."""
GRAPHS = {name for name in HOOKS if name.startswith("graph_")}
"""See test_graphs.py."""
UNSAMPLED = {name for name in HOOKS if name.startswith("unsampled_")}
"""See test_step_sampling.py."""


A_DEVICE = """
torch.version.cuda = "12.0"

def pretended(original):
    def move(self, *args, **kwargs):
        target = kwargs.pop("device", args[0] if args else "cuda")
        if str(target) == "cuda:99":
            raise RuntimeError("invalid device ordinal")
        target = target if isinstance(target, torch.dtype) else "cpu"
        return original(self, target, *args[1:], **kwargs)
    return move

torch.Tensor.to = torch.Tensor.cuda = pretended(torch.Tensor.to)
"""
"""A build of torch with a device, which is the CPU."""


def test_every_seam_has_hooks() -> None:
    seams = {"data_begin", "forward_end", "backward_end", "optimizer_end", "transfer_begin"}
    assert seams | {"agent_start", "exit"} <= set(HOOKS)
    assert len(set(HOOKS)) == len(HOOKS)
    assert len(SPARE) >= 4


@pytest.mark.parametrize("hook", [name for name in HOOKS if name not in SPARE | CHILDREN | UNSAMPLED | GRAPHS])
def test_an_error_in_a_hook(hook: str, runner: Runner) -> None:
    argv = ("moves.py",) if hook in TRANSFERS else ("scaler.py",) if hook in SCALED else ("loader.py", "map")
    argv = ("clips.py",) if hook in PROBED else argv
    before, probed = A_DEVICE if hook in TRANSFERS else "", 4 if hook in PROBED else 0
    bare = runner.bare(*argv, before=before)
    ran = runner.forked(*argv, before=before, fail_in=hook, probe_steps=probed)
    check_same(ran, bare)
    assert [(problem.where, problem.what) for problem in ran.problems] == [
        (hook, f"RuntimeError: injected into {hook}")
    ]
    assert "injected into" in ran.problems[0].trace
    check_lines(ran.folder)
    assert len(ran.steps) == {"exit": 12, "grad_scaler_step": 5}.get(hook, 0)


def test_moves_without_an_error(runner: Runner) -> None:
    """What the tests of transfers above rest on: the hooks run, and change nothing either."""
    bare, ran = runner.bare("moves.py", before=A_DEVICE), runner.forked("moves.py", before=A_DEVICE)
    check_same(ran, bare)
    assert "invalid device ordinal" in bare.output
    assert ran.problems == []
    check_lines(ran.folder)
    assert len(ran.steps) == 12 and all(step.phases.h2d for step in ran.steps)


FULL_DISK = """
import hotlap.agent.core as core

class Full(core.Folder):
    def append(self, name, line):
        raise OSError(28, "No space left on device")

core.Folder = Full
"""


@pytest.mark.parametrize(
    "levers", [(), (LeverUse("host-allocator", {"allocator": "glibc"}),)], ids=["bare", "with a lever"]
)
def test_a_full_disk(runner: Runner, levers: tuple[LeverUse, ...]) -> None:
    """Not even the problem can be recorded."""
    bare, ran = runner.bare("loader.py", "map"), runner.forked("loader.py", "map", before=FULL_DISK, levers=levers)
    check_same(ran, bare)
    assert ran.problems == []
    assert not (ran.ranks[0].path / "steps.jsonl").exists()


WORKERS = LeverUse("loader-workers", {"workers": 1, "prefetch": 2, "pin_memory": False, "persistent": True})
OFF = """
import sys
import hotlap.agent.core as core
finished = core.Agent._finished

def fails(agent, *args):
    finished(agent, *args)
    if agent.recorder.index == STEP:
        raise OSError(28, "No space left on device")

core.Agent._finished = fails
"""


@pytest.mark.parametrize("step", [1, 4, 6])
@pytest.mark.parametrize("argv", [("epochs.py",), ("changing_data.py", "attribute", "/dev/null")], ids=" ".join)
def test_batches_in_hand_when_hotlap_goes_off(argv: tuple[str, ...], step: int, runner: Runner) -> None:
    """In the midst of an epoch, or at its end, with batches of workers that a lever put in on their way: they come, and
    later epochs draw what they would, of the dataset as it is then."""
    bare = runner.bare(*argv)
    ran = runner.forked(*argv, before=OFF.replace("STEP", str(step)), levers=(WORKERS,))
    check_same(ran, bare)
    assert [problem.what for problem in ran.problems] == ["OSError: [Errno 28] No space left on device"]


def test_a_disk_that_is_full_while_workers_have_batches_in_hand(runner: Runner) -> None:
    check_same(runner.forked("epochs.py", before=FULL_DISK, levers=(WORKERS,)), runner.bare("epochs.py"))
