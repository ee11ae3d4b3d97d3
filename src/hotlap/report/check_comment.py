"""A check for others to read: a comment on a pull request (Markdown as GitHub and GitLab have it), and JUnit XML."""

import re
import shlex
from typing import Final
from xml.etree import ElementTree

from ..records.check import STEP_TIME, Check
from .check_screen import CALLS, cause_rows, headline, notes, rows, value_text
from .console import clean

MARK: Final = "<!-- hotlap check -->"
"""By which a later comment finds the one before, to replace it."""
SIGNS: Final = {"pass": "✅", "fail": "❌", "inconclusive": "⚠️"}
SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>|~&$!])")
LINKED: Final = re.compile(r"(?<=[@#])(?=\w)|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)
"""Where a mention, an issue or an address is broken by a character without width. They are found in what is rendered,
so a backslash does not keep them from it."""
XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def comment_of(check: Check) -> str:
    """Markdown. Text from outside is shown as it is, never as markup, mentions or links."""
    head = "| | baseline | new version | change | 95% | allowed | |", "|---|---:|---:|---:|---|---|---|"
    table = [f"| {' | '.join(map(escaped, row))} |" for row in rows(check)]
    below = [f"- **{label}**: {escaped(text)}" for label, text in cause_rows(check)]
    told = [
        f"- {label}: {escaped(text)}" for label, text in notes(check) if (label, text) not in set(cause_rows(check))
    ]
    return "\n".join([
        MARK, f"### {SIGNS[check.verdict]} hotlap check: {escaped(headline(check))}", "", *head, *table, "", *below, "",
        "<details><summary>How it was measured</summary>", "", *told,
        f"- command: {_code(shlex.join(check.head.command))}", f"- machine: {escaped(_machine(check))}",
        "", "</details>", "",
    ])  # fmt: skip


def escaped(text: str) -> str:
    """As Markdown shows it literally."""
    return LINKED.sub("\u200b", SPECIAL.sub(r"\\\1", clean(text)))


def _code(text: str) -> str:
    """In backquotes, more of them than the text has in a row."""
    shown = clean(text)
    fence = "`" * (1 + max((len(one) for one in re.findall("`+", shown)), default=0))
    return f"{fence} {shown} {fence}"


def _machine(check: Check) -> str:
    machine = check.environment
    gpus = ", ".join(gpu.name for gpu in machine.gpus)
    return ", ".join(filter(None, (gpus, f"{machine.usable_cores} cores", machine.cpu, f"hotlap {machine.hotlap}")))


def junit_of(check: Check) -> bytes:
    """A test suite with a test for each quantity. What does not count and was not told is skipped."""
    suite = ElementTree.Element("testsuite", name="hotlap check", time=f"{check.seconds:.1f}")
    judged = check.judged
    if not any(one.what == STEP_TIME for one in judged):
        _case(suite, STEP_TIME, error=check.why)
    for one in judged:
        said = f"{value_text(one, one.before)} before, {value_text(one, one.after)} now: {CALLS[one.call]}"
        decisive = check.verdict == "fail" and one.call == "slower"
        if decisive:
            _case(suite, one.what, failure=said)
        elif one.call in {"open", "unknown", "slower"}:
            _case(suite, one.what, **({"error": said} if one.counts or one.call == "slower" else {"skipped": said}))
        else:
            _case(suite, one.what)
    if check.parity is not None:
        bad = check.parity_counts and not check.parity.ok
        _case(suite, "losses", **({"failure": check.parity.why} if bad else {}))
    if check.target is not None:
        said = f"{check.target.value} where {check.target.compare} {check.target.wanted:g} is wanted"
        _case(suite, check.target.metric, **({} if check.target.met else {"failure": said}))
    for kind in ("failure", "error", "skipped"):
        name = {"failure": "failures", "error": "errors", "skipped": "skipped"}[kind]
        suite.set(name, str(len(suite.findall(f"testcase/{kind}"))))
    suite.set("tests", str(len(suite.findall("testcase"))))
    ElementTree.SubElement(suite, "system-out").text = _plain(_lines(check))
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))


def _case(suite: ElementTree.Element, name: str, **result: str) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname="hotlap.check", name=_plain(name))
    for kind, said in result.items():
        ElementTree.SubElement(case, kind, message=_plain(said))


def _lines(check: Check) -> str:
    return "\n".join([headline(check), *(f"{label}: {text}" for label, text in notes(check))])


def _plain(text: str) -> str:
    """Without what XML can't hold."""
    return XML.sub("", text)
