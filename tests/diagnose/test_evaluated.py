"""Evaluations beside what the steps are made of."""

from pathlib import Path

import msgspec
import pytest
from test_diagnose import FACTS, LOADER, phases, step

from hotlap.diagnose.evaluated import with_evaluation
from hotlap.diagnose.verdict import verdict
from hotlap.records.diagnosis import Diagnosis, Finding, Place
from hotlap.records.files import write_record
from hotlap.records.profile import LongSamples, SampledPath, Samples
from hotlap.records.run import Facts, Step
from made_runs import folder_of

MAIN, CALL, RANKS = (0, 9, "main"), (0, 7, "train"), (0, 2, "recall")
RESTARTS = msgspec.structs.replace(LOADER, workers=2, batches=200, starts=3, restarting_ms=400.0, refilling_ms=0.0)


def evaluates(ms: float, every: int = 20) -> list[Step]:
    """200 steps of 10 ms, in one of `every` of which the model is evaluated."""
    usual = phases(data=4.0, forward=3.0, backward=3.0)
    held = phases(data=4.0, forward=3.0, backward=3.0, other=ms)
    return [step(at, held if at % every == 19 else usual, evaluation=at % every == 19) for at in range(200)]


def folder(tmp_path: Path, ms: float, facts: Facts = FACTS, name: str = "run") -> Path:
    return folder_of(tmp_path / name, (evaluates(ms), facts))


def seen(*rows: SampledPath, file: str = "train.py") -> LongSamples:
    return LongSamples(looks=40, files=(file,), lines=rows)


def told(found: Diagnosis) -> dict[str, float]:
    return {one.id: one.share for one in found.findings}


def test_what_takes_most_of_the_loops_time_comes_first(tmp_path: Path) -> None:
    found = verdict(folder(tmp_path, 800.0))
    assert (found.bound, found.findings[0].id) == ("unknown", "evaluation")
    share = found.evaluating
    assert 0.75 < share < 0.85 and found.findings[0].named
    assert told(found) == pytest.approx({"evaluation": share, "compute": 0.6 * (1 - share), "input": 0.4 * (1 - share)})


def test_an_evaluation_that_takes_little_leaves_the_headline_to_the_steps(tmp_path: Path) -> None:
    found = verdict(folder(tmp_path, 30.0))
    assert found.bound == "compute" and told(found) == pytest.approx({"compute": 0.6, "input": 0.4})
    some = verdict(folder(tmp_path, 45.0, name="some"))
    assert some.bound == "compute" and some.findings[0].id == "compute", "22% of the time"
    assert told(some)["evaluation"] == pytest.approx(some.evaluating)


def test_evaluations_and_restarts_of_workers_share_the_loops_time(tmp_path: Path) -> None:
    found = verdict(folder(tmp_path, 600.0, msgspec.structs.replace(FACTS, loaders=(RESTARTS,))))
    shares = told(found)
    assert sum(shares.values()) == pytest.approx(1.0, abs=0.02) and shares["evaluation"] == found.evaluating
    assert shares["workers-restart"] == pytest.approx((1 - found.evaluating) * 400 / 2400, rel=0.05)


def test_the_line_that_most_of_it_is_under_is_told(tmp_path: Path) -> None:
    rows = [
        ("evaluation", (MAIN, CALL, RANKS), "numpy._wrapfunc", 900.0),
        ("evaluation", (MAIN, CALL, (0, 3, "recall")), "", 200.0),
        ("forward", (MAIN, (0, 4, "train")), "torch.Linear.forward", 5000.0),
    ]
    at = folder(tmp_path, 800.0)
    write_record(at / "rank-0" / "long.json", seen(*rows))
    write_record(at / "rank-0" / "samples.json", Samples(steps=3, looks=90, files=("a.py",), paths=rows[1:2]))
    first = verdict(at).findings[0]
    assert first.where == Place(file="train.py", line=2, function="recall") and "numpy._wrapfunc" in first.evidence
    assert first.bound == "unknown" and "82% of an evaluation's time is spent under this line" in first.evidence


