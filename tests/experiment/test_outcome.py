"""What is read from a run's folder, and what is said of a crash."""

import json
import logging
from pathlib import Path

import pytest
import torch
from run_folders import NO, begun, leaves, rank

from hotlap.experiment.outcome import MOST_BELOW, crash, error_in, raised_at, read_outcome
from hotlap.experiment.watch import left_out, spared
from hotlap.launch.command import PACKAGE
from hotlap.launch.supervise import Ended
from hotlap.records.diagnosis import Place
from hotlap.records.run import Lever

ENDED = Ended(0, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return begun(tmp_path)


def test_the_step_of_several_ranks_is_the_slowest_and_its_rows_are_all(folder: Path) -> None:
    rank(folder, 0, 10.0, peak_memory_bytes=5, peak_rss_bytes=100)
    rank(folder, 1, 30.0, peak_memory_bytes=7, peak_rss_bytes=90)
    outcome, why, found = read_outcome(folder, ENDED, 60.0)
    assert (outcome, why) == ("measured", "")
    assert found["step_ms"] == pytest.approx(30.0) and found["rows"] == 8
    assert found["peak_memory_bytes"] == 7 and found["peak_rss_bytes"] == 100


def test_rows_that_one_rank_does_not_know_are_not_known(folder: Path) -> None:
    rank(folder, 0, 10.0)
    rank(folder, 1, 10.0, rows=None)
    assert read_outcome(folder, ENDED, 60.0)[2]["rows"] is None


def test_a_lever_that_one_rank_could_not_put_in_is_refused(folder: Path) -> None:
    rank(folder, 0, 10.0)
    rank(folder, 1, 10.0)
    problem = {"where": "lever tf32", "what": "Refused: no", "lever": "tf32"}
    (folder / "rank-1" / "problems.jsonl").write_text(json.dumps(problem) + "\n")
    assert read_outcome(folder, ENDED, 60.0) == ("refused", "tf32 could not be put in: no", {"lever": "tf32"})


ATTENTION, TF32, COMPILE = (Lever(name=name) for name in ("attention", "tf32", "compile"))
HOST = Lever(name="host-allocator", settings={"allocator": "glibc"})


def test_a_trial_is_one_of_the_levers_that_are_left(folder: Path) -> None:
    """What is measured are the steps since."""
    rank(folder, 0, 10.0, world=1)
    lines = (folder / "rank-0" / "steps.jsonl").read_text().splitlines()
    slow = [json.dumps({**json.loads(line), "wall_ms": 90.0}) for line in lines[:13]]
    (folder / "rank-0" / "steps.jsonl").write_text("\n".join([*slow, *lines[13:]]) + "\n")
    leaves(folder, 0, "attention", step=12)
    spare = spared((ATTENTION, TF32), ("attention", "tf32"))
    outcome, _, found = read_outcome(folder, ENDED, 60.0, spare)
    assert outcome == "measured" and left_out(folder, spare) == {"attention": (NO, True)}
    assert found["step_ms"] == pytest.approx(10.0)


def test_a_lever_that_lacks_memory_beside_other_sides_is_not_left_out(folder: Path) -> None:
    """Seen: three starts with graphs of 80 GiB each beside three bare ones, on a card of 140."""
    rank(folder, 0, 10.0, world=1)
    leaves(folder, 0, "attention", why="it could not be captured: CUDA out of memory. Tried to allocate 64.00 MiB")
    spare = spared((ATTENTION, TF32), ("attention", "tf32"))
    outcome, why, found = read_outcome(folder, ENDED, 60.0, spare)
    assert outcome == "memory" and "out of memory" in why and found == {"lever": "attention"}
    assert left_out(folder, spare) == {}


def says_nothing(folder: Path, number: int, *lines: dict[str, str]) -> None:
    text = "".join(json.dumps({"lever": "fused-optimizer", **line}) + "\n" for line in lines)
    (folder / f"rank-{number}" / "levers.jsonl").write_text(text)


def test_a_lever_that_found_nothing_to_change_was_never_in(folder: Path) -> None:
    """Beside graph-optimizer all is fused. It was in recipes, and each run with them said that it was not in."""
    fused, fused_already = Lever(name="fused-optimizer", settings={}), "Adam is fused already"
    for number in (0, 1):
        rank(folder, number, 10.0)
        says_nothing(folder, number, {"nothing": fused_already})
    spare = spared((fused, TF32), ("fused-optimizer", "tf32"))
    assert read_outcome(folder, ENDED, 60.0, spare)[0] == "measured"
    assert left_out(folder, spare) == {"fused-optimizer": (fused_already, False)}
    says_nothing(folder, 1, {"nothing": fused_already}, {})
    assert left_out(folder, spare) == {}, "of the second optimizer it took hold"


def test_too_few_steps_since_are_too_few(folder: Path) -> None:
    rank(folder, 0, 10.0, world=1)
    leaves(folder, 0, "attention", step=29)
    spare = spared((ATTENTION, TF32), ("attention", "tf32"))
    assert read_outcome(folder, ENDED, 60.0, spare)[0] == "too few steps"


def test_all_ranks_have_to_be_without_it(folder: Path) -> None:
    rank(folder, 0, 10.0)
    rank(folder, 1, 10.0)
    leaves(folder, 0, "attention")
    spare = spared((ATTENTION, TF32), ("attention", "tf32"))
    assert read_outcome(folder, ENDED, 60.0, spare)[0] == "refused"
    leaves(folder, 1, "attention")
    assert read_outcome(folder, ENDED, 60.0, spare)[0] == "measured"


@pytest.mark.parametrize(
    ("levers", "trying", "out"),
    [
        ((ATTENTION,), ("attention",), "attention"),
        ((ATTENTION, TF32), (), "attention"),
        ((ATTENTION, TF32), ("tf32", "compile"), "attention"),
        ((HOST, TF32), ("host-allocator", "tf32"), "host-allocator"),
    ],
    ids=["alone", "twin", "the incumbent's", "sets a variable"],
)
def test_a_trial_that_can_not_stand_for_the_rest_is_refused(
    folder: Path, levers: tuple[Lever, ...], trying: tuple[str, ...], out: str
) -> None:
    rank(folder, 0, 10.0, world=1)
    leaves(folder, 0, out)
    outcome, why, found = read_outcome(folder, ENDED, 60.0, spared(levers, trying))
    assert (outcome, found["lever"]) == ("refused", out) and NO in why


def test_a_trial_of_which_all_left_themselves_out_is_refused(folder: Path) -> None:
    rank(folder, 0, 10.0, world=1)
    spare = spared((ATTENTION, TF32), ("attention", "tf32"))
    leaves(folder, 0, "attention")
    leaves(folder, 0, "tf32")
    assert read_outcome(folder, ENDED, 60.0, spare)[0] == "refused"


@pytest.mark.parametrize(
    ("stopped", "evaluating", "said"),
    [
        (True, True, "only 4 steady steps of 9; 4 with an evaluation are left out; hotlap ended the command; "
         "a larger --budget lets it run longer"),
        (False, True, "only 4 steady steps of 9; 4 with an evaluation are left out; the command "
        "ended by itself; let it run more steps, or evaluate less often"),
        (False, False, "only 4 steady steps of 5; the command ended by itself; let it run more steps"),
    ],
)  # fmt: skip
def test_of_too_few_steps_it_is_said_why_who_ended_them_and_what_to_do(
    folder: Path, stopped: bool, evaluating: bool, said: str
) -> None:
    rank(folder, 0, 1200.0, world=1, stopped=stopped)
    path = folder / "rank-0" / "steps.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()][: 9 if evaluating else 5]
    lines = [{**line, "evaluation": evaluating and line["step"] % 2 == 0} for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_outcome(folder, ENDED, 60.0)[:2] == ("too few steps", said)


@pytest.mark.parametrize(("lever", "outcome"), [("tf32", "refused"), (None, "crashed")])
def test_of_a_trial_that_crashes_the_lever_that_was_not_put_in_is_known(
    folder: Path, lever: str | None, outcome: str
) -> None:
    rank(folder, 0, 10.0, world=1, stopped=False)
    problem = {"where": "x", "what": "no", "lever": lever}
    (folder / "rank-0" / "problems.jsonl").write_text(json.dumps(problem) + "\n")
    assert read_outcome(folder, Ended(1, None), 60.0)[0] == outcome


def test_a_crash_without_a_word_has_no_empty_reason(folder: Path) -> None:
    killed = Ended(None, 9)
    assert read_outcome(folder, killed, 60.0) == ("crashed", "signal 9", {})
    (folder / "output.txt").write_text("step 3\nout of luck\n\n")
    assert read_outcome(folder, killed, 60.0)[1] == "signal 9: out of luck"


FRAMES = ["Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    train()", "    ^^^^^^^"]
HINT = "Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace"


TRACED = [
    "a.b.Traced: RuntimeError when making fake tensor call", "  Explanation: failed to run FX node: call_method",
    "    view(*(FakeTensor(..., size=(64, 256, 2, 2)), 64, -1), **{}): got ValueError('Cannot view (1, 2) as (2, 3)')",
]  # fmt: skip
TRACED_AT_ONCE = "a.b.Traced: failed to run FX node: call_method view(*(FakeTensor(...), -1)): got ValueError('no')"


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        ([*FRAMES, *TRACED], "a.b.Traced: ValueError('Cannot view (1, 2) as (2, 3)')"),
        ([*FRAMES, TRACED_AT_ONCE], "a.b.Traced: ValueError('no')"),
        ([*FRAMES, "ValueError: no"], "ValueError: no"),
        ([*FRAMES, "KeyError: Caught KeyError in DataLoader worker process 3.", "Original " + FRAMES[0], *FRAMES[1:],
          "KeyError: 'x'", ""], "KeyError: 'x' (in DataLoader worker process 3)"),
        ([*FRAMES, "KeyboardInterrupt", ""], "KeyboardInterrupt"),
        ([*FRAMES, "a.b.Failed: a raised:", "TypeError: x", "", HINT, ""], "a.b.Failed: a raised: TypeError: x"),
        ([*FRAMES, "KeyError: 1", "", "During handling:", "", *FRAMES, "ValueError: 2", HINT], "ValueError: 2"),
        ([*(f"[rank1]: {line}" for line in [*FRAMES, "ValueError: 3"]), "W1 closing", *FRAMES,
          "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "=====", "FAILED"], "ValueError: 3"),
        (["loss: 3", "  indented", "done"], "done"),
        (["Killed", "", ""], "Killed"),
        ([], ""),
    ],
)  # fmt: skip
def test_what_a_commands_output_says_of_its_error(tail: list[str], said: str) -> None:
    assert error_in(tail) == said


def frame(file: str, line: int, function: str) -> list[str]:
    return [f'  File "{file}", line {line}, in {function}', "    x = f(x)", "        ^^^^"]


LIBRARY = torch.__file__, "/usr/lib/python3/dist-packages/a.py", logging.__file__, str(PACKAGE / "levers" / "x.py")
WHOLE = [
    "Traceback (most recent call last):", *frame("/w/vae.py", 7, "old"), "KeyError: 1", "", "During handling:", "",
    "Traceback (most recent call last):", *frame("/w/train.py", 94, "train"), *frame("/w/vae.py", 54, "Net.forward"),
    *[line for file in LIBRARY for line in frame(file, 3, "g")], *frame("<frozen runpy>", 2, "h"),
    "RuntimeError: no",
]  # fmt: skip
AT_VIEW = Place(file="/w/vae.py", line=54, function="Net.forward")
COMPILED = ["", "from user code:", '   File "/w/loss.py", line 5, in loss', "    x.view(1)"]


@pytest.mark.parametrize(
    ("tail", "where"),
    [
        (WHOLE, AT_VIEW),
        ([f"[rank1]: {line}" for line in WHOLE], AT_VIEW),
        ([*WHOLE, *COMPILED], Place(file="/w/loss.py", line=5, function="loss")),
        ([*WHOLE, *["loss 3"] * MOST_BELOW], None),
        ([*WHOLE[:9], *frame(LIBRARY[0], 3, "g"), "RuntimeError: of no code of the user's"], None),
        (["Killed"], None),
        ([], None),
    ],
)
def test_the_line_that_an_error_came_from_is_the_users_innermost(tail: list[str], where: Place | None) -> None:
    assert raised_at(tail) == where


def test_a_crash_tells_its_line(folder: Path) -> None:
    (folder / "output.txt").write_text("\n".join(["step 3"] * 50 + WHOLE))
    failed = Ended(1, None)
    assert read_outcome(folder, failed, 60.0) == ("crashed", "exit code 1: RuntimeError: no", {"where": AT_VIEW})


@pytest.mark.parametrize(
    ("ended", "output", "said"),
    [
        (Ended(0, None), "Killed", None),
        (Ended(0, None), "\n".join(FRAMES), None),
        (Ended(0, None), "\n".join(["Process Process-1:", *WHOLE]),
         ("crashed", "a process that it started failed: RuntimeError: no", {"where": AT_VIEW})),
        (Ended(1, None), "\n".join([*(f"[rank0]: {line}" for line in WHOLE), "E1129 failed (exitcode: 1)", FRAMES[0],
          *(['  File "run.py", line 1, in run', "    run()"] * 20), "errors.ChildFailedError: ", "=====", "FAILED"] ),
         ("crashed", "exit code 1: RuntimeError: no", {"where": AT_VIEW})),
        (Ended(None, 9, out_of_memory=True), "", ("memory", "the machine ran out of host memory", {})),
        (Ended(1, None), "\n".join([*FRAMES, "torch.OutOfMemoryError: CUDA out of memory."]),
         ("memory", "torch.OutOfMemoryError: CUDA out of memory.", {})),
        (Ended(3, None), "", ("crashed", "exit code 3", {})),
    ],
)  # fmt: skip
def test_why_a_command_ended_that_was_not_told_to(
    folder: Path, ended: Ended, output: str, said: tuple[str, str, dict[str, object]] | None
) -> None:
    (folder / "output.txt").write_text(output)
    assert crash(folder, ended) == said


def test_a_side_that_stands_still_is_measured_and_one_that_took_too_long_is_not(folder: Path) -> None:
    rank(folder, 0, 10.0, world=1)
    outcome, _, found = read_outcome(folder, None, 60.0)
    assert (outcome, found["step_ms"]) == ("measured", pytest.approx(10.0))
    late = Ended(None, 15, timed_out=True)
    assert read_outcome(folder, late, 60.0) == ("timeout", "made too few steps within 60 s", {})
