"""Exports of Nsight Systems: the same answers as from Kineto's trace of the same events, and clear errors."""

import random
import shutil
import sqlite3
from pathlib import Path
from trace.mutations import delete, duplicate, flip, move, truncate
from typing import Any

import pytest

from hotlap.records.errors import RecordError
from hotlap.records.trace import RankTrace
from hotlap.trace import nsys
from hotlap.trace.answer import Options, answer, report, view_of
from hotlap.trace.files import trace_files
from hotlap.trace.read import read
from hotlap.trace.tables import TABLES, Trace

from . import exports
from .exports import Export, call, kernel, nvtx, tid

DATA = Path(__file__).parent / "data"
ENDLESS = "with recursive n(i) as (select 1 union all select i from n) select i from n"


def load(path: Path) -> Trace:
    (file,) = trace_files(path)
    return file.load(lambda at: None)


def said(trace: Trace) -> RankTrace:
    return answer(view_of(trace), 0, Options(what_if=False))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.sqlite"


def finished(export: Export, path: Path) -> Trace:
    export.close()
    return load(path)


@pytest.mark.parametrize("name", ["straggler-rank3", "compiled-step", "item-wait"])
def test_the_answers_are_those_of_the_same_events_from_kineto(name: str, path: Path) -> None:
    trace = read(DATA / f"{name}.json.gz")
    exports.convert([trace], path)
    mine, theirs = said(load(path)), said(trace)
    for part in ("window", "breakdown", "gaps", "idle_ns", "launches", "syncs", "host", "annotations", "compiled"):
        assert getattr(mine, part) == getattr(theirs, part), part
    by_op, by_name = ([[row for row in one.kernels if row.by == by] for one in (mine, theirs)] for by in ("op", "name"))
    assert by_op[0] == by_op[1] and by_op[0]
    assert by_name[0] == by_name[1] and by_name[0]
    assert mine.device_name == theirs.device_name
    assert mine.breakdown[0].compute_ns > 0
    assert any("export of nsys has no Python stacks" in line for line in mine.trust.said)


def test_processes_of_one_export_are_ranks_by_their_device(path: Path) -> None:
    ranks = [read(DATA / f"straggler-rank{rank}.json.gz") for rank in (3, 0)]
    exports.convert(ranks, path)
    files = trace_files(path)
    assert len(files) == 2
    found = report(files, Options(what_if=False))
    assert [rank.rank for rank in found.ranks] == [0, 1]
    assert [rank.breakdown for rank in found.ranks] == [said(trace).breakdown for trace in reversed(ranks)]


def test_equal_correlations_of_two_processes_stay_apart(path: Path) -> None:
    export = Export(path)
    for process, device in ((7, 0), (8, 1)):
        call(export, "cudaLaunchKernel_v7000", process * 10, process * 10 + 5, 1, process)
        kernel(export, f"k{process}", 100, 200, 1, process, deviceId=device)
    export.close()
    for process, file in zip((7, 8), trace_files(path), strict=True):
        trace = file.load(lambda at: None)
        assert trace.host.select("pid", "name").rows() == [(process, "cudaLaunchKernel")]
        assert trace.device.select("name", "launch").rows() == [(f"k{process}", 0)]


