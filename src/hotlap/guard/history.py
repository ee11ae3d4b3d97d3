"""Runs remembered over months and machines: adding them, and finding them again."""

import hashlib
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from hotlap.records.errors import RecordError, UsageError
from hotlap.records.files import to_json
from hotlap.records.history import Entry, Series
from hotlap.records.run import Environment, Lever, Phases, Versions

from .database import Database, url_of
from .tables import environments, runs, series

MOST: Final = 1000
"""Runs that one question is answered with, at most."""
UNITS: Final = {"h": 3600.0, "d": 86400.0, "w": 604800.0}
COMMIT: Final = re.compile("[0-9a-f]{4,64}")
LONGEST: Final = 1 << 20
"""Characters of an environment's document."""
WHOLE: Final = (1 << 63) - 1
PLAIN: Final = (
    "started", "commit_time", "dirty", "status", "exit_code", "torch", "wall_s", "step_ms", "p10_ms", "p90_ms", "steps",
    "throughput", "throughput_unit", "peak_bytes", "startup_s", "bound", "finding", "ratio", "ratio_low", "ratio_high",
    "cwd", "folder",
)  # fmt: skip
"""Fields of an entry that are columns of the same name."""


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs; None and "" are all. command: a part of it. commit: how it begins. since: seconds since the epoch."""

    project: str | None = None
    command: str = ""
    host: str = ""
    commit: str = ""
    since: float | None = None
    kind: str = ""

    def __post_init__(self) -> None:
        if self.commit and not COMMIT.fullmatch(self.commit):
            raise UsageError(f"{self.commit[:80]!r} is not the beginning of a commit; give 4 or more of its digits")


def moment(text: str) -> float:
    """What `--since` says, in seconds since the epoch: 12h, 30d, 8w or 2026-11-01. Raises UsageError."""
    if match := re.fullmatch(r"(\d{1,6})([hdw])", text.strip()):
        return time.time() - float(match[1]) * UNITS[match[2]]
    try:
        return time.mktime(time.strptime(text.strip(), "%Y-%m-%d"))
    except (ValueError, OverflowError):
        raise UsageError(f"{text[:80]!r} is not a time; write 12h, 30d, 8w or 2026-11-01") from None


@contextmanager
def open_history(where: str | None = None, make: bool = False) -> Iterator["History"]:
    """The history at a place (`url_of`). make: it is made where there is none. Raises UsageError, RecordError."""
    database = Database(url_of(where), make)
    try:
        yield History(database)
    finally:
        database.close()


class History:
    """The runs in a database. Everything here raises RecordError where the database can't do it."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @property
    def name(self) -> str:
        """Where it is."""
        return self.database.name

    def add(self, entry: Entry) -> bool:
        """Add a run, on disk at the end. One that is there already is brought up to date. Returns whether it is new."""
        with self.database.writing() as connection:
            known = connection.execute(sa.select(runs.c.id).where(runs.c.key == entry.key)).scalar()
            self.put(connection, [entry])
        return known is None

    def put(self, connection: sa.Connection, entries: Iterable[Entry]) -> None:
        """Add runs in a transaction that was begun."""
        for entry in entries:
            later = sa.case((series.c.last > entry.started, series.c.last), else_=entry.started)
            values = _columns(entry) | {
                "series": self._put(connection, series, _series(entry), {"last": later}),
                "environment": self._put(connection, environments, _environment(entry), {}),
            }
            self._put(connection, runs, {"added": time.time(), **values}, values)

    def _put(self, connection: sa.Connection, table: sa.Table, row: dict[str, Any], change: dict[str, Any]) -> int:
        """Insert a row, or change the one with its key. Returns its id."""
        insert = (sqlite if self.database.sqlite else postgresql).insert(table).values(row)
        change = change or {"key": row["key"]}
        made = connection.execute(
            insert.on_conflict_do_update(index_elements=["key"], set_=change).returning(table.c.id)
        )
        return int(made.scalar_one())

    def entries(self, wanted: Filter, limit: int = MOST) -> list[Entry]:
        """The latest runs, the latest first."""
        return self._read([*_of_series(wanted), *_of_runs(wanted)], limit)

    def of_series(self, number: int, limit: int = MOST) -> list[Entry]:
        """The latest runs of a series, the latest first."""
        return self._read([runs.c.series == number], limit)

    def beside(self, number: int, limit: int = MOST) -> list[Entry]:
        """The latest other runs of the series of one, the latest first."""
        own = sa.select(runs.c.series).where(runs.c.id == number).scalar_subquery()
        return self._read([runs.c.series == own, runs.c.id != number], limit)

    def entry(self, number: int) -> Entry | None:
        """One run; None where there is none."""
        return next(iter(self._read([runs.c.id == number], 1)), None)

    def one_series(self, number: int) -> Series | None:
        """One series; None where there is none."""
        return next(iter(self._series([series.c.id == number], 1)), None)

    def siblings(self, of: Series, limit: int = 20) -> list[Series]:
        """The series of the same command with the same levers, on any machine."""
        same = (series.c[name] == getattr(of, name) for name in ("kind", "project", "command", "levers"))
        return self._series([*same], limit)

    def names(self, limit: int = 200) -> tuple[list[str], list[str]]:
        """Projects and machines that there are."""
        with self.database.reading() as connection:
            projects, hosts = (
                [*connection.execute(sa.select(column).distinct().order_by(column).limit(limit)).scalars()]
                for column in (series.c.project, series.c.host)
            )
        return projects, hosts

    def series(self, wanted: Filter, limit: int = 50) -> list[Series]:
        """The series with such runs, the one that ran last first."""
        clauses = [*_of_series(wanted)]
        if wanted.since is not None:
            clauses.append(series.c.last >= wanted.since)
        if wanted.commit:
            clauses.append(series.c.id.in_(sa.select(runs.c.series).where(*_of_runs(wanted))))
        return self._series(clauses, limit)

    def _series(self, clauses: Sequence[sa.ColumnElement[bool]], limit: int) -> list[Series]:
        some = sa.select(series).where(*clauses).order_by(series.c.last.desc()).limit(limit).subquery()
        counted = sa.select(sa.func.count()).where(runs.c.series == some.c.id).scalar_subquery()
        query = sa.select(some, counted.label("runs")).order_by(some.c.last.desc())
        with self.database.reading() as connection:
            found = connection.execute(query).mappings().all()
        return [Series(**{name: row[name] for name in Series.__struct_fields__}) for row in found]

    def _read(self, clauses: Sequence[sa.ColumnElement[bool]], limit: int) -> list[Entry]:
        of = [column for column in series.c if column.name not in {"id", "key", "last"}]
        query = (
            sa.select(runs, *of, environments.c.environment.label("document"), environments.c.versions)
            .join(series, runs.c.series == series.c.id)
            .join(environments, runs.c.environment == environments.c.id)
            .where(*clauses)
            .order_by(runs.c.started.desc(), runs.c.id.desc())
            .limit(min(limit, MOST))
        )
        with self.database.reading() as connection:
            found = connection.execute(query).mappings().all()
        try:
            return [_entry(row) for row in found]
        except (msgspec.MsgspecError, ValueError) as error:
            raise RecordError(f"the history at {self.name} holds a row that can't be read: {error}") from error


