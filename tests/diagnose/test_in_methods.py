"""What a model computes outside of calls of it is the model's, and no code of the loop."""

from pathlib import Path

import msgspec
import pytest

from hotlap.diagnose.findings.host_code import BESIDES, STANDS_STILL
from hotlap.diagnose.in_methods import with_methods
from hotlap.records.diagnosis import Diagnosis, Finding, Spread
from hotlap.records.profile import CalledOp, Lines, SampledPath, Samples, UserFrame
from hotlap.records.run import Phases

SCRIPT = """\
class Field(nn.Module):
    def hidden(self, x):
        for layer in self.layers:
            x = layer(x)
            x = x.sin()
        return x

    def loss(self, x):
        words = [clean(one) for one in x]
        torch.save(self, "last")
        return self.hidden(words).mean()

    def note(self, x):
        return write(x)

    def fit(self, batches):
        for x in batches:
            self.note(x)
            self.loss(x).backward()
"""
FIT, NOTE, LOSS, SAVE = (0, 19, "Field.fit"), (0, 14, "Field.note"), (0, 11, "Field.loss"), (0, 10, "Field.loss")
LAYER, SINE, WORDS = (0, 4, "Field.hidden"), (0, 5, "Field.hidden"), (0, 9, "Field.loss")
CALLED: SampledPath = ("forward", (FIT, LOSS, LAYER), "torch.Linear.forward", 10.0)
OPS: tuple[CalledOp, ...] = (("aten::sin", *SINE),)


def row(*path: UserFrame, inside: str = "", phase: str = "other", ms: float = 30.0) -> SampledPath:
    return phase, path, inside, ms


def told(folder: Path, *paths: SampledPath, other: Finding | None = None, **more: object) -> tuple[Diagnosis, Samples]:
    file = folder / "train.py"
    file.write_text(SCRIPT)
    lines: dict[tuple[str, int, int, str, str], float] = {}
    for phase, path, inside, ms in paths:
        lines[phase, *path[-1], inside] = lines.get((phase, *path[-1], inside), 0.0) + ms
    methods = tuple((0, f"Field.{name}") for name in ("hidden", "loss", "note", "fit"))
    samples = Samples(
        steps=3, looks=100, files=(str(file),), lines=tuple((*key, ms) for key, ms in lines.items()), paths=paths,
        methods=methods,
    )  # fmt: skip
    loop = Finding(
        id="host-code", bound="unknown", share=0.4, evidence="4.00 ms of host time a step", title="code of the loop",
        why="operations of Field between the calls of its parts are in here; more",
    )  # fmt: skip
    found = Diagnosis(
        mode="train", bound="compute", step_ms=10.0, spread=Spread(p10=1, p50=1, p90=1), phases=Phases(other=4.0),
        findings=(Finding(id="compute", bound="compute", share=0.6, evidence="x"), other or loop),
    )  # fmt: skip
    return with_methods(msgspec.structs.replace(found, **more), samples, Lines(steps=1, files=(str(file),), ops=OPS))


def shares(found: Diagnosis) -> dict[str, float]:
    return {one.id: pytest.approx(one.share) for one in found.findings}


def test_operations_between_calls_of_a_model_s_parts_are_computing(tmp_path: Path) -> None:
    found, samples = told(tmp_path, CALLED, row(FIT, LOSS, SINE), row(FIT, NOTE, ms=30.0))
    assert shares(found) == {"compute": 0.8, "host-code": 0.2}
    compute, loop = found.findings
    assert compute.evidence.startswith(
        "x; 2.00 ms of `other` are operations of Field too: without gradients, or between"
    )
    assert loop.evidence == "2.00 ms of host time a step beside operations of Field"
    assert loop.why == f"{STANDS_STILL}; more", "its lines are known now"
    assert [one[:5] for one in samples.lines if one[0] == "other"] == [("other", *NOTE, "")]
    assert ("forward", *SINE, "", 30.0) in samples.lines
    assert [one[0] for one in samples.paths] == ["forward", "forward", "other"]


def test_where_all_of_it_is_the_model_s_no_code_of_the_loop_is_told(tmp_path: Path) -> None:
    found, _ = told(tmp_path, CALLED, row(FIT, LOSS, SINE), row(FIT, LOSS, LAYER, inside="torch.Tanh.forward"))
    assert shares(found) == {"compute": 1.0}


@pytest.mark.parametrize(
    "path",
    [
        row(FIT, LOSS, WORDS),  # no operation is called there
        row(FIT, LOSS, WORDS, inside="json.loads"),
        row(FIT, SAVE, inside="torch.save"),  # a cause is known of it
        row(FIT, NOTE, inside="torch.cat"),  # a method in which no model runs
        row(FIT, inside="torch.cat"),  # it trains
        row((0, 99, "main"), inside="torch.cat"),  # no method
        row(FIT, LOSS, SINE, phase="evaluation"),
    ],
)
def test_what_is_the_loop_s_stays(path: SampledPath, tmp_path: Path) -> None:
    found, samples = told(tmp_path, CALLED, path, row(FIT, NOTE))
    assert shares(found) == {"compute": 0.6, "host-code": 0.4}
    assert samples.paths == (CALLED, path, row(FIT, NOTE))


def test_on_a_device_the_host_s_time_is_not_put_with_computing(tmp_path: Path) -> None:
    found, samples = told(tmp_path, CALLED, row(FIT, LOSS, SINE), row(FIT, NOTE), device="cuda")
    assert shares(found) == {"compute": 0.6, "host-code": 0.4}
    assert found.findings[1].evidence.endswith("; 50% of the host's time there is in operations of Field")
    assert [one[0] for one in samples.paths] == ["forward", "forward", "other"]


def test_a_model_that_is_told_already_to_run_there_is_told_once(tmp_path: Path) -> None:
    other = Finding(id="host-code", bound="unknown", share=0.4, title=f"Field {BESIDES}")
    rows = (CALLED, row(FIT, LOSS, SINE))
    found, samples = told(tmp_path, *rows, other=other)
    assert shares(found) == {"compute": 0.6, "host-code": 0.4} and samples.paths == rows