def test_what_the_tables_hold(path: Path) -> None:
    export = Export(path)
    call(export, "cudaLaunchKernel_ptsz_v7000", 10, 20, 5)
    call(export, "cuMemcpyHtoDAsync_v2", 30, 40, 6)
    sizes = {"gridX": 4, "gridY": 2, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1}
    kernel(export, "gemm<float>", 50, 90, 5, **sizes, staticSharedMemory=16, dynamicSharedMemory=48, graphNodeId=77)
    copy = {"deviceId": 0, "contextId": 1, "streamId": 9, "correlationId": 6, "globalPid": tid(7), "bytes": 512}
    export.add(exports.C, [{"start": 60, "end": 70, **copy, "copyKind": 1, "srcKind": 0, "dstKind": 2}])
    export.add(exports.C, [{"start": 71, "end": 72, **copy, "copyKind": 99, "srcKind": None, "dstKind": 2}])
    export.add("ThreadNames", [{"nameId": export.string("pt_autograd_0"), "globalTid": tid(7, 9)}])
    export.add("TARGET_INFO_GPU", [{"vmId": 0, "id": 0, "name": "NVIDIA H100", "smCount": 132}])
    trace = finished(export, path)
    assert trace.host["name"].to_list() == ["cudaLaunchKernel", "cuMemcpyHtoDAsync_v2"]
    row = trace.device.row(0, named=True)
    assert [row[c] for c in ("name", "blocks", "threads", "shared_memory", "registers")] == [
        "gemm<float>",
        8,
        128,
        64,
        32,
    ]
    assert row["graph_node"] == 77 and row["launch"] == 0
    assert trace.device["name"].to_list()[1:] == [
        "Memcpy HtoD (Pageable -> Device)",
        "Memcpy Unknown (Unknown -> Device)",
    ]
    assert trace.threads.row(0, named=True)["thread"] == "pt_autograd_0"
    assert trace.gpus[0].name == "NVIDIA H100"


def test_ranges_marks_and_torchs_ops(path: Path) -> None:
    export = Export(path)
    nvtx(export, "aten::addmm, seq = 12, op_id = 3", 10, 20)
    nvtx(export, "Optimizer.step#AdamW.step, op_id = 9", 30, 40)
    nvtx(export, "thrust::sort", 50, 60)
    nvtx(export, "mark", 61, None, kind=34)
    nvtx(export, "still open", 62, None)
    nvtx(export, "of two threads", 63, 70, kind=60, endGlobalTid=tid(7, 99))
    nvtx(export, None, 80, 90, textId=export.string("by number"))  # type: ignore[arg-type]
    trace = finished(export, path)
    assert trace.host.select("name", "cat", "sequence").rows() == [
        ("aten::addmm", "op", 12), ("Optimizer.step#AdamW.step", "annotation", -1), ("thrust::sort", "annotation", -1),
        ("by number", "annotation", -1),
    ]  # fmt: skip


def steps_of(names: list[str], path: Path) -> str:
    export = Export(path)
    for number, name in enumerate(names):
        nvtx(export, name, number * 100, number * 100 + 90)
    return said(finished(export, path)).window.found_by


def test_steps_are_hotlaps_labels_or_ranges_named_so(path: Path) -> None:
    assert steps_of(["ProfilerStep#4", "ProfilerStep#5"], path) == "ProfilerStep"
    for names in (["step 1", "step 2"], ["iteration", "iteration"], ["train_iter#7", "train_iter#8"]):
        path.unlink()
        assert steps_of(names, path) == "annotation"
    path.unlink()
    assert steps_of(["stepper", "epoch 1"], path) == "none"


def test_work_that_autograds_thread_launches_is_in_hotlaps_backward(path: Path) -> None:
    export = Export(path)
    nvtx(export, "ProfilerStep#1", 0, 100)
    nvtx(export, "hotlap:backward", 10, 90)
    export.add("ThreadNames", [{"nameId": export.string("pt_autograd_0"), "globalTid": tid(7, 9)}])
    call(export, "cudaLaunchKernel", 20, 25, 1, thread=9)
    kernel(export, "k", 40, 60, 1)
    found = {row.name: row for row in said(finished(export, path)).annotations}
    assert found["hotlap:backward"].busy_ns == 20


def test_graphs_that_were_recorded_whole_are_work(path: Path) -> None:
    export = Export(path)
    call(export, "cudaGraphLaunch_v10000", 0, 10, 1)
    whole = {"deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": 1, "globalPid": tid(7), "graphId": 3}
    export.add(exports.G, [{"start": 20, "end": 80, **whole}])
    found = said(finished(export, path))
    assert found.breakdown[0].compute_ns == 60
    assert any("--cuda-graph-trace=node" in line for line in found.trust.said)


