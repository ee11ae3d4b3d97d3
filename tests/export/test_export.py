"""`hotlap export` and `hotlap open`: each format is read back and holds the numbers of the records."""

import csv
import gzip
import json
import os
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hotlap.cli import app as cli
from hotlap.export import all_targets
from hotlap.export.series import read_series, scalars
from hotlap.export.serve import Server, address, in_one_file, serve, snapshots
from hotlap.export.to_perfetto import merge
from hotlap.records.diagnosis import Finding
from hotlap.records.errors import RecordError
from hotlap.records.files import write_record
from hotlap.records.run import Lever, Phases, Step
from hotlap.runs.folder import RankFolder
from made_runs import ENVIRONMENT, diagnosis_of, folder_of

HOSTILE = 'a "b" {x="1"}\n\\ </script> 名 \ud800'


def step(number: int, rank: int, **more: Any) -> Step:
    phases = Phases(data=1.0 + rank, forward=2.25, backward=4.5, optimizer=0.125, other=0.125)
    return Step(
        step=number, time=1000.5 + number, wall_ms=8.0 + rank + number / 8, phases=phases, loss=2.0 / (1 + number),
        samples=16, **more,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two ranks: a device on the second, a probed step, a loss that is not finite."""
    ranks = (
        [step(0, 0), step(1, 0), step(2, 0, probe=True), step(3, 0)],
        [step(0, 1, gpu_ms=7.5, gpu_phases=Phases(forward=7.5)), step(1, 1, nonfinite=True)],
    )
    run = folder_of(
        tmp_path / "run 1",
        *((steps, None) for steps in ranks),
        command=("python", HOSTILE),
        started=1000,
        environment=msgspec.structs.replace(ENVIRONMENT, variables={"OMP_NUM_THREADS": "1"}),
        levers=(Lever(name="tf32", settings={"level": "high"}),),
    )
    findings = (
        Finding(id="input", bound="input", share=0.5, title=HOSTILE),
        Finding(id="sync", bound="sync", share=0.25),
        Finding(id="sync", bound="sync", share=0.125),
    )
    diagnosis = diagnosis_of(
        9.1, bound="input", throughput=123.4, phases=Phases(data=4.5), findings=findings, steady_steps=5, ranks=2
    )
    write_record(run / "diagnosis.json", diagnosis)
    return run


def hotlap(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["hotlap", *map(str, words)])
    return cli._main()


def written(folder: Path, name: str, out: Path) -> Path:
    """What a target writes; the last line says how to open it."""
    target = all_targets()[name]
    if not target.suffix:
        out.mkdir()
    assert target.write(read_series(folder), out)
    return out


def told(folder: Path, rank: int) -> list[tuple[int, dict[str, float]]]:
    """What every target has to hold of a rank."""
    return [(one.step, scalars(one, "host")) for one in RankFolder(folder / f"rank-{rank}").steps]


# the numbers


def test_probed_steps_have_a_loss_and_no_times() -> None:
    assert scalars(step(1, 0, probe=True), "host") == {"loss": 1.0}
    found = scalars(step(0, 1, gpu_ms=7.5), "host")
    assert scalars(step(0, 1, gpu_ms=7.5), "device")["step_ms"] == 7.5
    assert not {"step_ms", "samples_per_s"} & scalars(step(0, 1), "device").keys(), "the host's may be that of a wait"
    assert found["step_ms"] == 9.0 and found["gpu_step_ms"] == 7.5 and found["phase/data_ms"] == 2.0
    assert found["samples_per_s"] == 16 / 0.009 and "phase/h2d_ms" not in found and "gpu_phase/data_ms" not in found


def test_csv_has_a_line_a_step(folder: Path, tmp_path: Path) -> None:
    with written(folder, "csv", tmp_path / "x.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["rank"], row["step"]) for row in rows] == [
        ("0", "0"),
        ("0", "1"),
        ("0", "2"),
        ("0", "3"),
        ("1", "0"),
        ("1", "1"),
    ]
    for rank in (0, 1):
        own = [row for row in rows if row["rank"] == str(rank)]
        for row, (_, known) in zip(own, told(folder, rank), strict=True):
            assert {name: float(row[name]) for name in known} == known
    assert rows[2]["step_ms"] == "" and rows[0]["gpu_step_ms"] == ""


def test_otlp_is_what_the_specification_says(folder: Path, tmp_path: Path) -> None:
    lines = written(folder, "otlp", tmp_path / "x.jsonl").read_text(encoding="utf-8").splitlines()
    documents = [json.loads(line)["resourceMetrics"][0] for line in lines]
    assert len(documents) == 3
    found: dict[tuple[str, str], list[Any]] = {}
    for document in documents:
        about = {one["key"]: one["value"]["stringValue"] for one in document["resource"]["attributes"]}
        assert about["service.name"] == "hotlap" and about["hotlap.bound"] == "input"
        for metric in document["scopeMetrics"][0]["metrics"]:
            found[about.get("hotlap.rank", "run"), metric["name"]] = metric["gauge"]["dataPoints"]
    times = [(point["timeUnixNano"], point["asDouble"]) for point in found["0", "hotlap.step"]]
    assert times == [("1000500000000", 8.0), ("1001500000000", 8.125), ("1003500000000", 8.375)]
    phases = [
        (point["attributes"][0]["value"]["stringValue"], point["asDouble"]) for point in found["1", "hotlap.phase"]
    ]
    assert phases[:5] == [("data", 2.0), ("forward", 2.25), ("backward", 4.5), ("optimizer", 0.125), ("other", 0.125)]
    assert found["run", "hotlap.run.step"][0]["asDouble"] == 9.1
    shares = {
        point["attributes"][0]["value"]["stringValue"]: point["asDouble"]
        for point in found["run", "hotlap.run.finding"]
    }
    assert shares == {"input": 0.5, "sync": 0.25}
    pytest.importorskip(
        "opentelemetry.proto", reason="opentelemetry-proto is not installed: not checked against its types"
    )
    from google.protobuf import json_format
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    for line in lines:
        json_format.Parse(line, MetricsData())


def test_prometheus_reads_its_own_format(folder: Path, tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="needs the prometheus extra")
    text = written(folder, "prometheus", tmp_path / "x.prom").read_text(encoding="utf-8")
    samples = {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in parser.text_string_to_metric_families(text)
        for one in family.samples
    }
    run = ("run", "run 1")
    assert samples["hotlap_step_seconds", (run,)] == 9.1 / 1000
    assert samples["hotlap_phase_seconds", (("clock", "host"), ("phase", "data"), run)] == 4.5 / 1000
    assert samples["hotlap_throughput", (run, ("unit", "samples/s"))] == 123.4
    assert samples["hotlap_finding_share", (("finding", "sync"), run)] == 0.25
    assert samples["hotlap_steady_steps", (run,)] == 5


def test_tensorboard_reads_the_scalars_of_each_rank(folder: Path, tmp_path: Path) -> None:
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs the tensorboard extra"
    )
    out = written(folder, "tensorboard", tmp_path / "tb")
    for rank in (0, 1):
        read = events.EventAccumulator(str(out / f"rank-{rank}"), {"scalars": 0})
        read.Reload()
        for name in ("step_ms", "phase/data_ms", "loss", "samples_per_s"):
            points = [(one.step, one.value) for one in read.Scalars(f"hotlap/{name}")]
            known = [(number, values[name]) for number, values in told(folder, rank) if name in values]
            assert [number for number, _ in points] == [number for number, _ in known]
            assert [value for _, value in points] == pytest.approx([value for _, value in known], rel=1e-6)
    first = events.EventAccumulator(str(out / "rank-0"))
    first.Reload()
    assert first.Scalars("hotlap-run/step_ms")[0].value == pytest.approx(9.1)
    assert first.Tags()["tensors"] == ["hotlap-run/verdict"]


def test_mlflow_reads_its_store(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "")
    pytest.importorskip("mlflow", reason="needs the mlflow extra")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{written(folder, 'mlflow', tmp_path / 'x.db')}")
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    run = client.search_runs([client.get_experiment_by_name("hotlap").experiment_id])[0]
    assert run.data.metrics["run/step_ms"] == 9.1 and run.data.params["OMP_NUM_THREADS"] == "1"
    history = sorted(client.get_metric_history(run.info.run_id, "step_ms"), key=lambda one: one.step)
    assert [(one.step, one.value) for one in history] == [(0, 8.0), (1, 8.125), (3, 8.375)]
    assert len(client.get_metric_history(run.info.run_id, "rank-1/loss")) == 2


def test_wandb_writes_offline(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the wandb extra")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "")
    out = written(folder, "wandb", tmp_path / "wb")
    files = list((out / "wandb").glob("offline-run-*/run-*.wandb"))
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    assert len(files) == 1 and b"run/step_ms" in files[0].read_bytes() and b"rank-1/loss" in files[0].read_bytes()


# the command


def test_export_writes_beside_the_records_and_never_over_anything(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hotlap(monkeypatch, "export", folder, "--to", "csv") == 0
    assert (folder / "export" / "csv.csv").is_file() and "written" in capsys.readouterr().out
    before = (folder / "export" / "csv.csv").stat().st_ino
    assert hotlap(monkeypatch, "export", folder, "--to", "csv") == 125
    assert "exists" in capsys.readouterr().err
    assert hotlap(monkeypatch, "export", folder, "--to", "csv", "--replace") == 0
    assert (folder / "export" / "csv.csv").stat().st_ino == before
    assert hotlap(monkeypatch, "export", folder, "--to", "tensorboard", "--replace") == 125
    assert hotlap(monkeypatch, "export", folder, "--to", "csv", "--out", folder, "--replace") == 125


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--to", "visdom"], "targets are container, csv, mlflow"), (["--to", "csv", "--online"], "--online goes with")],
)
def test_what_can_not_be_is_said(
    words: list[str], said: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hotlap(monkeypatch, "export", folder, *words) == 125
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "module"),
    [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow"), ("prometheus", "prometheus_client")],
)
def test_a_missing_library_is_said_with_its_extra(
    name: str, module: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for loaded in [one for one in sys.modules if one.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    assert hotlap(monkeypatch, "export", folder, "--to", name) == 125
    assert f"pip install 'hotlap[{name}]'" in capsys.readouterr().err


# traces


def trace(path: Path, base: int, pid: int | str = 7, name: str = '"matmul"', tail: str = "\n  ]}") -> Path:
    """Two linked events, a process's name, and one event of a process that is a text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    events = [
        f'{{"ph": "X", "cat": "cpu_op", "name": {name}, "pid": {pid}, "tid": 1, "ts": 4396470905401.617, "dur": 2.5}}',
        f'{{"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 3, "pid": {pid}, "tid": 1, "ts": 4396470905401.700}}',
        '{"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 3, "pid": 0, "tid": 7, "ts": 4396470905402.000, "bp": "e"}',
        f'{{"ph": "M", "name": "process_name", "pid": {pid}, "tid": 0, "ts": 1.5, "args": {{"name": "python"}}}}',
        f'{{"ph": "M", "name": "process_sort_index", "pid": {pid}, "args": {{"sort_index": 7}}}}',
        '{"ph": "X", "cat": "Trace", "name": "span", "pid": "Spans", "tid": "x", "ts": 1, "dur": 1}',
    ]
    text = f'{{"baseTimeNanoseconds": {base},\n  "traceEvents": [\n  ' + ",\n  ".join(events) + tail
    path.write_bytes(gzip.compress(text.encode()))
    return path


