"""Logs for MLPerf: what is known of a run, and mlperf-logging's own checker where it is installed."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hotlap.export.series import read_series
from hotlap.export.to_mlperf import checked, read_settings, write
from hotlap.records.errors import RecordError
from hotlap.records.files import write_record
from hotlap.records.mlperf import PrintedLine
from hotlap.records.run import LoaderFacts, OptimizerFacts, Step
from made_runs import FACTS, diagnosis_of, folder_of, write_lines

GIVEN = """
ruleset = "5.1.0"
[submission]
benchmark = "retinanet"
org = "nobody"
platform = "a machine"
division = "open"
[accuracy]
word = "accuracy"
target = 0.9
[values]
cache_clear = true
"""
PER_EPOCH = 4
LOADER = LoaderFacts(
    dataset="D", iterable=False, workers=0, batch_size=8, batches=12, training=True, rows=30, epoch_batches=PER_EPOCH
)
FACTS_OF_IT = msgspec.structs.replace(
    FACTS,
    loaders=(LOADER, msgspec.structs.replace(LOADER, training=False, rows=10, batches=3)),
    optimizers=(OptimizerFacts(name="SGD", builtin=True, tensors=2),),
)
PRINTED = ((1004.9, "epoch 1 accuracy 0.5"), (1010.9, "epoch 2 accuracy: 0.91"), (1014.0, "epoch 3 accuracy 0.95"))
has_checker = pytest.mark.skipif(
    importlib.util.find_spec("mlperf_logging") is None, reason="mlperf-logging is not installed (hotlap[mlperf])"
)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Three epochs of four steps of 1 s from 1000 on, with an evaluation of 0.9 s after each. What was printed of the
    second came once the next step was made."""
    steps = [
        Step(step=n, time=1001.0 + n + 0.9 * (n // PER_EPOCH), wall_ms=1000.0, phases=None, evaluation=n in (4, 8))
        for n in range(12)
    ]
    run = folder_of(tmp_path / "run", (steps, FACTS_OF_IT), started=990.0, wall_s=25.0)
    write_record(run / "diagnosis.json", diagnosis_of(bound="compute"))
    (run / "mlperf.toml").write_text(GIVEN)
    write_lines(run / "printed.jsonl", [PrintedLine(time=time, text=text) for time, text in PRINTED])
    return run


def lines(made: Path) -> list[dict[str, Any]]:
    write(read_series(made), made / "mlperf.log")
    written = (made / "mlperf.log").read_text().splitlines()
    assert all(line.startswith(":::MLLOG {") for line in written)
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in written]


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotlap.export.to_mlperf.checked", lambda path, given: [])


@pytest.mark.usefixtures("unchecked")
def test_the_log_ends_where_the_target_was_reached(made: Path) -> None:
    events = [(one["key"], one["time_ms"], one["metadata"].get("epoch_num")) for one in lines(made)]
    timed = [event for event in events if event[1] > 990_000]
    assert timed == [
        ("init_stop", 1_000_000, None), ("run_start", 1_000_000, None), ("epoch_start", 1_000_000, 1),
        ("epoch_stop", 1_004_000, 1), ("eval_start", 1_004_000, 1), ("eval_stop", 1_004_900, 1),
        ("eval_accuracy", 1_004_900, 1), ("epoch_start", 1_004_900, 2),
        ("epoch_stop", 1_008_900, 2), ("eval_start", 1_008_900, 2), ("eval_stop", 1_010_900, 2),
        ("eval_accuracy", 1_010_900, 2), ("run_stop", 1_010_900, 2),
    ]  # fmt: skip
    last = lines(made)[-1]
    assert last["metadata"] == {"status": "success", "epoch_num": 2, "samples_count": 60}


@pytest.mark.usefixtures("unchecked")
def test_only_what_is_known_is_written(made: Path) -> None:
    first = {one["key"]: one["value"] for one in lines(made) if one["time_ms"] == 990_000}
    assert first == {
        "submission_benchmark": "retinanet", "submission_org": "nobody", "submission_platform": "a machine",
        "submission_division": "open", "train_samples": 30, "eval_samples": 10, "global_batch_size": 8,
        "opt_name": "sgd", "cache_clear": True, "init_start": None,
    }  # fmt: skip
    (made / "mlperf.toml").write_text(GIVEN + 'eval_samples = 11\nopt_name = "mine"\n')
    first = {one["key"]: one["value"] for one in lines(made)}
    assert (first["eval_samples"], first["opt_name"]) == (11, "mine")


@pytest.mark.usefixtures("unchecked")
def test_a_target_that_was_not_reached_is_aborted_at_the_end_of_the_run(made: Path) -> None:
    (made / "mlperf.toml").write_text(GIVEN.replace("0.9\n", "0.99\n"))
    last = lines(made)[-1]
    assert (last["key"], last["time_ms"]) == ("run_stop", 1_015_000)
    assert last["metadata"] == {"status": "aborted", "epoch_num": 3, "samples_count": 90}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        ('word = "accuracy"', "pattern = 'epoch \\d+ accuracy:? ([\\d.]+)'", [0.5, 0.91]),
        ('word = "accuracy"\ntarget = 0.9', 'word = "accuracy"\npercent = true\ntarget = 0.0091', [0.005, 0.0091]),
        ('word = "accuracy"\ntarget = 0.9', 'word = "accuracy"\ncompare = "<="\ntarget = 0.6', [0.5]),
    ],
)
def test_how_the_accuracy_is_read(made: Path, old: str, new: str, values: list[float]) -> None:
    (made / "mlperf.toml").write_text(GIVEN.replace(old, new))
    assert [one["value"] for one in lines(made) if one["key"] == "eval_accuracy"] == pytest.approx(values)


