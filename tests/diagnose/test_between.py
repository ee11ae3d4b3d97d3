"""Host code between the model's call and its backward is said to be in the forward."""

from pathlib import Path

import msgspec
import pytest

from hotlap.diagnose.between import with_between
from hotlap.records.diagnosis import Finding
from hotlap.records.profile import SampledPath, Samples
from hotlap.records.run import Facts, Phases, RootFacts
from made_runs import diagnosis_of

IN_A_FUNCTION = """
def step(model, x, y):
    out = model(x)
    loss = criterion(out, y)
    accuracy = count(out, y)
    loss.backward()
    log(accuracy)
"""
IN_A_LOOP = """
for x, y in loader:
    out = model(x)
    loss = criterion(out, y)
    accuracy = count(out, y)
    loss.backward()
    log(accuracy)
"""
CALL, COUNT, LOG = 3, 5, 7


def said(text: str, function: str, rows: list[tuple[str, int, str, float]], folder: Path, **more: object) -> str:
    """Evidence of what computes. rows: phase, line of the loop, function beneath it, ms."""
    file = str(folder / f"{abs(hash(text))}.py")  # a file is parsed once
    Path(file).write_text(text)
    paths: list[SampledPath] = [
        (phase, ((0, line, function), *(((1, 16, inner),) if inner else ())), "", took)
        for phase, line, inner, took in rows
    ]
    samples = Samples(steps=10, looks=70, files=(file, "utils.py"), paths=tuple(paths))
    root = RootFacts(name="Net", parameters=9, modules=3, called=(file, CALL, function))
    other = RootFacts(name="Other", parameters=3, modules=1)
    facts = Facts(
        pid=1, rank=0, world=1, argv=(file,), python="3.12", torch="2.13.0", mode="train", roots=(root, other)
    )  # fmt: skip
    compute = Finding(id="compute", bound="compute", share=0.6, evidence="x")
    found = diagnosis_of(
        bound="compute", step_ms=20.0, findings=(compute,), phases=Phases(forward=10.0, backward=4.0, other=6.0)
    )
    return with_between(msgspec.structs.replace(found, **more), samples, facts).findings[0].evidence


@pytest.mark.parametrize(("text", "function"), [(IN_A_FUNCTION, "step"), (IN_A_LOOP, "<module>")])
def test_code_between_a_forward_and_its_backward_is_told(text: str, function: str, tmp_path: Path) -> None:
    """A loop over predictions on the host was computing of the model."""
    model = ("forward", CALL, "Net.forward", 60.0)
    counting = ("other", COUNT, "count.<locals>.<listcomp>", 40.0)
    told = "x; 4.00 ms of the forward lies between the model's call and the backward, most of it in count at line 16"
    assert said(text, function, [model, counting], tmp_path) == told
    assert said(text, function, [model, ("forward", *counting[1:])], tmp_path) == told, "as the backward settled it"
    for rows in (
        [model, ("other", COUNT, "count", 4.0)],  # a loss, say
        [model, ("other", LOG, "log", 40.0)],
        [model, ("forward", COUNT, "Other.forward", 40.0)],  # of a second model
        [("other", COUNT, "count", 3.0), ("other", LOG, "log", 90.0), ("forward", CALL, "Net.forward", 3.0)],
    ):
        assert said(text, function, rows, tmp_path) == "x"
    assert said(text, function, [model, counting], tmp_path, device="cuda") == "x"
    elsewhere = text.replace("loss.backward()", "train(loss)")
    assert said(elsewhere, function, [model, counting], tmp_path) == "x", "where it ends is not known"