def merged(path: Path, *traces: Path) -> tuple[list[dict[str, Any]], int]:
    lost = merge(list(enumerate(traces)), path)
    return json.loads(gzip.decompress(path.read_bytes()), parse_float=str)["traceEvents"], lost


def test_ranks_are_kept_apart_in_one_trace(tmp_path: Path) -> None:
    first = trace(tmp_path / "0.json.gz", 1790857026000000000)
    second = trace(tmp_path / "1.json.gz", 1790857026000000000 + 1_000_000_001)
    events, lost = merged(tmp_path / "all.json.gz", first, second)
    assert lost == 0
    names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert sorted(names.values()) == ["rank 0: Spans", "rank 0: python", "rank 1: Spans", "rank 1: python"]
    ops = [one for one in events if one["name"] == "matmul"]
    assert [names[one["pid"]] for one in ops] == ["rank 0: python", "rank 1: python"]
    assert [one["ts"] for one in ops] == ["4396470905401.617", "4396471905401.618"]
    flows = {one["id"] for one in events if one["ph"] == "s"}
    assert len(flows) == 2 and flows == {one["id"] for one in events if one["ph"] == "f"}
    order = [one["args"]["sort_index"] for one in events if one["name"] == "process_sort_index"]
    assert order[0] < order[1]


