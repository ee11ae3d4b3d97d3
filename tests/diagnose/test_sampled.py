"""Samples of the host put into findings."""

import msgspec
import pytest

from hotlap.diagnose.sampled import with_samples
from hotlap.records.diagnosis import Bound, Diagnosis, Finding, Place, Spread
from hotlap.records.profile import Samples
from hotlap.records.run import Phases

LOOP = Place(file="train.py", line=1)


def verdict(id_: str, bound: Bound) -> Diagnosis:
    found = Finding(id=id_, bound=bound, share=0.5, where=LOOP, evidence="x")
    spread = Spread(p10=1, p50=1, p90=1)
    return Diagnosis(mode="train", bound=bound, step_ms=1.0, spread=spread, phases=Phases(), findings=(found,))


def samples(*lines: tuple[str, int, int, str, str, float], looks: int = 100) -> Samples:
    return Samples(steps=3, looks=looks, files=("a.py", "b.py"), lines=lines)


@pytest.mark.parametrize(("finding", "bound", "phase"), [("input", "input", "data"), ("host-code", "unknown", "other")])
def test_the_line_with_most_time_of_the_phase_is_the_place(finding: str, bound: Bound, phase: str) -> None:
    other = "forward" if phase == "data" else "data"
    said = samples(
        (other, 0, 99, "f", "", 900.0),
        (phase, 0, 3, "load", "", 30.0),
        (phase, 1, 7, "decode", "json.loads", 40.0),
        (phase, 1, 7, "decode", "", 20.0),
        (phase, -1, 0, "", "wait", 10.0),
    )
    found = with_samples(verdict(finding, bound), said).findings[0]
    assert found.where == Place(file="b.py", line=7, function="decode")
    assert found.evidence == "x; 60% of it at this line, in json.loads"


@pytest.mark.parametrize(
    "said",
    [
        samples(("data", 0, 3, "f", "", 50.0), looks=3),  # too few looks
        samples(*[("data", 0, line, "f", "", 10.0) for line in range(10)]),  # no line stands out
        samples(("data", -1, 0, "", "wait", 50.0)),  # no line of the user's
        samples(("data", 5, 3, "f", "", 50.0)),  # no such file
        samples(("other", 0, 3, "f", "", 50.0)),  # another phase
    ],
)
def test_otherwise_the_finding_stays(said: Samples) -> None:
    before = verdict("input", "input")
    assert with_samples(before, said) == before


def test_findings_about_the_device_are_left_alone() -> None:
    before = verdict("compute", "compute")
    assert with_samples(before, samples(("forward", 0, 3, "f", "", 50.0))) == before


def test_what_a_samples_file_may_hold_is_bounded() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"lines": [["data", 0, -3, "f", "", 1.0]]}', type=Samples)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"lines": [["data", 0, 3, "f", "", 1e300]]}', type=Samples)