@pytest.mark.usefixtures("unchecked")
def test_an_epoch_that_was_not_finished_is_a_block(made: Path) -> None:
    (made / "mlperf.toml").write_text("steps_per_epoch = 100\n" + GIVEN)
    found = {one["key"]: one for one in lines(made)}
    assert not {"epoch_start", "epoch_stop"} & found.keys()
    assert found["block_start"]["metadata"] == {"first_epoch_num": 1, "epoch_count": 0.08}
    assert found["eval_accuracy"]["metadata"]["epoch_num"] == 0.08


@pytest.mark.usefixtures("unchecked")
def test_what_nobody_knows_is_asked_for(made: Path) -> None:
    (made / "rank-0" / "facts.json").unlink()
    (made / "mlperf.toml").write_text(GIVEN.replace("cache_clear = true", ""))
    with pytest.raises(RecordError) as error:
        write(read_series(made), made / "mlperf.log")
    for key in ("values.cache_clear", "values.train_samples", "values.eval_samples", "steps_per_epoch"):
        assert key in str(error.value)
    assert not (made / "mlperf.log").exists()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("ruleset", "rule", "unknown field `rule`"),
        ('"5.1.0"', '"5.1"', "$.ruleset"),
        ('"open"', '"ajar"', "$.submission.division"),
        ('word = "accuracy"', "", "one of the two"),
        ('word = "accuracy"', "pattern = 'accuracy'", "no group"),
        ('word = "accuracy"', "pattern = '('", "accuracy.pattern"),
        ("target = 0.9", "target = nan", "$.accuracy.target"),
        ("cache_clear = true", "run_stop = 1", "run_stop is measured"),
        ("cache_clear = true", "x = [1]", "$.values"),
        ("cache_clear = true", '"a b" = 1', "$.values"),
        ("[values]", "[values", "not valid TOML"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_the_field(made: Path, old: str, new: str, said: str) -> None:
    (made / "mlperf.toml").write_text(GIVEN.replace(old, new))
    with pytest.raises(RecordError) as error:
        read_settings(made / "mlperf.toml")
    assert said in str(error.value) and "mlperf.toml" in str(error.value)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("mlperf.toml", "hotlap run --mlperf"),
        ("printed.jsonl", "hotlap run --mlperf"),
        ("rank-0/steps.jsonl", "holds no steps"),
    ],
)
def test_a_run_without_its_files_is_told_how_to_get_them(made: Path, file: str, said: str) -> None:
    (made / file).unlink()
    with pytest.raises(RecordError, match=said):
        write(read_series(made), made / "mlperf.log")


