"""Runs go into a history and come out again, in each database."""

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_checks import FAILED
from made_history import BEGAN, DAY, commit_of, entry, run_folder

from hotlap.guard.database import url_of
from hotlap.guard.entry import entry_of
from hotlap.guard.history import Filter, History, open_history
from hotlap.guard.tables import HEAD, metadata
from hotlap.records.errors import RecordError, UsageError
from hotlap.records.files import write_record
from hotlap.records.history import Entry
from hotlap.records.run import Lever, Phases
from hotlap.records.tune import Trial
from report.pages import TUNE

HOSTILE = "\x1b[31m<b>\0%_'\"; drop table hotlap_runs; --\ud800 é"


def with_trials(record: Any, *trials: Trial) -> Any:
    return msgspec.structs.replace(record, trials=trials)


def found(history: History, **wanted: object) -> list[int]:
    """The numbers of the days of what a filter finds, in its order."""
    return [int(one.key, 16) for one in history.entries(Filter(**wanted))]  # type: ignore[arg-type]


def test_what_goes_in_comes_out(where: str) -> None:
    levers = (Lever(name="compile", settings={"mode": "max-autotune"}),)
    told = entry(
        3, levers=levers, phases=Phases(data=1.5), peak_bytes=2.0**40, startup_s=4.5, bound="input", finding="slow",
        ratio=1.5, ratio_low=1.2, ratio_high=1.9, throughput=12.5, wall_s=3.25, exit_code=-9,
    )  # fmt: skip
    bare = entry(4, None, commit=None, commit_time=None, dirty=None, exit_code=None, torch=None, versions=None)
    with open_history(where, make=True) as history:
        assert [history.add(told), history.add(bare)] == [True, True]
        back = history.entries(Filter())
    assert [msgspec.structs.replace(one, id=0) for one in back] == [bare, told]


def test_twice_is_once_and_the_later_reading_counts(where: str) -> None:
    with open_history(where, make=True) as history:
        first = entry(0, status="running", step_ms=None)
        later = entry(0, 12.0)
        assert [history.add(first), history.add(later), history.add(later)] == [True, False, False]
        (one,) = history.entries(Filter())
        assert (one.status, one.step_ms) == ("finished", 12.0)
        assert [one.runs for one in history.series(Filter())] == [1]


def test_filters(where: str) -> None:
    with open_history(where, make=True) as history:
        for number in range(6):
            history.add(entry(number, host="two" if number == 5 else "one", project="q" if number == 4 else "p"))
        assert found(history) == [5, 4, 3, 2, 1, 0]
        assert found(history, project="p") == [5, 3, 2, 1, 0]
        assert found(history, host="two") == [5]
        assert found(history, commit=commit_of(2)[:9]) == [2]
        assert found(history, since=BEGAN + 3.5 * DAY) == [5, 4]
        assert found(history, command="train") == [5, 4, 3, 2, 1, 0]
        assert found(history, command="tr%n") == found(history, command="tr_in.py") == []
        assert [one.host for one in history.series(Filter(commit=commit_of(5)))] == ["two"]
        assert [one.project for one in history.series(Filter())] == ["p", "q", "p"]
        assert len(history.entries(Filter(), 2)) == 2
        assert history.entry(99) is None and history.one_series(99) is None
        one = history.series(Filter(host="two"))[0]
        assert history.one_series(one.id) == one and {found.host for found in history.siblings(one)} == {"one", "two"}
        assert history.names() == (["p", "q"], ["one", "two"])
    with pytest.raises(UsageError, match="not the beginning of a commit"):
        Filter(commit="HEAD' or 1=1")


def test_what_can_be_compared_is_one_series(where: str) -> None:
    with open_history(where, make=True) as history:
        for number, more in enumerate(({}, {}, {"device": "y"}, {"levers": (Lever(name="tf32"),)}, {"kind": "tune"})):
            history.add(entry(number, **more))
        assert [one.runs for one in history.series(Filter())] == [1, 1, 1, 2]
        first, second = [one for one in reversed(history.entries(Filter())) if int(one.key, 16) < 2]
        assert history.beside(first.id) == [second]


def test_text_from_outside_is_data(where: str) -> None:
    told = entry(
        0, project=HOSTILE, host=HOSTILE, command=("sh", HOSTILE), finding=HOSTILE, cwd=HOSTILE, exit_code=1 << 70
    )
    with open_history(where, make=True) as history:
        history.add(told)
        (one,) = history.entries(Filter(project=HOSTILE, host=HOSTILE, command="drop table"))
        assert one.host == HOSTILE.replace("\0", "").replace("\ud800", "?")
        assert one.command[0] == "sh" and one.exit_code == (1 << 63) - 1


