"""What the script says of its own is what it says without hotlap: its errors, its warnings, what it compiles."""

import re
import warnings
from pathlib import Path

import pytest

from hotlap.agent.lines import filtered
from hotlap.records.session import LeverUse

from .harness import NO_KERNELS, Ran, Runner, check_clean, check_same, without_log_lines

PLACES = (
    "forward", "nested module", "shapes", "missing", "hook", "pre hook", "cause", "interrupt", "backward",
    "no gradient", "dataset", "step", "loop",
)  # fmt: skip
LOOKED_AT, LATER = 20, 120
"""Steps."""


@pytest.mark.parametrize(
    ("place", "at"),
    [(place, at) for place in PLACES for at in (0, LATER)] + [(place, LOOKED_AT) for place in ("forward", "backward")],
)
def test_an_error_is_shown_as_it_is(place: str, at: int, runner: Runner) -> None:
    check_error(place, at, runner)


@pytest.mark.parametrize("place", ["worker", "no parameters", "compiled", "in place"])
def test_an_error_is_shown_as_it_is_elsewhere(place: str, runner: Runner) -> None:
    check_error(place, 4, runner)


def check_error(place: str, at: int, runner: Runner) -> None:
    ran = runner.untouched("raises.py", place, str(at))
    assert len(ran.steps) == 0 if place == "no parameters" else len(ran.steps) in {at, at + 1, at + 5}
    assert "Traceback" in ran.output


def test_warnings_are_shown_as_often(runner: Runner) -> None:
    ran = runner.untouched("warns.py")
    assert ran.output.count("each once") == 2  # the warning and its line
    assert len(ran.steps) == 12


def test_a_filter_of_hotlaps_voids_no_registry() -> None:
    before = list(warnings.filters)
    with pytest.warns(UserWarning) as shown:  # which voids them all, once
        warnings.simplefilter("default")
        for inside in (False, True, False):
            for module in ("of the script's", "ours"):
                if inside:
                    with filtered("ignore", "ours"):
                        warn(module)
                else:
                    warn(module)
    assert [str(one.message) for one in shown] == ["of the script's", "ours", "ours"][: len(shown)]
    assert list(warnings.filters) == before


REGISTRIES: dict[str, dict[str | tuple[str, type[Warning], int], int]] = {}


def warn(module: str) -> None:
    registry = REGISTRIES.setdefault(module, {})
    warnings.warn_explicit(module, UserWarning, "file.py", 1, module, registry)


def test_a_compiled_step_has_no_more_frames(runner: Runner) -> None:
    """One less is none of the script's: an empty function of torch's, which is part of another where any hook of
    optimizers is registered."""
    bare, ran = (runner.bare("whole_step.py"), runner.forked("whole_step.py"))
    check_clean(ran)
    (frames,), (bares,) = frames_of(ran), frames_of(bare)
    assert bares - 1 <= frames <= bares
    assert [without_log_lines(one.output).rpartition("frames")[0] for one in (ran, bare)] == [
        without_log_lines(bare.output).rpartition("frames")[0]
    ] * 2
    assert len(ran.steps) > 20  # no update is seen in it, so the first ones are no steps


def test_torchscript_takes_a_compiled_model_as_it_does(runner: Runner) -> None:
    """It scripts what is compiled, and does not trace it."""
    ran = runner.untouched("scripted.py", "compiled")
    assert "torch.jit.trace a dynamo-optimized function" in ran.output


@pytest.mark.parametrize(
    "lever", [LeverUse("bf16-autocast", {}), LeverUse("compile-blocks", {"shapes": "static"})], ids=lambda use: use.name
)
def test_torchscript_makes_a_model_without_levers(lever: LeverUse, runner: Runner) -> None:
    """See test_loops.py for those of a run without any."""
    bare, ran = runner.bare("scripted.py"), runner.forked("scripted.py", before=NO_KERNELS, levers=(lever,))
    check_clean(ran)
    assert (ran.code, code_of(ran)) == (0, code_of(bare))
    assert lever.name in (ran.ranks[0].path / "levers.jsonl").read_text()


AFTERWARDS = {
    "none": (),
    "eager": tuple(map(LeverUse, ("bf16-autocast", "channels-last", "checkpoint-blocks"), ({}, {}, {"every": 1}))),
    "compiled": (LeverUse("compile-blocks", {"shapes": "static"}),),
}


@pytest.mark.parametrize("levers", AFTERWARDS.values(), ids=AFTERWARDS)
def test_what_is_done_with_a_trained_model_works_as_it_did(levers: tuple[LeverUse, ...], runner: Runner) -> None:
    """A trial ends long before."""
    ran = runner.untouched("afterwards.py", ours=NO_KERNELS, levers=levers)
    there = (ran.ranks[0].path / "levers.jsonl").read_text() if levers else ""
    assert all(lever.name in there for lever in levers)
    assert "another one is trained" in ran.output


def code_of(ran: Ran) -> list[str]:
    """Of all that TorchScript made, without the numbers that it computes."""
    lines = ran.output.partition("<class")[0].splitlines()
    return [re.sub(r"^-?[0-9.e-]+ ?", "", line) for line in lines if not line.startswith("loss")]


def frames_of(ran: Ran) -> list[int]:
    return [int(found) for found in re.findall(r"^frames (\d+)$", ran.output, re.MULTILINE)]


HOOK = """
import sys, torch

net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for step in range(60):
    optimizer.zero_grad()
    try:
        net(torch.ones(4, 3 if step % 7 == 3 else 4)).sum().backward()
    except RuntimeError as error:
        print(step, error)
    optimizer.step()
print(sys.excepthook is sys.__excepthook__)
"""


def test_the_hook_of_uncaught_errors_is_left_alone(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "hook.py").write_text(HOOK)
    bare, ran = runner.bare(str(tmp_path / "hook.py")), runner.forked(str(tmp_path / "hook.py"))
    check_same(ran, bare)
    check_clean(ran)
    assert bare.output.count("mat1 and mat2") == 9 and bare.output.endswith("True\n")