def _of_series(wanted: Filter) -> Iterator[sa.ColumnElement[bool]]:
    if wanted.project is not None:
        yield series.c.project == _text(wanted.project)
    if wanted.command:
        yield series.c.command.contains(_text(wanted.command), autoescape=True)
    if wanted.host:
        yield series.c.host == _text(wanted.host)
    if wanted.kind:
        yield series.c.kind == wanted.kind


def _of_runs(wanted: Filter) -> Iterator[sa.ColumnElement[bool]]:
    if wanted.commit:
        yield runs.c.git_commit >= wanted.commit
        yield runs.c.git_commit < wanted.commit + "g"  # behind all digits, so that an index finds it
    if wanted.since is not None:
        yield runs.c.started >= wanted.since


def _series(entry: Entry) -> dict[str, Any]:
    """The row of its series."""
    row = {
        "kind": entry.kind,
        "project": _text(entry.project),
        "command": _text(shlex.join(entry.command)),
        "levers": _text(to_json(entry.levers).decode()),
        "host": _text(entry.host),
        "device": _text(entry.device),
    }
    return {"key": _key(row), "last": entry.started, **row}


def _environment(entry: Entry) -> dict[str, Any]:
    """The row of its environment."""
    row = {"environment": _text(to_json(entry.environment).decode()), "versions": to_json(entry.versions).decode()}
    if len(row["environment"]) + len(row["versions"]) > LONGEST:
        raise RecordError(f"{entry.folder}: its environment is larger than {LONGEST:,} characters; it is not added")
    return {"key": _key(row), **row}


def _columns(entry: Entry) -> dict[str, Any]:
    """The row of the run, without its series and its environment."""
    row = {name: getattr(entry, name) for name in PLAIN}
    row |= {"key": entry.key, "git_commit": entry.commit, "phases": to_json(entry.phases).decode()}
    return {name: _kept(value) for name, value in row.items()}


def _kept(value: Any) -> Any:
    """A value as a column can hold it."""
    if isinstance(value, str):
        return _text(value)
    return max(-WHOLE, min(WHOLE, value)) if type(value) is int else value


def _text(value: str) -> str:
    """A text without what PostgreSQL refuses."""
    return value.replace("\0", "").encode("utf-8", "replace").decode()


def _key(row: dict[str, str]) -> str:
    return hashlib.sha256(to_json(row)).hexdigest()[:32]


def _entry(row: Any) -> Entry:
    """The entry of a row."""
    return Entry(
        id=row["id"],
        key=row["key"],
        kind=row["kind"],
        project=row["project"],
        command=_words(row["command"]),
        host=row["host"],
        device=row["device"],
        levers=msgspec.json.decode(row["levers"], type=tuple[Lever, ...]),
        commit=row["git_commit"],
        phases=msgspec.json.decode(row["phases"], type=Phases),
        environment=_decoded(row["document"]),
        versions=_versions(row["versions"]),
        **{name: row[name] for name in PLAIN},
    )


@lru_cache(maxsize=256)
def _words(command: str) -> tuple[str, ...]:
    return tuple(shlex.split(command))


@lru_cache(maxsize=256)
def _decoded(document: str) -> Environment:
    """Of many runs it is the same."""
    return msgspec.json.decode(document, type=Environment)


@lru_cache(maxsize=256)
def _versions(document: str) -> Versions | None:
    return msgspec.json.decode(document, type=Versions | None)
