"""`hotlap serve` as a process: who may ask, what pages hold, and the trend in a real browser."""

import base64
import html
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import msgspec
import pytest
from hotlap_process import SOURCE, ended, refused, started
from made_history import BEGAN, DAY, MACHINE, commit_of, entry, noisy, stepped

from hotlap.guard.history import open_history
from hotlap.records.run import Phases
from report.browser import WHY_NOT, Browser
from report.test_browser import CONTRAST

HOSTILE = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script>\u202e{{7*7}}%"
TOKEN = "0123456789abcdef-a-token"


class Served:
    """A server in a process of its own."""

    def __init__(self, where: str, cwd: Path, *words: str, **more: str) -> None:
        self.process = started(["serve", "--db", where, "--port", "0", *words], cwd, PYTHONUNBUFFERED="1", **more)
        assert self.process.stdout is not None
        self.lines = [self.process.stdout.readline() for _ in range(2)]
        self.address = self.lines[1].split()[-1]
        self.port = int(self.address.rsplit(":", 1)[1])

    def close(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err

    def ask(self, path: str, **headers: str) -> tuple[int, str, dict[str, str]]:
        """Status, text and headers of an answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), dict(answer.getheaders())
        finally:
            connection.close()


def filled(where: str) -> None:
    """Runs of one command that got slower at commit 30, on two machines; a tune; and one of hostile texts."""
    with open_history(where, make=True) as history:
        for number, value in enumerate(noisy(stepped((30, 10.0), (12, 12.0)))):
            machine = msgspec.structs.replace(MACHINE, driver="580" if number < 30 else "590")
            more = {"phases": Phases(data=1.0, forward=value - 1), "peak_bytes": 2.0**30, "bound": "compute"}
            history.add(entry(number, value, environment=machine, finding="computing Net", **more))
        for number in range(3):
            history.add(entry(100 + number, 20.0, host="two", started=BEGAN + number * DAY))
        history.add(entry(200, kind="tune", ratio=1.5, started=BEGAN, command=("python", "tuned.py")))
        told = dict.fromkeys(("project", "host", "device", "cwd", "folder", "finding", "bound", "torch"), HOSTILE)
        hostile = msgspec.structs.replace(MACHINE, driver=HOSTILE, cpu=HOSTILE, variables={HOSTILE: HOSTILE})
        for number in range(300, 308):
            more = {
                "command": ("python", HOSTILE),
                "environment": hostile,
                "commit": HOSTILE,
                "started": BEGAN - number,
            }
            history.add(entry(number, 10.0 + 3 * (number > 303), **told, **more))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    at = tmp_path_factory.mktemp("served")
    filled(str(at / "history.db"))
    made = Served(str(at / "history.db"), at)
    yield made
    assert made.close() == (0, "")


PATHS = (
    "/", "/?project=p", "/?project=p&measure=memory", "/?host=two", f"/?commit={commit_of(5)}", "/?since=1w",
    "/series/1", "/series/1?measure=startup", "/series/2", "/series/3", "/series/4", "/run/1", "/run/46", "/run/50",
    "/compare?before=30&after=31", "/compare?before=1&after=50",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_every_page_is_whole_and_harmless(served: Served, path: str) -> None:
    status, page, headers = served.ask(path)
    assert status == 200 and page.startswith("<!doctype html>") and page.rstrip().endswith("</html>")
    assert "<img" not in page and "alert(2)</script>" not in page and "49%" not in page and "\u202e" not in page
    assert headers["x-frame-options"] == "DENY" and headers["cache-control"] == "no-store"
    assert "default-src 'none'" in page and "form-action 'self'" in page
    for link in {html.unescape(one) for one in re.findall(r'href="(/[^"]*)"', page)}:
        assert link.startswith(("/?", "/series/", "/run/", "/compare?")) or link == "/"
    for link in re.findall(r'href="(/(?:run|series)/\d+)', page)[:1]:
        assert served.ask(link)[0] == 200


def test_what_pages_tell(served: Served) -> None:
    _, page, _ = served.ask("/?project=p&host=one")
    assert f"a step: 1.20× since {commit_of(30)[:10]}" in page and "tuned.py" in page and 'data-table="changes"' in page
    _, page, _ = served.ask("/series/1")
    assert f"between {commit_of(29)[:10]} and {commit_of(30)[:10]}" in page and "also: driver 580 → 590" in page
    assert re.search(r"<td class=\"n\">(9\.9|10\.)\d* ms → (11\.9|12\.)\d* ms</td>", page)
    assert '/compare?before=30&amp;after=31"' in page and re.search(r">two</a>.*?20\.0 ms", page, re.DOTALL)
    _, page, _ = served.ask("/compare?before=30&after=31")
    assert "580" in page and "590" in page and "1.2" in page
    _, page, _ = served.ask("/run/31")
    assert "computing Net" in page and commit_of(30) in page and "forward" in page
    _, page, _ = served.ask("/?command=no-such")
    assert "No run is so" in page


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/?commit=HEAD", 400, "is not the beginning of a commit"),
        ("/?since=yesterday", 400, "is not a time"),
        ("/?measure=x", 404, "no measure"),
        ("/run/9999", 404, "no such run"),
        ("/run/99999999999999999999999", 422, "less_than_equal"),
        ("/series/-1", 422, "greater_than_equal"),
        ("/series/one", 422, "int_parsing"),
        ("/compare?before=1", 422, "missing"),
        ("/?command=" + "x" * 600, 422, "string_too_long"),
        ("/nowhere", 404, "Not Found"),
        ("/openapi.json", 404, "Not Found"),
        ("/docs", 404, "Not Found"),
    ],
)
def test_what_is_asked_for_wrongly(served: Served, path: str, status: int, says: str) -> None:
    got, text, _ = served.ask(path)
    assert got == status and says in text


def test_only_names_of_this_machine(served: Served) -> None:
    assert served.ask("/", Host="evil.example:80")[0] == 403  # a name that a page of another site has point here
    assert served.ask("/", Host=f"localhost:{served.port}")[0] == 200
    assert served.ask("/", Host="[::1]:80")[0] == 200
    connection = HTTPConnection("127.0.0.1", served.port)
    connection.request("POST", "/")
    assert connection.getresponse().status == 405
    connection.close()


def test_a_token(tmp_path: Path) -> None:
    where = str(tmp_path / "h.db")
    filled(where)
    refused(
        ended(["serve", "--db", where, "--host", "0.0.0.0"], tmp_path), "can be asked by other machines: give --token"
    )
    refused(
        ended(["serve", "--db", where, "--token", "short"], tmp_path), "the token has 5 characters; give 16 or more"
    )
    made = Served(where, tmp_path, "--host", "0.0.0.0", HOTLAP_TOKEN=TOKEN)
    try:

        def basic(word: str) -> str:
            return "Basic " + base64.b64encode(f"anybody:{word}".encode()).decode()

        right = {"Bearer": f"Bearer {TOKEN}", "basic": basic(TOKEN)}
        texts = (
            f"Bearer {TOKEN[:-1]}", basic(TOKEN + "x"), TOKEN, "Basic %%%", f"Digest {TOKEN}", "Bearer ", "Bearer \xe9",
        )  # fmt: skip
        wrong = [{}, {"Cookie": TOKEN}, *({"Authorization": text} for text in texts)]
        for path in ("/", "/run/1", "/nowhere"):
            for headers in wrong:
                status, text, answered = made.ask(path, **headers)
                assert (status, text) == (401, "the token is missing or wrong")
                assert answered["www-authenticate"] == 'Basic realm="hotlap"'
        for value in right.values():
            assert made.ask("/", Authorization=value, Host="train-box.example")[0] == 200
        assert made.ask(f"/?token={TOKEN}")[0] == 401
    finally:
        assert made.close() == (0, "")


def test_a_port_that_is_taken(served: Served, tmp_path: Path) -> None:
    where = str(tmp_path / "h.db")
    filled(where)
    done = ended(["serve", "--db", where, "--port", str(served.port)], tmp_path)
    refused(done, f"cannot listen on 127.0.0.1:{served.port}: Address already in use")
    refused(ended(["serve", "--db", tmp_path / "none.db"], tmp_path), "no history yet at")


def test_a_database_that_goes_away(tmp_path: Path) -> None:
    where = tmp_path / "h.db"
    filled(str(where))
    made = Served(str(where), tmp_path)
    try:
        assert made.ask("/")[0] == 200
        for path in tmp_path.glob("h.db*"):
            path.rename(tmp_path / f"away-{path.name}")
        where.write_text("something else " * 100)
        status, text, _ = made.ask("/run/1")
        assert status in {200, 503} and ("cannot read the history" in text or status == 200)
    finally:
        made.close()


needs_browser = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    made = Browser()
    yield made
    made.close()


DRAWN = "return document.querySelector('[data-chart=trend]').data.map((one) => [one.name || '', one.x, one.y])"


@needs_browser
@pytest.mark.xdist_group("browser")
def test_the_trend_in_a_browser(served: Served, browser: Browser) -> None:
    browser.look(1440, 900)
    browser.visit(f"{served.address}/?project=p&host=one")
    browser.draw_all()
    *lines, (name, at, values) = browser.run(DRAWN)
    assert name == "runs" and at == [*range(42)] and values == noisy(stepped((30, 10.0), (12, 12.0)))
    middles = [one for one in lines if one[1] == [29.5, 41.5]][2]
    assert middles[2][0] == pytest.approx(12.0, rel=0.01)
    layout = (
        "const c = document.querySelector('[data-chart=trend]').layout; return [c.shapes[0].x0, c.annotations[0].text]"
    )
    assert browser.run(layout) == [29.5, f"1.20× {commit_of(30)[:10]}"]
    assert browser.log("browser") == []
    assert {one.split("?")[0].rpartition("/")[0] for one in browser.requests()} <= {
        served.address,
        "blob:",
        "data:image",
    }
    box = browser.run(
        "const b = [...document.querySelectorAll('.trace.scatter .point')].at(-1).getBoundingClientRect();"
        "return [b.left + b.width / 2, b.top + b.height / 2]"
    )
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        browser.tell(
            "Input.dispatchMouseEvent",
            type=kind,
            x=box[0],
            y=box[1],
            button="left" if kind != "mouseMoved" else "none",
            clickCount=1,
        )
    browser.wait("location.pathname === '/run/42'")


@needs_browser
@pytest.mark.xdist_group("browser")
def test_filters_are_in_the_address(served: Served, browser: Browser) -> None:
    browser.look(1440, 900)
    browser.visit(f"{served.address}/")
    browser.run(
        "const f = document.querySelector('form'); f.project.value = 'p'; f.host.value = 'two';"
        "f.measure.value = 'step'; f.since.value = '2020-01-01'; f.requestSubmit()"
    )
    browser.wait(
        "new URLSearchParams(location.search).get('host') === 'two' && document.documentElement.dataset.ready === '1'"
    )
    asked = "return Object.fromEntries(new URLSearchParams(location.search))"
    assert browser.run(asked) == {
        "project": "p",
        "host": "two",
        "command": "",
        "commit": "",
        "since": "2020-01-01",
        "measure": "step",
    }
    rows = (
        "return [...document.querySelectorAll('[data-table=series] tbody tr')].map((one) => one.cells[1].textContent)"
    )
    assert browser.run(rows) == ["two x"]
    assert browser.run("const f = document.querySelector('form'); return [f.host.value, f.since.value]") == [
        "two",
        "2020-01-01",
    ]


@needs_browser
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_hostile_texts_and_small_screens(served: Served, browser: Browser, dark: bool) -> None:
    for path in ("/", "/series/4", "/run/50", "/compare?before=1&after=50"):
        browser.look(390, 844, dark)
        browser.visit(served.address + path)
        browser.draw_all()
        assert browser.run("return document.querySelectorAll('img, iframe, object').length") == 0
        assert browser.run("return document.documentElement.scrollWidth") <= 390, path
        assert browser.run(CONTRAST) == []
        assert browser.log("browser") == []


@needs_browser
@pytest.mark.xdist_group("browser")
def test_a_browser_asks_for_the_token(tmp_path: Path, browser: Browser) -> None:
    where = str(tmp_path / "h.db")
    filled(where)
    made = Served(where, tmp_path, HOTLAP_TOKEN=TOKEN)
    try:
        browser.visit(f"http://any:{TOKEN}@127.0.0.1:{made.port}/series/1")
        browser.draw_all()  # the chart library too has to be let through
        assert browser.run(DRAWN)[-1][0] == "runs"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(made.address)
    finally:
        made.close()


def test_missing_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError('no', name='uvicorn')")
    path = os.pathsep.join([str(tmp_path), str(SOURCE)])
    done = ended(["serve"], tmp_path, PYTHONPATH=path)
    refused(done, "the dashboard needs uvicorn, which is not installed: pip install 'hotlap[serve]'")
    assert isinstance(done, subprocess.CompletedProcess)
