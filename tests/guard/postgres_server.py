"""A PostgreSQL server of the tests' own, on loopback, in a folder that is removed again."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

FOLDERS = [*map(Path, os.environ.get("PATH", "").split(os.pathsep)), *sorted(Path("/usr/lib/postgresql").glob("*/bin"))]
INITDB, POSTGRES = (
    next((str(path / name) for path in FOLDERS if (path / name).exists()), None) for name in ("initdb", "postgres")
)


def _user() -> str | None:
    """Who may run it: it refuses root."""
    if os.geteuid():
        return pwd.getpwuid(os.geteuid()).pw_name
    known = {one.pw_name for one in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in known), None)


USER = _user()
WHY_NOT = (
    "" if INITDB and POSTGRES and USER else "no PostgreSQL here that may be run (Debian: apt-get install postgresql)"
)


class Server:
    """One server with a database for each that asks."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.databases = folder, 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        if not os.geteuid():
            owner = pwd.getpwnam(str(USER))
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        self._call([str(INITDB), "-D", str(folder / "data"), "-U", "hotlap", "--auth=trust", "--no-sync", "-E", "UTF8"])
        self.start()

    def _call(self, words: list[str]) -> None:
        user = USER if not os.geteuid() else None
        subprocess.run(words, check=True, capture_output=True, cwd=self.folder, user=user, timeout=120)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        words = [str(POSTGRES), "-D", str(self.folder / "data"), "-p", str(self.port), "-k", str(self.folder)]
        user = USER if not os.geteuid() else None
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*words, "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                user=user,
            )
        for _ in range(2400):
            with contextlib.suppress(Exception):
                self.execute("select 1")
                return
            time.sleep(0.05)
        raise RuntimeError((self.folder / "log").read_text()[-2000:])

    def stop(self) -> None:
        """As a machine that is switched off: at once, connections and all."""
        assert self.process is not None
        self.process.send_signal(3)
        self.process.wait(30)

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """What a statement answers."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=5) as connection:
            done = connection.execute(statement)  # type: ignore[call-overload]
            return list(done.fetchall()) if done.description else []

    def url(self, database: str) -> str:
        """Where a database is."""
        return f"postgresql://hotlap@127.0.0.1:{self.port}/{database}"

    def database(self) -> str:
        """A new one; its URL."""
        self.databases += 1
        self.execute(f"create database d{self.databases}")
        return self.url(f"d{self.databases}")


@contextlib.contextmanager
def served() -> Iterator[Server]:
    """A server, gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="hotlap-postgres-", dir="/tmp"))
    server = Server(folder)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