def rows_of(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)
    database.close()


def test_other_schemas_are_read_as_far_as_they_go(path: Path) -> None:
    """Years ago there was no globalPid, and names were only short."""
    columns = "start int, end int, deviceId int, streamId int, correlationId int, shortName int"
    rows_of(
        path,
        f"create table {exports.K} ({columns})",
        f"insert into {exports.K} values (10, 20, 0, 7, 1, 1), (30, 'soon', 0, 7, 2, 1), (40, 50, 'first', 7, null, 9)",
        "create table StringIds (id integer primary key, value text)",
        "insert into StringIds values (1, 'k')",
    )
    trace = load(path)
    assert trace.device.select("name", "start", "dur", "device", "correlation").rows() == [
        ("k", 10, 10, 0, 1), ("(no name)", 40, 10, -1, -1),
    ]  # fmt: skip
    assert trace.losses.events == 1


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        (["create table studies (id int)"], "not an nsys export"),
        ([f"create view {exports.K} as {ENDLESS}"], "not an nsys export"),
        ([f"create table {exports.K} (start int, end int)"], "no events"),
        (
            [f"create table {exports.K} (start int, end int)",
             f"insert into {exports.K} values (9223372036854775807, 1), (null, null), (-9223372036854775808, 1)"],
            "3 could not be read",
        ),
        (
            [f"create table {exports.N} (start int, end int, text text)",
             f"insert into {exports.N} values (1, 2, zeroblob(20000000))"],
            "too big",
        ),
    ],
)  # fmt: skip
def test_what_is_no_export_is_refused(statements: list[str], why: str, path: Path) -> None:
    rows_of(path, *statements)
    with pytest.raises(RecordError, match=why) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_more_rows_than_a_file_has_room_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exports.convert([read(DATA / "item-wait.json.gz")], path)
    monkeypatch.setattr(nsys, "MAX_ROWS", 5)
    with pytest.raises(RecordError, match="more rows"):
        load(path)


def test_a_report_that_was_not_exported_says_how(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="nsys export --type sqlite"):
        trace_files(tmp_path / "report.nsys-rep")


def test_a_file_is_left_as_it_is(path: Path) -> None:
    exports.convert([read(DATA / "item-wait.json.gz")], path)
    before = path.read_bytes()
    path.chmod(0o400)
    load(path)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_exports_in_a_folder_are_its_ranks(tmp_path: Path) -> None:
    for rank in (0, 3):
        exports.convert([read(DATA / f"straggler-rank{rank}.json.gz")], tmp_path / f"rank-{rank}.sqlite")
    assert [file.rank for file in trace_files(tmp_path)] == [0, 3]
    shutil.copy(DATA / "eager.json", tmp_path)
    assert [file.name for file in trace_files(tmp_path)] == ["eager.json"]


def test_broken_exports_end_in_a_trace_or_an_error(path: Path) -> None:
    exports.convert([read(DATA / "item-wait.json.gz")], path)
    whole = path.read_bytes()
    kinds: list[Any] = [flip, flip, delete, duplicate, move, truncate]
    read_, refused = 0, 0
    for seed in range(150):
        rng = random.Random(seed)
        path.write_bytes(nsys.MAGIC + rng.choice(kinds)(whole, rng)[len(nsys.MAGIC) :])
        try:
            for file in trace_files(path)[:2]:
                trace = file.load(lambda at: None)
                assert {name: dict(getattr(trace, name).schema) for name in TABLES} == TABLES
                assert (trace.device["launch"] < max(1, len(trace.host))).all()
                read_ += 1
        except RecordError as error:
            assert path.name in str(error)
            refused += 1
    assert read_ > 15 and refused > 15