def test_events_that_are_broken_are_repaired_or_counted(tmp_path: Path) -> None:
    quotes = trace(tmp_path / "0.json.gz", 0, name='"a "b""')
    events, lost = merged(tmp_path / "a.json.gz", quotes)
    assert lost == 0 and any(one["name"] == 'a "b"' for one in events)
    torn = trace(tmp_path / "1.json.gz", 0, tail=',\n  {"ph": "X", "na')
    events, lost = merged(tmp_path / "b.json.gz", torn)
    assert lost == 1 and any(one["name"] == "matmul" for one in events)


def test_a_run_without_traces_shows_its_steps(folder: Path, tmp_path: Path) -> None:
    path = written(folder, "perfetto", tmp_path / "x.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    slices = [one for one in events if one["ph"] == "X"]
    assert [(one["pid"], one["name"], one["dur"]) for one in slices][:2] == [
        (1, "step 0", 8000.0),
        (1, "step 1", 8125.0),
    ]
    assert slices[1]["ts"] - slices[0]["ts"] == pytest.approx(1e6 - 125)
    assert slices[0]["args"]["phase/forward_ms"] == 2.25 and slices[2]["args"]["probe"] is True


def test_a_trace_that_is_none_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("hello")
    with pytest.raises(RecordError, match="not a trace"):
        merge([(0, tmp_path / "x.json")], tmp_path / "out.json.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_one_trace_is_opened_where_it_lies_and_several_as_one(tmp_path: Path) -> None:
    only = trace(tmp_path / "one" / "rank-0" / "trace.json.gz", 0)
    with in_one_file(tmp_path / "one") as found:
        assert found == only
    for rank in (0, 1):
        trace(tmp_path / "two" / f"rank-{rank}" / "trace.json.gz", 0)
    with in_one_file(tmp_path / "two") as found:
        assert len(json.loads(gzip.decompress(found.read_bytes()))["traceEvents"]) == 14
    assert not found.exists()
    with pytest.raises(RecordError), in_one_file(tmp_path):
        pass
    (tmp_path / "one" / "rank-0" / "memory.pickle").write_bytes(b"")
    assert [path.name for path in snapshots(tmp_path / "one")] == ["memory.pickle"]


def asked(server: Server, path: str, method: str = "GET", host: str | None = None) -> Any:
    url = f"http://127.0.0.1:{server.server_address[1]}/{path}"
    request = urllib.request.Request(url, method=method, headers={"Host": host} if host else {})
    return urllib.request.urlopen(request, timeout=10)


def test_only_the_trace_is_served_to_perfetto_until_it_was_fetched(tmp_path: Path) -> None:
    found = trace(tmp_path / "rank-0" / "trace.json.gz", 0)
    name = address(found).partition(":9001/")[2]
    assert address(found) == "https://ui.perfetto.dev/#!/?url=http://127.0.0.1:9001/rank-0-trace.json.gz"
    with serve(found, 0) as server:
        thread = threading.Thread(target=server.until_fetched)
        thread.start()
        for other in ("", "../run.json", "etc/passwd"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                asked(server, other)
            assert refused.value.code == 404
        with pytest.raises(urllib.error.HTTPError):
            asked(server, name, host="evil.example:9001")
        assert asked(server, name, "OPTIONS").headers["Access-Control-Allow-Private-Network"] == "true"
        answer = asked(server, name)
        assert answer.headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
        assert answer.read() == found.read_bytes()
        thread.join(10)
        assert server.fetched and not thread.is_alive()
        with pytest.raises(RecordError, match="cannot serve"):
            serve(found, server.server_address[1])
