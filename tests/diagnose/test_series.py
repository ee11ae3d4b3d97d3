"""What each step counts as, and what a page may read beside the records."""

import os
from pathlib import Path

import pytest

from hotlap.diagnose.diagnose import read_ranks
from hotlap.diagnose.gather import MOST_SAMPLES, gather, snippet
from hotlap.diagnose.series import fences, marked, series, thinned
from hotlap.diagnose.steps import steady_steps
from hotlap.records.diagnosis import Place
from hotlap.records.errors import RecordError
from hotlap.records.files import write_record
from hotlap.records.run import Lever, Phases, Step
from hotlap.records.telemetry import GpuSample, TelemetrySample
from hotlap.records.tune import Kept, Trial, Tune
from made_runs import ENVIRONMENT, diagnosis_of, folder_of, write_lines, write_rank

DIAGNOSIS = diagnosis_of(bound="input", step_ms=10.0, phases=Phases(data=9.0))


def step(number: int, wall: float = 10.0, **more: object) -> Step:
    return Step(
        step=number, time=float(number), wall_ms=wall, phases=Phases(data=wall), loss=1.0 / (number + 1), **more
    )  # type: ignore[arg-type]


def test_marks() -> None:
    steps = [step(0, 900.0), *(step(n, 10 + n % 3 / 10) for n in range(1, 60))]
    steps[30] = step(30, 80.0)
    steps[40] = step(40, 10.0, probe=True)
    marks = marked(steps, [one.wall_ms for one in steps], steady_steps(steps, None))
    assert marks[0] == "warm-up" and marks[30] == "outlier" and marks[40] == "left out"
    assert marks.count("outlier") == 1 and marks.count("steady") == 57


def test_device_clock_where_the_host_runs_ahead(tmp_path: Path) -> None:
    steps = [step(n, 2.0, gpu_ms=900.0 if n == 0 else 80.0 if n == 40 else 10.0) for n in range(60)]
    write_rank(tmp_path / "rank-0", steps)
    (found,) = series(tmp_path, 4000)
    assert found.clock == "device" and found.ms[1] == 10.0 and found.other_ms[1] == 2.0
    assert (found.mark[0], found.mark[40], found.outliers) == ("warm-up", "outlier", 1)


def test_steps_that_the_device_clock_does_not_know_are_left_out(tmp_path: Path) -> None:
    """The host's times of these are those of waits for many steps, or of issuing."""
    known = [step(n, 2.0, gpu_ms=None if n in {1, 40, 59} else 10.0) for n in range(60)]
    write_rank(tmp_path / "rank-0", known)
    (found,) = series(tmp_path, 4000)
    assert found.clock == "device" and set(found.ms) == {10.0}
    assert found.step == tuple(n for n in range(60) if n not in {1, 40, 59})
    (steady,) = read_ranks(tmp_path)
    assert found.mark.count("warm-up") == sum(n not in {1, 40, 59} for n in range(steady.steady.warmup))
    assert found.outliers == 0


def test_even_steps_have_no_outliers_by_rounding() -> None:
    assert fences([10.0] * 50) == (9.5, 10.5)
    low, high = fences([float(x) for x in range(101)])
    assert (low, high) == (25 - 150, 75 + 150)


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 2000, 12_345])
def test_thinning_keeps_the_slowest(count: int) -> None:
    walls = [float((7919 * i) % 104_729) for i in range(count)]
    every, kept = thinned(walls, 100)
    assert kept == sorted(set(kept)) and len(kept) <= 102
    assert (every == 1) == (count <= 100)
    for begin in range(0, count, every):
        group = range(begin, min(begin + every, count))
        assert max(group, key=walls.__getitem__) in kept


def test_thinning_keeps_losses_where_few_are_known() -> None:
    walls, known = [float((7919 * i) % 104_729) for i in range(8000)], [at % 8 == 5 for at in range(8000)]
    every, kept = thinned(walls, 1000, known)
    groups = [[at for at in kept if begin <= at < begin + every] for begin in range(0, 8000, every)]
    assert all(any(known[at] for at in group) for group in groups)
    assert all(max(range(n * every, n * every + every), key=walls.__getitem__) in kept for n in range(len(groups)))


def test_few_samples_keep_the_peaks_of_many(tmp_path: Path) -> None:
    def sample(at: int) -> TelemetrySample:
        memory = 900 if at == 7_777 else at % 5
        return TelemetrySample(
            time=float(at), rss_bytes=700 if at == 3_333 else at % 7, gpus=(GpuSample(index=1, memory_bytes=memory),)
        )

    write_lines(folder_of(tmp_path) / "telemetry.jsonl", (sample(at) for at in range(10_000)))
    kept = gather(tmp_path).telemetry
    assert len(kept) <= MOST_SAMPLES + 3 and [one.time for one in kept] == sorted({one.time for one in kept})
    assert kept[0].time == 0 and {3_333, 7_777} <= {one.time for one in kept}


