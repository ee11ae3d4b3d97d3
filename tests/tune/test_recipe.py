"""Recipes: what tune writes reads back to the same levers, and whatever else stands in one is refused with a reason."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hotlap import __version__
from hotlap.levers import all_levers, variables_of
from hotlap.records.diagnosis import Diagnosis, Spread
from hotlap.records.errors import RecipeError
from hotlap.records.files import MAX_RECIPE, RECIPE_FORMAT, read_recipe, write_recipe
from hotlap.records.run import Environment, Gpu, Lever, Phases, Versions
from hotlap.records.tune import Fitted, Interval, Kept, Parity, Tune, Worth
from hotlap.tune.recipe import _other_version, checked, levers_of, recipe_of

sys.path.insert(0, str(Path(__file__).parents[1] / "levers"))
from contexts import context

REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"
CPU = Environment(hotlap="0", python="3.11", os="Linux", cpu="EPYC", cores=4, memory_gib=32.0)
GPU = msgspec.structs.replace(CPU, cores=64, driver="570", gpus=(Gpu(name="H100", memory_gib=80.0),), git_commit="abc")
PARITY = Parity(ok=True, level="numeric", why="losses lie within 0.5%\n")
WORTH = Worth(ratio=1.25, interval=Interval(low=1.2, high=1.3))
HEAD = f'format = {RECIPE_FORMAT}\nhotlap = "0.1.0"\n'


def tuned(**levers: dict[str, Any]) -> Tune:
    """A finished tune that kept these levers."""
    diagnosis = Diagnosis(mode="train", bound="input", step_ms=8.0, spread=Spread(p10=7, p50=8, p90=9), phases=Phases())
    kept = tuple(
        Kept(lever=name, settings=values, risk=all_levers()[name].risk, meaning="m", worth=WORTH)
        for name, values in levers.items()
    )
    return Tune(
        command=("python", 'my "train".py', "--lr=3e-4"), speedup=1.5, interval=Interval(low=1.4, high=1.6),
        starts=3, turns=9, before_ms=9.0, after_ms=6.0, gain=True, kept=kept, dropped=(),
        parity=PARITY, baseline=diagnosis, tuned=None, environment=GPU,
        versions=Versions(python="3.12.1", torch="2.13.0", cuda="13.0"),
    )  # fmt: skip


def entry(name: str, settings: str = "") -> str:
    return f'[[lever]]\nname = "{name}"\n' + (f"settings = {{{settings}}}\n" if settings else "")


def recipe(folder: Path, text: str) -> Path:
    path = folder / "r.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", all_levers())
def test_what_tune_kept_reads_back(tmp_path: Path, name: str) -> None:
    """Every setting that a lever would try on one machine or the other."""
    for cuda in (False, True):
        for settings in all_levers()[name].variants(context(cuda)):
            write_recipe(tmp_path / "recipe.toml", recipe_of(tuned(**{name: settings})))
            levers, passed = levers_of(tmp_path / "recipe.toml", GPU)
            assert levers == (Lever(name=name, settings=settings),) and passed == []


def test_several_levers_read_back_in_their_order(tmp_path: Path) -> None:
    chosen: dict[str, dict[str, Any]] = {"tf32": {}, "compile": {"mode": "default"}, "checkpoint-blocks": {"every": 2}}
    write_recipe(tmp_path / "recipe.toml", recipe_of(tuned(**chosen)))
    levers, _ = levers_of(tmp_path / "recipe.toml", GPU)
    assert levers == tuple(Lever(name=name, settings=settings) for name, settings in chosen.items())


def test_levers_that_make_a_command_fit_stand_first(tmp_path: Path) -> None:
    fitted = (Fitted(lever="checkpoint-blocks", settings={"every": 2}, risk="exact", meaning="m"),)
    write_recipe(tmp_path / "recipe.toml", recipe_of(msgspec.structs.replace(tuned(tf32={}), fitted=fitted)))
    levers, _ = levers_of(tmp_path / "recipe.toml", GPU)
    assert [lever.name for lever in levers] == ["checkpoint-blocks", "tf32"]


def test_a_recipe_carries_its_evidence(tmp_path: Path) -> None:
    write_recipe(tmp_path / "recipe.toml", recipe_of(tuned(tf32={})))
    read = read_recipe(tmp_path / "recipe.toml")
    assert (read.format, read.hotlap) == (RECIPE_FORMAT, __version__)
    assert read.command == ("python", 'my "train".py', "--lr=3e-4")
    evidence = read.evidence
    assert (evidence.speedup, evidence.low, evidence.high, evidence.starts, evidence.turns) == (1.5, 1.4, 1.6, 3, 9)
    assert (evidence.baseline_ms, evidence.tuned_ms) == (9.0, 6.0)
    assert read.evidence.parity == "numeric: losses lie within 0.5%\n"
    machine = {"cpu": "EPYC", "cores": 64, "device": "cpu", "driver": "570", "git_commit": "abc", "git_dirty": False}
    versions = {"python": "3.12.1", "torch": "2.13.0", "cuda": "13.0", "cudnn": "", "nccl": ""}
    assert read.environment == {**versions, **machine}
    assert (read.lever[0].risk, read.lever[0].measured) == ("numeric", 1.25)


def test_an_interrupted_tune_s_recipe_is_one(tmp_path: Path) -> None:
    unproven = msgspec.structs.replace(tuned(tf32={}), speedup=None, interval=None, parity=None)
    write_recipe(tmp_path / "recipe.toml", recipe_of(unproven))
    assert levers_of(tmp_path / "recipe.toml", GPU)[0] == (Lever(name="tf32"),)
    assert read_recipe(tmp_path / "recipe.toml").evidence.speedup is None


def test_the_example_of_the_reference_is_valid(tmp_path: Path) -> None:
    examples = re.findall(r"```toml\n(.*?)```", REFERENCE.read_text(encoding="utf-8"), re.DOTALL)
    if not examples and "<!-- recipe -->" in REFERENCE.read_text(encoding="utf-8"):
        pytest.skip("the example is not written yet")
    assert examples
    for text in examples:
        assert levers_of(recipe(tmp_path, text), GPU)[0]


def test_an_empty_recipe_has_no_levers(tmp_path: Path) -> None:
    assert levers_of(recipe(tmp_path, HEAD), CPU) == ((), [])


MANY = "workers = 999, prefetch = 2, pin_memory = false, persistent = true"
REFUSED = {
    "empty": ("", "format None"),
    "not TOML": ("format = ", "is not valid TOML"),
    "JSON": ('{"format": 1}', "is not valid TOML"),
    "another format": (
        'format = 2\nhotlap = "9.0"',
        r"format 2 \(written by hotlap 9\.0\); this hotlap reads format 1",
    ),
    "format as text": ('format = "1"', "format '1'"),
    "format as truth": ('format = true\nhotlap = "0"', "Expected `int`, got `bool`"),
    "unknown field": (HEAD + "run = 'rm -rf /'", "unknown field `run`"),
    "unknown field of a lever": (HEAD + entry("tf32") + "module = 'os'", "unknown field `module`"),
    "lever is no list": (HEAD + "lever = 'tf32'", r"Expected `array`, got `str` - at `\$\.lever`"),
    "name is no text": (HEAD + "[[lever]]\nname = 3", r"got `int` - at `\$\.lever\[0\]\.name`"),
    "no name": (HEAD + "[[lever]]\nsettings = {}", "missing required field `name`"),
    "settings are no table": (HEAD + entry("tf32") + "settings = 1", "Expected `object`, got `int`"),
    "unknown risk": (HEAD + entry("tf32") + "risk = 'none'", "Invalid enum value 'none'"),
    "deep": (HEAD + "x = " + "[" * 10_000, "is not valid TOML"),
    "deep settings": (HEAD + "[" + "a." * 3000 + "a]", "unknown field `a`|recursion"),
    "long number": (HEAD + "x = " + "9" * 5000, "is not valid TOML"),
    "unknown lever": (
        HEAD + entry("faster"),
        r"faster: this hotlap \(.*\) has no such lever; it has .*bf16-autocast, .*",
    ),
    "a module for a name": (HEAD + entry("hotlap.levers.tf32"), "has no such lever"),
    "a path for a name": (HEAD + entry("../../evil"), "has no such lever"),
    "a private module": (HEAD + entry("_base"), "has no such lever"),
    "a lever that is gone": (HEAD + entry("gc-pauses", "threshold = 50000"), "gc-pauses: .*has no such lever"),
    "twice": (HEAD + entry("checkpoint-blocks", "every = 2") * 2, "checkpoint-blocks: stands twice"),
    "settings of a lever without": (HEAD + entry("tf32", "x = 1"), "tf32 has no settings"),
    "unknown setting": (HEAD + entry("checkpoint-blocks", "every = 2, pin = 1"), "unknown setting 'pin'"),
    "missing setting": (HEAD + entry("checkpoint-blocks"), "every must be an integer from 1 to 1024, not None"),
    "wrong type": (HEAD + entry("checkpoint-blocks", "every = '2'"), "not '2'"),
    "a truth for a number": (HEAD + entry("checkpoint-blocks", "every = true"), "not True"),
    "a fraction": (HEAD + entry("checkpoint-blocks", "every = 2.0"), r"not 2\.0"),
    "out of range": (HEAD + entry("checkpoint-blocks", "every = 0"), "from 1 to 1024, not 0"),
    "a date": (HEAD + entry("compile", "mode = 1979-05-27"), r"mode must be one of .*, not datetime\.date"),
    "a list": (HEAD + entry("compile", "mode = ['default']"), r"not \['default'\]"),
    "nan": (HEAD + entry("activation-budget", "budget = nan"), "budget must be .*, not nan"),
    "no such machine": (HEAD + entry("loader-workers", MANY), "loader-workers: 999 workers on 4 cores"),
    "no such device": (HEAD + entry("tf32"), "tf32: no NVIDIA GPU was found on this machine"),
}


@pytest.mark.parametrize(("text", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(tmp_path: Path, text: str, why: str) -> None:
    path = recipe(tmp_path, text)
    with pytest.raises(RecipeError, match=why) as caught:
        levers_of(path, CPU)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"format = 1\x00", b"\xef\xbb\xbfformat = 1"])
def test_bytes_that_are_no_toml_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "r.toml").write_bytes(data)
    with pytest.raises(RecipeError, match=r"r\.toml is not valid TOML"):
        levers_of(tmp_path / "r.toml", GPU)


def test_a_recipe_that_is_missing_or_huge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"cannot read .*none\.toml: No such file"):
        levers_of(tmp_path / "none.toml", GPU)
    with pytest.raises(RecipeError, match=r"holds no recipe\.toml"):
        levers_of(tmp_path, GPU)
    with pytest.raises(RecipeError, match="more than 1 MiB is not read"):
        levers_of(recipe(tmp_path, HEAD + "#" * MAX_RECIPE), GPU)


@pytest.mark.parametrize("first", ["tf32", "bf16-autocast"])
def test_levers_that_exclude_each_other_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setattr(all_levers()["tf32"], "excludes", ("bf16-autocast",), raising=False)
    second = {"tf32": "bf16-autocast", "bf16-autocast": "tf32"}[first]
    with pytest.raises(RecipeError, match=f"{second}: can't be used with {first}"):
        levers_of(recipe(tmp_path, HEAD + entry(first) + entry(second)), GPU)


def test_a_lever_that_needs_what_the_machine_lacks_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recipe(tmp_path, HEAD + entry("compile", "mode = 'default'"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(RecipeError, match=r"compile: no C\+\+ compiler"):
        levers_of(path, CPU)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert levers_of(path, CPU)[0] == (Lever(name="compile", settings={"mode": "default"}),)


def test_lenient_leaves_levers_out_and_says_which(tmp_path: Path) -> None:
    names = [
        ("tf32", ""),
        ("checkpoint-blocks", "every = 2"),
        ("faster", ""),
        ("checkpoint-blocks", "every = 3"),
        ("tf32", "x=1"),
    ]
    path = recipe(tmp_path, HEAD + "".join(entry(name, settings) for name, settings in names))
    levers, passed = levers_of(path, CPU, lenient=True)
    assert levers == (Lever(name="checkpoint-blocks", settings={"every": 2}),)
    assert all(line.startswith("left out of the recipe: ") for line in passed)
    assert [line.split(": ")[1] for line in passed] == ["tf32", "faster", "checkpoint-blocks", "tf32"]
    assert "no NVIDIA GPU" in passed[0] and "stands twice" in passed[2] and "has no settings" in passed[3]
    with pytest.raises(RecipeError, match="`--lenient` leaves such levers out"):
        levers_of(path, CPU)


@pytest.mark.parametrize("written", ["9.9.9", "0.2.0", "1.0.0", "0.0.1", "0.2", "00.2.0", "0.10.0"])
def test_another_version_s_recipe_is_refused_or_tried_as_it_is(tmp_path: Path, written: str) -> None:
    path = recipe(tmp_path, f'format = 1\nhotlap = "{written}"\n' + entry("checkpoint-blocks", "every = 2"))
    with pytest.raises(RecipeError, match=rf"r.*\.toml was written by hotlap {written}; in this version.*`--lenient`"):
        levers_of(path, CPU)
    with pytest.raises(RecipeError, match=rf"was written by hotlap {written}; .*Run `hotlap tune` again$"):
        checked(path, read_recipe(path))
    levers, (said,) = levers_of(path, CPU, lenient=True)
    assert [lever.name for lever in levers] == ["checkpoint-blocks"]
    assert said.startswith(f"the recipe was written by hotlap {written}; ")


@pytest.mark.parametrize("written", ["0.1.0", "0.1", "0.1.99", "0.1.5rc1", "0.1.0.dev3+g12", "by hand", ""])
def test_a_recipe_within_the_promise_is_put_in(tmp_path: Path, written: str) -> None:
    """That of the changelog: within a version number's first non-zero part. What names no version is not judged."""
    path = recipe(tmp_path, f'format = 1\nhotlap = "{written}"\n' + entry("checkpoint-blocks", "every = 2"))
    assert levers_of(path, CPU) == ((Lever(name="checkpoint-blocks", settings={"every": 2}),), [])


def test_a_recipe_by_hand_needs_no_more_than_its_levers(tmp_path: Path) -> None:
    path = recipe(tmp_path, 'format = 1\n[[lever]]\nname = "checkpoint-blocks"\nsettings = {every = 2}\n')
    assert levers_of(path, CPU) == ((Lever(name="checkpoint-blocks", settings={"every": 2}),), [])


def test_versions_are_the_same_up_to_the_first_part_that_is_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotlap.tune.recipe.__version__", "1.2.3")
    assert _other_version("2.0.0") and _other_version("0.1.0") and not _other_version("1.0.0")
    monkeypatch.setattr("hotlap.tune.recipe.__version__", "0.0.3")
    assert _other_version("0.0.4") and not _other_version("0.0.3.post1")


def test_lenient_is_not_for_files_that_are_no_recipes(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="unknown field `extra`"):
        levers_of(recipe(tmp_path, HEAD + "extra = 1"), CPU, lenient=True)


def test_variables_that_levers_need() -> None:
    own = Lever(name="allocator", settings={"conf": "expandable_segments:True"})
    assert "PYTORCH_ALLOC_CONF" in variables_of([own, Lever(name="tf32")])
    assert variables_of([Lever(name="planted")]) == {}