def test_entry_of_a_run(tmp_path: Path) -> None:
    made = entry_of(run_folder(tmp_path / "r", 7, 20.0, cwd=str(tmp_path / "gone" / "proj")))
    assert (made.project, made.host, made.device, made.step_ms, made.bound) == ("proj", "one", "x", 20.0, "compute")
    assert (made.commit, made.commit_time, made.status) == (commit_of(7), None, "finished")
    moved = (tmp_path / "r").rename(tmp_path / "elsewhere")
    assert entry_of(moved).key == made.key
    again = run_folder(tmp_path / "again", 8)
    assert entry_of(again, "named").key != made.key and entry_of(again, "named").project == "named"
    with pytest.raises(RecordError, match="not a folder"):
        entry_of(tmp_path / "nothing")


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("HOTLAP_DB", raising=False)
    assert url_of(None).database == str(tmp_path / "hotlap" / "history.db")
    monkeypatch.setenv("HOTLAP_DB", "postgres://me:secret@host/db")
    assert url_of(None).drivername == "postgresql+psycopg"
    assert "secret" not in str(url_of(None).render_as_string(hide_password=True))
    assert url_of("~/x.db").database == str(Path.home() / "x.db")
    for bad in ("mysql://host/db", "://", "sqlite://"):
        with pytest.raises(UsageError):
            url_of(bad)


def test_the_tables_are_what_the_migrations_make(where: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with open_history(where, make=True) as history, history.database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "hotlap_schema"})
        assert context.get_current_revision() == HEAD
        assert compare_metadata(context, metadata) == []


def test_a_newer_schema_is_left_alone(where: str) -> None:
    with open_history(where, make=True) as history, history.database.writing() as connection:
        connection.exec_driver_sql("update hotlap_schema set version_num = 'r999'")
    with pytest.raises(
        RecordError, match=r"made by a newer hotlap \(schema r999; this one knows up to r\d+\): upgrade"
    ):
        open_history(where).__enter__()


def test_a_database_of_others_is_shared(tmp_path: Path) -> None:
    path = tmp_path / "others.db"
    with sqlite3.connect(path) as other:
        other.execute("create table alembic_version (version_num text)")
        other.execute("insert into alembic_version values ('theirs')")
    with open_history(str(path)) as history:
        history.add(entry())
        assert len(history.entries(Filter())) == 1


def test_reading_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no history yet at"):
        open_history(str(tmp_path / "none.db")).__enter__()
    assert not [*tmp_path.iterdir()]


def test_order_is_that_of_commits() -> None:
    old, new, unknown = entry(5, commit_time=BEGAN), entry(1), entry(9, commit_time=None)
    made: list[Entry] = sorted((unknown, new, old), key=lambda one: one.order)
    assert made == [old, new, unknown]


def test_entries_of_a_tune_and_of_a_check(tmp_path: Path) -> None:
    trial = Trial(id=0, purpose="x", levers=(), folder="trials/000", outcome="measured")
    run_folder(tmp_path / "hotlap-runs" / "t" / "trials" / "000", 3)
    write_record(tmp_path / "hotlap-runs" / "t" / "check.json", with_trials(FAILED, trial))
    made = entry_of(tmp_path / "hotlap-runs" / "t")
    assert (made.kind, made.status, made.failed, made.commit) == ("check", "fail", True, "2" * 40)
    assert (made.ratio, made.ratio_low, made.step_ms) == (1.2, pytest.approx(1.19), 12.0)
    assert made.project == tmp_path.name and made.started == BEGAN + 3 * DAY
    write_record(tmp_path / "hotlap-runs" / "t" / "check.json", FAILED)
    with pytest.raises(RecordError, match="started nothing"):
        entry_of(tmp_path / "hotlap-runs" / "t")
    run_folder(tmp_path / "u" / "trials" / "000", 4)
    write_record(tmp_path / "u" / "tune.json", with_trials(TUNE, trial))
    made = entry_of(tmp_path / "u")
    assert (made.kind, made.ratio, made.step_ms, made.bound) == (
        "tune", TUNE.speedup, TUNE.baseline.step_ms, TUNE.baseline.bound
    )  # fmt: skip
