"""One trace, served to Perfetto's page in the browser of this machine.

As `open_trace_in_ui` of Perfetto's tools: the page may fetch from http://127.0.0.1:9001 only (its content security
policy), so the port is fixed. Only that file is served, and only until it has been fetched. Browsers give it to no
other page. Any program on this machine, of any user, may fetch it meanwhile if it knows or guesses the address.
"""

import contextlib
import http.server
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hotlap.records.errors import RecordError
from hotlap.runs.folder import RunFolder
from hotlap.trace.files import trace_files
from hotlap.trace.nsys import is_export

from .to_perfetto import merge

PERFETTO: Final = "https://ui.perfetto.dev"
HOST: Final = "127.0.0.1"
PORT: Final = 9001
SNAPSHOTS: Final = ("rank-*/*memory*.pickle", "rank-*/*snapshot*.pickle")


def address(trace: Path) -> str:
    """What to open."""
    return f"{PERFETTO}/#!/?url=http://{HOST}:{PORT}/{_served(trace)}"


def _served(trace: Path) -> str:
    """The file's name in an address."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", f"{trace.parent.name}-{trace.name}")[-80:].lstrip(".-")


def snapshots(folder: Path) -> list[Path]:
    """Memory snapshots of a run, for memory_viz, which takes them by drag and drop. They are pickles: hotlap only names
    them."""
    return sorted(found for pattern in SNAPSHOTS for found in RunFolder(folder).start.glob(pattern))


@contextlib.contextmanager
def in_one_file(path: Path) -> Iterator[Path]:
    """The trace at a path; several merged into a file that is there meanwhile. Raises RecordError."""
    if is_export(path):
        raise RecordError(f"Perfetto can't show {path}; open the report itself in Nsight Systems")
    if path.is_file():
        yield path
        return
    paths = []
    for number, file in enumerate(trace_files(path)):
        if not (path / file.name).is_file():
            raise RecordError(f"{path} has {file.name}, which is not a file in it; unpack it first")
        paths.append((number if file.rank is None else file.rank, path / file.name))
    if len(paths) == 1:
        yield paths[0][1]
        return
    with tempfile.TemporaryDirectory(prefix="hotlap-", ignore_cleanup_errors=True) as folder:
        merged = Path(folder) / f"{path.resolve().name}.json.gz"
        merge(paths, merged)
        yield merged


class Server(http.server.HTTPServer):
    """Serves one file until it has been fetched."""

    def __init__(self, trace: Path, port: int) -> None:
        self.trace, self.fetched = trace, False
        super().__init__((HOST, port), _Handler)

    def until_fetched(self) -> None:
        """Answer requests until the file has been sent whole."""
        while not self.fetched:
            self.handle_request()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    timeout = 30

    def do_OPTIONS(self) -> None:
        """Chrome asks before a page of the web may fetch from this machine."""
        self.send_response(204)
        self._allow()
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.end_headers()

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host != HOST or self.path.partition("?")[0] != f"/{_served(self.server.trace)}":
            self.send_error(404)  # another host: a page whose name was made to lead here
            return
        with self.server.trace.open("rb") as file:
            self.send_response(200)
            self._allow()
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(self.server.trace.stat().st_size))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # the page was closed; it may ask again
                shutil.copyfileobj(file, self.wfile)
                self.server.fetched = True

    def _allow(self) -> None:
        self.send_header("Access-Control-Allow-Origin", PERFETTO)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: requests are not the user's business."""


def serve(trace: Path, port: int = PORT) -> Server:
    """A server of a file. Raises RecordError where the port is taken."""
    try:
        return Server(trace, port)
    except OSError as error:
        raise RecordError(
            f"cannot serve on {HOST}:{port}, the only address that Perfetto fetches from: {error}"
        ) from error
