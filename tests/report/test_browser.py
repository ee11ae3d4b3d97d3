"""The page in a real browser: silent console, no requests, numbers of the records, controls that work."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotlap.report.page import PLOTLY_FILE, plotly_source, render

from .browser import WHY_NOT, Browser
from .pages import DIAGNOSIS, RUN_PAGE, TUNE, TUNE_PAGE, advised, hostile

pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.xdist_group("browser")]
PAGES = {"run": RUN_PAGE, "tune": TUNE_PAGE, "hostile-tune": hostile(TUNE_PAGE)}
CONTRAST = """
const light = (colour) => {
  const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (e) => {
  for (; e; e = e.parentElement) {
    const colour = getComputedStyle(e).backgroundColor;
    if (!/rgba|transparent/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
};
const texts = "h1, h2, h3, p, small, dt, dd, td, th, code, li, em, summary, a, button, label, figcaption, .line";
return [...document.querySelectorAll(texts)]
  .filter((e) => e.textContent.trim() && e.offsetParent && !e.closest("svg, .heat"))
  .map((e) => {
    const [more, less] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
    return [(more + 0.05) / (less + 0.05), `${e.tagName} ${e.className} ${e.textContent.slice(0, 20)}`];
  }).filter(([contrast]) => contrast < 4.5);
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pages, beside the script that they share; `whole.html` has it inside."""
    at = tmp_path_factory.mktemp("pages")
    (at / PLOTLY_FILE).write_text(plotly_source(), "utf-8")
    for name, page in PAGES.items():
        (at / f"{name}.html").write_text(render(advised(page), PLOTLY_FILE), "utf-8")
    (at / "whole.html").write_text(render(advised(hostile(RUN_PAGE))), "utf-8")
    return at


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    started = Browser()
    yield started
    started.close()


@pytest.fixture
def run_page(browser: Browser, folder: Path) -> Browser:
    browser.look(1440, 900)
    browser.open(folder / "run.html")
    return browser


def phone_width(browser: Browser) -> int:
    """What the page takes on a phone's screen, its charts drawn."""
    browser.look(390, 844)
    browser.run("dispatchEvent(new Event('resize'))")
    return int(browser.run("return document.documentElement.scrollWidth"))


def test_missing_script_is_said(browser: Browser, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alone.html").write_bytes((folder / "run.html").read_bytes())
    browser.open(tmp_path / "alone.html")
    browser.draw_all()
    assert f"{PLOTLY_FILE} is missing" in browser.run("return document.querySelector('#steps .chart').textContent")
    browser.log("browser")


def values(browser: Browser, section: str) -> list[float]:
    script = "return [...document.querySelectorAll(`#${arguments[0]} data`)].map((one) => Number(one.value))"
    return list(browser.run(script, section))


DRAWN = (
    "return document.querySelector(`#${arguments[0]} [data-chart=${arguments[1]}]`).data.map((one) => [one.x, one.y])"
)


def silent(browser: Browser, *files: Path) -> None:
    """Nothing on the console, no request but for these files, nothing of a run's texts became an element."""
    assert browser.log("browser") == []
    assert set(browser.requests()) == {file.resolve().as_uri() for file in files}
    assert browser.run("return document.querySelectorAll('img, iframe, object, svg a').length") == 0


def test_hostile_run_page(browser: Browser, folder: Path, tmp_path: Path) -> None:
    alone = tmp_path / "mailed.html"  # nothing beside it
    alone.write_bytes((folder / "whole.html").read_bytes())
    browser.look(1440, 900)
    browser.open(alone)
    assert {DIAGNOSIS.step_ms, DIAGNOSIS.throughput} <= set(values(browser, "verdict"))
    assert {0.61, 125.5, 0.35} <= set(values(browser, "findings"))
    browser.draw_all()
    assert browser.run("return document.querySelectorAll('.chart:not([hidden]) .main-svg:first-child').length") == 9
    ((x, y), *marked) = browser.run(DRAWN, "steps", "times")
    assert x == list(RUN_PAGE.steps[0].step)
    steady = [i for i, mark in enumerate(RUN_PAGE.steps[0].mark) if mark == "steady"]
    assert [y[i] for i in steady] == [RUN_PAGE.steps[0].ms[i] for i in steady]
    assert [len(points) for points, _ in marked[:3]] == [1, 5, 2]  # outlier, warm-up, left out
    points = browser.run(DRAWN, "roofline", "roof")
    assert any(1000.0 in x for x, _ in points)
    *stacked, (times, total) = browser.run(DRAWN, "memory", "window")
    assert times == [0, 2, 5, 9] and total == [200, 500, 900, 200]
    assert [y for _, y in stacked] == [[200] * 4, [0, 300, 700, 0]]
    assert [y for _, y in browser.run(DRAWN, "memory", "series")] == [[9, 11, 13], [20, 20, 20]]
    top = "return document.querySelector('#steps [data-chart=times]').layout.yaxis.range"
    assert browser.run(top) == [0, pytest.approx(max(RUN_PAGE.steps[0].ms[5:]) * 1.15)]
    browser.run("document.querySelector('#steps [data-control=scale]').click()")
    assert browser.run(top)[1] > 1000
    assert phone_width(browser) <= 390
    silent(browser, alone)


def test_tiles_of_memory(run_page: Browser) -> None:
    run_page.draw_all()
    script = (
        "const t = document.querySelector('#memory [data-chart=tiles]').data[0]; return [t.labels, t.parents, t.text]"
    )
    labels, parents, texts = run_page.run(script)
    assert labels[:2] == ["activations", "net.py:7 in Net.forward"] and parents[:2] == ["", "0"]
    assert labels[2:5] == ["parameters", "net.body", "net.head"] and texts[2:5] == ["200 MiB", "150 MiB", "50.0 MiB"]
    shown = (
        "return [...document.querySelectorAll('#memory [data-chart=tiles] .slicetext')].map((one) => one.textContent)"
    )
    assert any(text.startswith("activations") for text in run_page.run(shown))


def test_hostile_tune_page(browser: Browser, folder: Path) -> None:
    browser.look(1440, 900)
    browser.open(folder / "hostile-tune.html")
    assert {TUNE.speedup, TUNE.before_ms, TUNE.after_ms} <= set(values(browser, "verdict"))
    browser.draw_all()
    curves = browser.run(DRAWN, "parity", "losses")
    assert [curve[1] for curve in curves] == [list(curve.loss) for curve in TUNE_PAGE.curves]
    assert phone_width(browser) <= 390
    silent(browser, folder / "hostile-tune.html", folder / PLOTLY_FILE)


def readout(browser: Browser) -> str:
    return str(browser.run("return document.querySelector('.readout').textContent"))


def test_timeline_by_keyboard(run_page: Browser) -> None:
    run_page.run("document.querySelector('#timeline canvas').focus()")
    run_page.press("n")
    assert readout(run_page).startswith("phases · forward: aten::mm · 25.0 ms from 0.00 ms")
    run_page.press("ArrowDown")
    assert readout(run_page).startswith("training thread: ops · op: aten::mm · 5.00 ms")
    run_page.press("n")
    assert "from 10.0 ms · train.py:41 · 3 events" in readout(run_page)
    pixels = "return document.querySelector('#timeline canvas').toDataURL()"
    whole = run_page.run(pixels)
    for key in ("+", "+", "ArrowRight"):
        run_page.press(key)
    assert run_page.run(pixels) != whole
    run_page.press("0")
    assert run_page.run(pixels) == whole


def test_timeline_by_pointer_and_buttons(run_page: Browser) -> None:
    box = run_page.run(
        "const c = document.querySelector('#timeline canvas'); "
        "c.scrollIntoView({block: 'center', behavior: 'instant'});"
        "const b = c.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]"
    )
    run_page.tell("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + 200, y=box[1] + 30)
    assert readout(run_page).startswith("phases · forward")
    pixels = "return document.querySelector('#timeline canvas').toDataURL()"
    seen = []
    for control in ("all", "in", "in", "right", "out", "left"):
        run_page.run(f"document.querySelector('#timeline [data-control={control}]').click()")
        seen.append(run_page.run(pixels))
    assert len(set(seen)) >= 4
    run_page.run(
        "const s = document.querySelector('#timeline select'); s.value = '1'; s.dispatchEvent(new Event('change'))"
    )
    assert run_page.run(pixels) not in seen  # the whole step of the other rank, no bar chosen


def test_theme(browser: Browser, folder: Path) -> None:
    back = "return getComputedStyle(document.body).backgroundColor"
    browser.look(1440, 900, dark=True)
    browser.open(folder / "run.html")
    dark = browser.run(back)
    browser.run("document.getElementById('theme').click()")
    light = browser.run(back)
    assert dark != light
    browser.look(1440, 900, dark=False)
    browser.open(folder / "run.html")
    assert browser.run(back) == light


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["run", "tune"])
def test_text_can_be_read(name: str, dark: bool, browser: Browser, folder: Path) -> None:
    browser.look(1440, 900, dark)
    browser.open(folder / f"{name}.html")
    browser.run("for (const one of document.querySelectorAll('details')) one.open = true")
    assert browser.run(CONTRAST) == []  # WCAG AA


def test_keyboard_reaches_the_controls(run_page: Browser) -> None:
    reached: list[Any] = []
    for _ in range(80):
        run_page.press("Tab")
        reached.append(
            run_page.run("const e = document.activeElement; return [e.tagName, e.className, e.dataset.control || e.id]")
        )
    assert reached[0][:2] == ["A", "skip"]
    assert ["BUTTON", "", "theme"] in reached
    assert any(name == "term" for _, name, _ in reached)


def test_word_is_explained_on_focus(run_page: Browser) -> None:
    tip = (
        "const e = document.querySelector('#breakdown .term'); e.focus();"
        "return [getComputedStyle(e, '::after').content, e.dataset.tip]"
    )
    shown, meaning = run_page.run(tip)
    assert meaning in shown and len(meaning) > 10
