"""The database of a history: SQLite in a file, or PostgreSQL by URL. It is migrated as it is opened.

Nothing is lost: what is added is one transaction, which is there whole or not at all, and on disk before it is told.
SQLite keeps a write-ahead log, so that readers never wait, and writers wait for each other.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from hotlap.records.errors import RecordError, UsageError, missing_named, unable

from .tables import HEAD, SCHEMA

VARIABLE: Final = "HOTLAP_DB"
WAIT_S: Final = 30.0
"""For other writers. Each takes milliseconds."""
CONNECT_S: Final = 10
ANSWER_MS: Final = 60_000
LOCK: Final = 0x486F744C6170
"""Of PostgreSQL's advisory locks: `HotLap`. One process migrates at a time."""


def default_file() -> Path:
    """`$XDG_DATA_HOME/hotlap/history.db`, else `~/.local/share/hotlap/history.db`."""
    user = os.environ.get("XDG_DATA_HOME")
    return (Path(user) if user else Path.home() / ".local" / "share") / "hotlap" / "history.db"


def url_of(given: str | None) -> sa.URL:
    """Where the history is: as it was given, else as `$HOTLAP_DB` says, else `default_file`. Raises UsageError."""
    where = given or os.environ.get(VARIABLE) or str(default_file())
    if "://" not in where:
        return sa.URL.create("sqlite", database=str(Path(where).expanduser().absolute()))
    try:
        url = sa.make_url(where)
    except (ArgumentError, ValueError):
        raise UsageError("the history's URL can't be read; write postgresql://USER@HOST/NAME, or a file") from None
    kind = url.get_backend_name()
    if kind in {"postgres", "postgresql"}:
        return url.set(drivername="postgresql+psycopg")
    if kind == "sqlite" and url.database:
        return url.set(drivername="sqlite", database=str(Path(url.database).absolute()))
    raise UsageError(f"a history is kept in SQLite (a file) or PostgreSQL (postgresql://...), not in {kind}")


class Database:
    """An opened history. Raises RecordError where it can't be opened, or is of a newer hotlap."""

    def __init__(self, url: sa.URL, make: bool = True) -> None:
        """make: a file that is not there yet is made."""
        self.url = url
        self.sqlite = url.get_backend_name() == "sqlite"
        if self.sqlite and not self.file.exists():
            if not make:
                raise RecordError(f"no history yet at {self.name}: `hotlap history add FOLDER` adds a run")
            with unable(f"make {self.file.parent}"):
                self.file.parent.mkdir(parents=True, exist_ok=True)
        self.engine = self._engine()
        self._migrate()

    @property
    def file(self) -> Path:
        """Of SQLite."""
        return Path(str(self.url.database))

    @property
    def name(self) -> str:
        """As it is told to people, without a password."""
        return str(self.file) if self.sqlite else self.url.set(drivername="postgresql").render_as_string()

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction that sees one state of the history. Raises RecordError."""
        with self._told("read"), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction that is there whole at the end, or not at all. Raises RecordError."""
        writes = self.engine.execution_options(writes=True)
        with self._told("write to"), writes.begin() as connection:
            yield connection

    def close(self) -> None:
        """Let go of its connections."""
        self.engine.dispose()

    def _engine(self) -> sa.Engine:
        if self.sqlite:
            engine = sa.create_engine(self.url, connect_args={"timeout": WAIT_S})
            event.listen(engine, "connect", _set_up)
            event.listen(engine, "begin", _begin)
            return engine
        with missing_named("history"):
            return sa.create_engine(
                self.url,
                pool_pre_ping=True,
                connect_args={"connect_timeout": CONNECT_S, "options": f"-c statement_timeout={ANSWER_MS}"},
            )

    def _migrate(self) -> None:
        """Bring the tables up to date: one process does, others wait for it."""
        with self.reading() as connection:
            if self._revision(connection) == HEAD:
                return
        if self.sqlite:
            self._retried(self._write_ahead)
        with self.writing() as connection:
            if not self.sqlite:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
            if self._revision(connection) != HEAD:
                self._upgrade(connection)

    def _revision(self, connection: sa.Connection) -> str | None:
        """The migration that it is at; None where it is empty. Raises RecordError of one that is not known here."""
        if not sa.inspect(connection).has_table(SCHEMA):
            return None
        found = connection.execute(sa.text(f"select version_num from {SCHEMA}")).scalar()
        if found is not None and str(found) > HEAD:
            raise RecordError(
                f"the history at {self.name} was made by a newer hotlap (schema {str(found)[:20]}; this one knows up "
                f"to {HEAD}): upgrade hotlap, or give another --db"
            )
        return None if found is None else str(found)

    @staticmethod
    def _upgrade(connection: sa.Connection) -> None:
        with missing_named("history"):
            from alembic import command
            from alembic.config import Config
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")

    def _write_ahead(self) -> None:
        """Set once, the file keeps it. It takes the whole file, and does not wait for others itself."""
        with sqlite3.connect(self.file, timeout=WAIT_S) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        connection.close()

    def _retried(self, do: Callable[[], None]) -> None:
        end = time.monotonic() + WAIT_S
        while True:
            try:
                return do()
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > end:
                    raise RecordError(f"cannot open the history at {self.name}: {error}") from error
                time.sleep(0.05)

    @contextmanager
    def _told(self, to: str) -> Iterator[None]:
        """What the database refuses, as a RecordError of one line."""
        try:
            yield
        except SQLAlchemyError as error:
            raise RecordError(f"cannot {to} the history at {self.name}: {_why(error)}") from error
        except sqlite3.Error as error:
            raise RecordError(f"cannot {to} the history at {self.name}: {error}") from error


def _why(error: SQLAlchemyError) -> str:
    """The database's own words."""
    own = str(getattr(error, "orig", None) or error)
    said = " ".join(own.split()) or type(error).__name__
    if "not a database" in said or "malformed" in said:
        return f"{said}. The file is damaged, or no history; it was not changed. Move it away, or give another --db"
    return said[:500]


def _set_up(connection: Any, record: Any) -> None:
    """SQLAlchemy begins transactions here (`_begin`), not Python's driver, which would begin late."""
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")


def _begin(connection: sa.Connection) -> None:
    """A writer takes its turn at once: one that has read before could not wait for another."""
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