@pytest.mark.usefixtures("unchecked")
def test_steps_that_were_not_kept_are_no_epochs(made: Path) -> None:
    steps = made / "rank-0" / "steps.jsonl"
    kept = steps.read_text().splitlines(keepends=True)
    steps.write_text("".join(kept[:5] + kept[7:]))
    with pytest.raises(RecordError, match="only the first and the last steps"):
        write(read_series(made), made / "mlperf.log")


@has_checker
def test_the_official_checker_accepts_the_log(made: Path) -> None:
    said = write(read_series(made), made / "mlperf.log")
    assert said[0] == "10.9 s to train; accuracy 0.91, target >= 0.9 reached"
    assert "accepts it: MLPerf Training 5.1.0, open retinanet" in said[1]


@has_checker
def test_keys_that_the_ruleset_demands_are_named(made: Path) -> None:
    (made / "mlperf.toml").write_text(GIVEN.replace("open", "closed"))
    with pytest.raises(RecordError, match=r"under \[values\]: .*opt_base_learning_rate, opt_weight_decay"):
        write(read_series(made), made / "mlperf.log")
    assert not (made / "mlperf.log").exists()


@has_checker
def test_what_the_checker_refuses_is_told(made: Path) -> None:
    given = read_settings(made / "mlperf.toml")
    write(read_series(made), made / "mlperf.log")
    log = (made / "mlperf.log").read_text()
    (made / "mlperf.log").write_text(log.replace('"value":"nobody"', '"value":""'))
    said = checked(made / "mlperf.log", given)
    assert "refuses it" in said[0] and "CHECK for 'submission_org' failed" in said
    unknown = msgspec.structs.replace(given, ruleset="99.0.0")
    assert "not checked" in checked(made / "mlperf.log", unknown)[0]
    with pytest.raises(RecordError, match=r"6\.0\.0 has no benchmark 'retinanet'"):
        checked(made / "mlperf.log", msgspec.structs.replace(given, ruleset="6.0.0"))


def test_without_the_checker_that_is_said(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "hotlap[mlperf]" in write(read_series(made), made / "mlperf.log")[-1]


SCRIPT = """
import sys, torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
x, y = map(torch.as_tensor, load_digits(return_X_y=True))
x = x.float() / 16
train = DataLoader(TensorDataset(x[360:], y[360:]), batch_size=32, shuffle=True)
test = DataLoader(TensorDataset(x[:360], y[:360]), batch_size=360)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(6):
    for images, labels in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    with torch.no_grad():
        right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in test)
    print(f"epoch {epoch + 1} test accuracy {right / 360:.4f}", file=sys.stderr if epoch % 2 else sys.stdout)
sys.exit(3)
"""


def test_a_run_of_a_real_command(tmp_path: Path) -> None:
    """Its output and exit code stay its own; the log is written beside, and the checker asked where there is one."""
    (tmp_path / "digits.py").write_text(SCRIPT)
    (tmp_path / "m.toml").write_text(GIVEN.replace('"accuracy"', '"test accuracy"').replace("0.9\n", "0.8\n"))
    command = ["run", "--out", "o", "--mlperf", "m.toml", sys.executable, "digits.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "hotlap", *command], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert [line.split(" accuracy")[0] for line in done.stdout.splitlines()] == [f"epoch {n} test" for n in (1, 3, 5)]
    assert "epoch 2 test accuracy" in done.stderr and "target >= 0.8 reached" in done.stderr
    read = [json.loads(line.partition(" ")[2]) for line in (tmp_path / "o" / "mlperf.log").read_text().splitlines()]
    found = [(one["value"], one["metadata"]) for one in read if one["key"] == "eval_accuracy"]
    assert [metadata["epoch_num"] for _, metadata in found] == list(range(1, len(found) + 1))
    assert found[-1][0] >= 0.8 and all(value < 0.8 for value, _ in found[:-1])
    assert read[-1]["key"] == "run_stop" and read[-1]["metadata"]["status"] == "success"
    if importlib.util.find_spec("mlperf_logging") is not None:
        assert "accepts it: MLPerf Training 5.1.0" in done.stderr