def test_snippet_has_lines_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "train.py"
    file.write_text("".join(f"line {n}\n" for n in range(1, 20)))
    found = snippet(Place(file="train.py", line=2, function="f"), tmp_path)
    assert found is not None
    assert (found.first, found.lines) == (1, tuple(f"line {n}" for n in range(1, 6)))
    assert not found.changed
    os.utime(file, (2000, 2000))
    assert snippet(Place(file=str(file), line=2), tmp_path, 1000.0).changed  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "name", ["secrets.txt", "missing.py", "folder.py", "large.py", "short.py", "../.ssh/id_rsa", "\0.py"]
)
def test_snippet_reads_nothing_else(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secrets.txt").write_text("a\nb\nc\n")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "large.py").write_text("x = 1\n" * 400_000)
    (tmp_path / "short.py").write_text("x = 1\n")
    assert snippet(Place(file=name, line=2), tmp_path) is None


def test_snippet_is_of_the_project_that_the_user_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run folder from elsewhere may name any file of this machine."""
    (tmp_path / "here").mkdir()
    (tmp_path / "other.py").write_text("x = 1\n" * 9)
    monkeypatch.chdir(tmp_path / "here")
    for name in (str(tmp_path / "other.py"), "../other.py"):
        assert snippet(Place(file=name, line=2), tmp_path / "here") is None
    assert snippet(Place(file="other.py", line=2), tmp_path) is None
    monkeypatch.chdir(tmp_path)
    assert snippet(Place(file="other.py", line=2), tmp_path) is not None


def tune_of(*trials: Trial, kept: tuple[Kept, ...] = ()) -> Tune:
    return Tune(
        command=("python", "t.py"), speedup=None, interval=None, gain=False, kept=kept, dropped=(),
        parity=None, baseline=DIAGNOSIS, tuned=None, trials=trials, environment=ENVIRONMENT,
    )  # fmt: skip


def test_curves_of_a_tune(tmp_path: Path) -> None:
    lever = Lever(name="quick")
    trials = [
        ("baseline", ()),
        ("baseline", ()),
        ("prove", (lever,)),
        ("try other", (Lever(name="other"),)),
        ("baseline", ()),
    ]
    for number in range(4):
        write_rank(tmp_path / f"trials/{number:03}/rank-0", [step(n) for n in range(10)])
    write_rank(tmp_path.parent / f"{tmp_path.name}-outside/rank-0", [step(0)])
    folders = [f"trials/{n:03}" for n in range(4)] + [f"../{tmp_path.name}-outside"]
    ran = (
        Trial(id=n, purpose=p, levers=used, folder=f, outcome="measured")
        for n, ((p, used), f) in enumerate(zip(trials, folders, strict=True))
    )
    tune = tune_of(*ran, kept=(Kept(lever="quick", settings={}, risk="exact", meaning=""),))
    write_record(tmp_path / "tune.json", tune)
    page = gather(tmp_path)
    assert [(curve.name, curve.trial) for curve in page.curves] == [
        ("bare command", 0),
        ("bare command again", 1),
        ("recipe", 2),
    ]
    assert page.curves[0].loss[1] == 0.5


def test_folder_outside_of_the_tune_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    write_rank(tmp_path / "elsewhere/rank-0", [step(0)])
    trial = Trial(id=0, purpose="baseline", levers=(), folder="../elsewhere", outcome="measured")
    write_record(tmp_path / "t/tune.json", tune_of(trial))
    assert gather(tmp_path / "t").curves == ()


def test_run_without_steps_says_why(tmp_path: Path) -> None:
    page = gather(folder_of(tmp_path, status="failed"))
    assert page.diagnosis is None and page.why_none.startswith("no training step was seen in `python train.py`")


def test_broken_trace_leaves_the_rest(tmp_path: Path) -> None:
    folder_of(tmp_path, ([step(n) for n in range(60)], None))
    (tmp_path / "rank-0/trace.json.gz").write_bytes(b"no trace")
    page = gather(tmp_path)
    assert page.traces is None and page.diagnosis is not None and len(page.steps[0].ms) == 60
    assert any(said.startswith("the profile can't be read") for said in page.diagnosis.unknown)


def test_no_records(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds no traces"):
        gather(tmp_path)