def test_where_no_line_has_most_of_it_the_call_in_the_loop_is_told(tmp_path: Path) -> None:
    before = verdict(folder(tmp_path, 800.0))
    lines = [("evaluation", (MAIN, CALL, (0, at, "recall")), "torch.linear", 90.0) for at in range(1, 4)]
    first = with_evaluation(before, None, seen(*lines)).findings[0]
    assert first.where == Place(file="train.py", line=7, function="train")
    assert first.bound == "compute", "on the CPU, where torch computes there"
    on_device = with_evaluation(msgspec.structs.replace(before, device="cuda"), seen(*lines)).findings[0]
    assert on_device.bound == "unknown", "the host may wait for the device there"
    assert with_evaluation(before, seen(*lines[:0]), None) == before, "nothing was seen"
    assert with_evaluation(before, seen(("evaluation", (MAIN,), "", 3.0))) == before, "hardly anything was"
    assert with_evaluation(before, msgspec.structs.replace(seen(*lines), files=())) == before


def test_no_line_of_the_model_is_told(tmp_path: Path) -> None:
    """Whoever evaluates row by row mends the loop that calls it."""
    lines = [("evaluation", (MAIN, CALL, (0, 2, "recall"), (0, 40, "Net.forward")), "torch.conv1d", 900.0)]
    assert with_evaluation(verdict(folder(tmp_path, 800.0)), seen(*lines)).findings[0].where.line == 2


def test_what_the_line_does_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def recall(x):\n    y = copy.deepcopy(x)\n")
    before = verdict(folder(tmp_path, 800.0))
    row = ("evaluation", (MAIN, CALL, RANKS), "copy.deepcopy", 900.0)
    first = with_evaluation(before, seen(row, file=str(tmp_path / "train.py"))).findings[0]
    assert first.title == "evaluations of the model: objects are copied deeply"
    assert "_foreach_copy_" in first.instead and "evaluate less often" in first.instead


OWN = """
def recall(model, rows):
    right = 0
    for row in rows:
        scores = model(row)
        guess = pick(scores)
        right += guess == row
        seen.append(guess)
    return right
"""


def own(*lines: tuple[int, str, float], folder: Path, source: str = OWN, device: str = "cpu") -> Finding:
    """The finding, where lines of `recall` and what they are in took so many ms of 1000."""
    (folder / "train.py").write_text(source)
    before = msgspec.structs.replace(verdict(folder_of(folder / "run", (evaluates(800.0), FACTS))), device=device)
    rows = [("evaluation", (MAIN, CALL, (0, at, "recall")), inside, took) for at, inside, took in lines]
    rest = 1000.0 - sum(row[3] for row in rows)
    model = ("evaluation", (MAIN, CALL, (0, 5, "recall"), (0, 40, "Net.forward")), "torch.linear", rest)
    return with_evaluation(before, seen(*rows, model, file=str(folder / "train.py"))).findings[0]


def test_an_evaluation_that_is_the_scripts_own_code_is_told_its_line(tmp_path: Path) -> None:
    """No line has most of it; larger batches and no gradients would make it no shorter."""
    found = own((6, "", 250.0), (7, "", 300.0), (8, "", 200.0), folder=tmp_path)
    assert found.title == "evaluations of the model: a Python loop over single elements"
    assert found.where == Place(file=str(tmp_path / "train.py"), line=7, function="recall")
    assert "75% of an evaluation's time is spent at such lines of recall" in found.evidence
    assert "in place of `rows` work on whole arrays" in found.instead and "evaluate less often" in found.instead
    assert "inference_mode" not in found.instead and "larger batches" not in found.instead


def test_other_evaluations_keep_their_advice(tmp_path: Path) -> None:
    """Where the model takes most of it, torch computes at those lines, or nobody knows what they do."""
    straight = OWN.replace("    for row in rows:\n", "").replace("        ", "    ")
    for at, (lines, source) in enumerate(
        (
            (((6, "", 200.0), (7, "", 200.0)), OWN),
            (((6, "torch.topk", 400.0), (7, "torch.eq", 400.0)), OWN),
            (((5, "", 400.0), (6, "", 400.0)), straight),
        )
    ):
        (tmp_path / str(at)).mkdir()
        found = own(*lines, folder=tmp_path / str(at), source=source)
        assert found.title == "evaluations of the model" and "inference_mode" in found.instead
