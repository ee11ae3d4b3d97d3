"""Levers that change what the model returns: the error goes from the trial to the verdict and into the recipe."""

from pathlib import Path

import msgspec

from hotlap.experiment.judge import by_output_error
from hotlap.experiment.outcome import _output_errors
from hotlap.levers import all_levers
from hotlap.records.diagnosis import Diagnosis, Spread
from hotlap.records.files import read_recipe, write_recipe
from hotlap.records.run import Environment, Lever, Phases
from hotlap.records.tune import Kept, OutputError, Parity, Trial, Tune
from hotlap.tune.recipe import recipe_of

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
    kept = Kept(lever=NAME, settings=USE.settings, risk="semantic", meaning="m", output_error=ERROR)
    machine = Environment(hotlap="0", python="3.11", os="Linux", cpu="x", cores=4, memory_gib=32.0)
    tune = Tune(
        command=("python", "infer.py"), speedup=1.3, interval=None, gain=True, kept=(kept,), dropped=(),
        parity=parity, baseline=diagnosis, tuned=None, environment=machine,
    )  # fmt: skip
    path = tmp_path / "recipe.toml"
    write_recipe(path, recipe_of(tune))
    assert path.read_text().splitlines()[1] == f"# {NAME} changes what the model returns, by 1.23% (relative)."
    assert read_recipe(path).lever[0].output_error == 0.0123
