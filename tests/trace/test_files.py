"""Which traces a path means, and SQL."""

import gzip
import tarfile
from pathlib import Path

import pytest

from hotlap.records.errors import RecordError, UsageError
from hotlap.trace.files import trace_files
from hotlap.trace.read import read
from hotlap.trace.sql import query
from hotlap.trace.tables import TABLES

DATA = Path(__file__).parent / "data"
RANKS = DATA / "ranks"


def test_a_folder_means_its_traces_in_the_order_of_ranks(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        (tmp_path / f"w_rank{rank}.pt.trace.json").write_bytes((DATA / "eager.json").read_bytes())
    (tmp_path / "diagnosis.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("no trace")
    assert [file.rank for file in trace_files(tmp_path)] == [0, 2, 10]


def test_a_run_folder_means_the_traces_of_its_ranks(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank-{rank}").mkdir()
        (tmp_path / f"rank-{rank}" / "trace.json.gz").write_bytes(gzip.compress((DATA / "eager.json").read_bytes()))
    (tmp_path / "run.json").write_text("{}")
    files = trace_files(tmp_path)
    assert [(file.rank, file.name) for file in files] == [(0, "rank-0/trace.json.gz"), (1, "rank-1/trace.json.gz")]
    assert len(files[1].load(lambda at: None).host) == len(read(DATA / "eager.json").host)


def test_members_of_a_tar_are_read_where_they_lie(tmp_path: Path) -> None:
    path = tmp_path / "ranks.tar"
    with tarfile.open(path, "w") as archive:
        for file in sorted(RANKS.iterdir()):
            archive.add(file, arcname=f"../../{file.name}")  # a name that would leave the folder, were it unpacked
    files = trace_files(path)
    assert [file.rank for file in files] == [0, 1, 2, 3]
    assert files[3].load(lambda at: None).device.equals(read(RANKS / "straggler_rank3.json.gz").device)
    assert list(tmp_path.iterdir()) == [path]


def test_what_holds_no_trace_says_so(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds no traces"):
        trace_files(tmp_path)
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    with pytest.raises(RecordError, match=r"empty\.tar holds no traces"):
        trace_files(tmp_path / "empty.tar")
    with pytest.raises(RecordError, match="cannot read"):
        trace_files(tmp_path / "missing.json")[0].load(lambda at: None)
    torn = tmp_path / "torn.tar"
    whole = tmp_path / "whole.tar"
    with tarfile.open(whole, "w") as archive:
        archive.add(DATA / "eager.json", arcname="eager.json")
    torn.write_bytes(whole.read_bytes()[:5000])
    with pytest.raises(RecordError, match="torn"):
        [file.load(lambda at: None) for file in trace_files(torn)]


# SQL


def test_sql_over_ranks() -> None:
    traces = [(rank, read(RANKS / f"straggler_rank{rank}.json.gz")) for rank in (0, 3)]
    rows = query(traces, "select rank, count(*) as n from device group by rank order by rank")
    assert rows.rows() == [(0, len(traces[0][1].device)), (3, len(traces[1][1].device))]
    eager = [(0, read(DATA / "eager.json"))]
    joined = query(
        eager, "select d.launch, h.row, h.cat from device d join host h on d.launch = h.row and d.rank = h.rank;"
    )
    assert len(joined) and (joined["launch"] == joined["row"]).all() and set(joined["cat"]) == {"runtime"}
    for name, schema in TABLES.items():
        assert query(traces, f"select * from {name}").columns == ["rank", "row", *schema]


@pytest.mark.parametrize(
    "text",
    [
        "drop table device",
        "select nothing from device",
        "selec",
        "",
        "select * from read_csv('/etc/passwd')",
        "select * from READ_PARQUET ( '/etc/passwd')",
        "select * from read_csv\n('/etc/passwd')",
        "select * from read_ndjson/**/('/etc/passwd')",
        "select * from '/etc/passwd'",
        "create table x as select * from device",
        "with x as (select 1) delete from device",
    ],
)
def test_what_is_no_select_over_the_tables_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--sql"):
        query([(0, read(DATA / "eager.json"))], text)
