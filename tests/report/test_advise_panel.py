"""The panel "What should I try first?" in a real browser: fields change the list, and "as measured" brings it back."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hotlap.diagnose.advise import advise, suggest
from hotlap.diagnose.advise_table import TABLE
from hotlap.records.diagnosis import Finding
from hotlap.records.page import Page
from hotlap.report.page import render

from .browser import WHY_NOT, Browser
from .pages import DIAGNOSIS, advised

pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.xdist_group("browser")]
SET = """
const field = document.querySelector(`#advise input[type=${arguments[2]}][data-measure=${arguments[0]}]`);
field.value = arguments[1]; field.dispatchEvent(new Event("input", {bubbles: true}));
"""
SHOWN = "return Array.from(document.querySelectorAll('#advise .advice > li'), (li) => li.dataset.advice)"
VALUE = "return document.querySelector(`#advise input[type=number][data-measure=${arguments[0]}]`).value"
CLICK = "document.querySelector(`#advise [data-control=${arguments[0]}]`).click()"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Browser]:
    """A page of nothing but a verdict and the panel."""
    made = advised(Page(title="t", folder="f", made="", hotlap="", diagnosis=DIAGNOSIS))
    (tmp_path / "page.html").write_text(render(made), "utf-8")
    started = Browser()
    started.look(1200, 900)
    started.open(tmp_path / "page.html")
    yield started
    started.close()


def shown(page: Browser) -> list[str]:
    return list(page.run(SHOWN))


def said(**known: float) -> list[str]:
    return [one.id for one in suggest(TABLE, known)]


def test_fields_change_the_list(page: Browser) -> None:
    measured = advise(DIAGNOSIS, "f")
    assert shown(page) == [one.id for one in measured.suggestions]
    evidence = measured.suggestions[0].evidence
    assert evidence in page.run("return document.querySelector('#advise .advice').textContent")
    page.run(CLICK, "clear")
    assert shown(page) == ["profile"]
    page.run(SET, "idle", "40", "number")
    page.run(SET, "launch_bound", "30", "range")
    assert page.run(VALUE, "launch_bound") == "30"
    assert shown(page) == said(idle=0.4, launch_bound=0.3)
    page.run(SET, "input", "999", "number")
    assert shown(page) == said(idle=0.4, launch_bound=0.3)
    page.run(SET, "input", "5.5", "number")
    page.run(SET, "idle", "50", "range")
    assert shown(page) == said(idle=0.5, launch_bound=0.3, input=0.055)
    page.run(CLICK, "measured")
    assert shown(page) == [one.id for one in measured.suggestions]
    assert page.log("browser") == []


def test_an_answer_takes_the_place_of_the_run_s_parts_and_the_whole_follows_a_part(page: Browser) -> None:
    measured = advise(DIAGNOSIS, "f").measures
    part = next(one.name for one in TABLE.measures if one.within == "idle" and one.name in measured)
    page.run(SET, part, "0", "number")
    assert float(page.run(VALUE, "idle")) == round(100 * (measured["idle"] - measured[part]), 1)
    assert shown(page) == [one.id for one in advise(DIAGNOSIS, "f", answers={part: 0.0}).suggestions]
    page.run(CLICK, "measured")
    page.run(SET, "idle", "50", "range")
    assert page.run(VALUE, part) == ""
    assert shown(page) == [one.id for one in advise(DIAGNOSIS, "f", answers={"idle": 0.5}).suggestions]


def test_a_finding_that_no_row_is_about_is_told_by_the_script_too(page: Browser, tmp_path: Path) -> None:
    crowded = Finding(
        id="cpu-crowded", bound="unknown", share=0.6, title="threads wait for a core", why="they share", instead="fewer"
    )
    found = msgspec.structs.replace(DIAGNOSIS, findings=(crowded,))
    (tmp_path / "other.html").write_text(
        render(advised(Page(title="t", folder="f", made="", hotlap="", diagnosis=found))), "utf-8"
    )
    page.open(tmp_path / "other.html")
    assert shown(page) == ["cpu-crowded"]
    assert "60% of the step: they share." in page.run("return document.querySelector('#advise .advice').textContent")
