"""Levers that change what the model returns: the error goes from the trial to the verdict and into the recipe."""

from pathlib import Path
from typing import Any

import machine
import msgspec
import pytest

from hotlap.levers import all_levers
from hotlap.records.diagnosis import Diagnosis, Spread
from hotlap.records.files import read_recipe, write_recipe
from hotlap.records.run import Environment, Lever, Phases
from hotlap.records.tune import Kept, OutputError, Parity, Trial, Tune
from hotlap.tune.proof import by_output_error
from hotlap.tune.recipe import recipe_of
from hotlap.tune.trials import _output_errors

ERROR = OutputError(relative=0.0123, largest=0.0156, forwards=4, layers=12)
NAME = "quantize-linear"
USE = Lever(name=NAME, settings={"how": "int8-weight"})


def trial(**errors: OutputError) -> Trial:
    named = {name.replace("_", "-"): error for name, error in errors.items()}
    return Trial(id=1, purpose="try", levers=(USE,), folder="f", outcome="measured", output_errors=named)


def test_only_levers_that_measure_it_change_outputs() -> None:
    changing = [lever.name for lever in all_levers().values() if lever.measures_output]
    assert changing == [NAME] and all_levers()[NAME].risk == "semantic"


def test_the_verdict_tells_the_error_or_fails() -> None:
    parity = by_output_error(trial(quantize_linear=ERROR), [NAME])
    assert parity.ok and parity.level == "semantic" and "by 1.23%" in parity.why and "largest 1.56%" in parity.why
    unknown = by_output_error(trial(), [NAME])
    assert not unknown.ok and "did not measure" in unknown.why


def test_the_largest_error_of_the_ranks_is_read(tmp_path: Path) -> None:
    for rank, largest in enumerate((0.1, 0.3, 0.2)):
        (tmp_path / f"rank-{rank}").mkdir()
        lines = (
            b'{"lever": "tf32"}',
            b"{torn",
            msgspec.json.encode(
                {"lever": NAME, "output_error": {"relative": 0.1, "largest": largest, "forwards": 4, "layers": 2}}
            ),
        )
        (tmp_path / f"rank-{rank}" / "levers.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    found = _output_errors(tmp_path)
    assert list(found) == [NAME] and found[NAME].largest == 0.3


def test_a_recipe_says_it(tmp_path: Path) -> None:
    parity = Parity(ok=True, level="semantic", why="")
    diagnosis = Diagnosis(
        mode="inference", bound="compute", step_ms=8.0, spread=Spread(p10=7, p50=8, p90=9), phases=Phases()
    )
    kept = Kept(lever=NAME, settings=USE.settings, risk="semantic", meaning="m", parity=parity, output_error=ERROR)
    machine = Environment(hotlap="0", python="3.11", os="Linux", cpu="x", cores=4, memory_gib=32.0)
    tune = Tune(
        command=("python", "infer.py"), speedup=1.3, interval=None, pairs=2, gain=True, kept=(kept,), dropped=(),
        parity=parity, baseline=diagnosis, tuned=None, environment=machine,
    )  # fmt: skip
    path = tmp_path / "recipe.toml"
    write_recipe(path, recipe_of(tune))
    assert path.read_text().splitlines()[1] == f"# {NAME} changes what the model returns, by 1.23% (relative)."
    assert read_recipe(path).lever[0].output_error == 0.0123


@pytest.mark.parametrize(("measured", "semantic"), [(True, True), (False, True), (True, False)])
def test_search_keeps_it_with_its_error_and_never_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: bool, semantic: bool
) -> None:
    class Measuring(machine.Machine):
        def run(self, purpose: str, levers: Any, *rest: Any, **more: Any) -> Trial:
            made = super().run(purpose, levers, *rest, **more)
            if not measured or NAME not in machine.uses_of(levers):
                return made
            self.done[-1] = msgspec.structs.replace(made, output_errors={NAME: ERROR})
            return self.done[-1]

    monkeypatch.setattr(machine, "Machine", Measuring)
    changing = machine.single(NAME, 0.5, risk="semantic", measures_output=True)
    honest = machine.single("honest", 0.2)
    steps = machine.factors(**{NAME: 0.5, "honest": 0.9})
    found, ran = machine.search(tmp_path, [changing, honest], steps, semantic=semantic)
    if measured and semantic:
        assert machine.kept(found) == [NAME, "honest"]
        assert [one.output_error for one in found.kept] == [ERROR, None], "only the lever that changes outputs"
        assert found.parity is not None and found.parity.level == "semantic" and "1.23%" in found.parity.why
        assert any("outputs change by 1.23%" in line for line in ran.said)
    else:
        assert machine.kept(found) == ["honest"]
        why = found.dropped[NAME].why
        assert ("did not measure" if semantic else "only with --allow semantic") in why
