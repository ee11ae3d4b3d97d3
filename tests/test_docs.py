"""The docs say what the program does: every command, option and exit code, quoted code, links, the levers."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from hotlap.cli.app import app
from hotlap.levers import all_levers
from hotlap.levers._base import Lever
from hotlap.records.errors import EXIT_CODES
from hotlap.trace import tables

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
REFERENCE = (DOCS / "reference.md").read_text(encoding="utf-8")
PLACE = re.compile(r"^<!-- ([A-Z ]+) -->$", re.MULTILINE)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def options(command: Any) -> list[str]:
    """Every spelling of every option of a command, and of those below it."""
    spelled = [name for option in command.params for name in (*option.opts, *option.secondary_opts)]
    own = [name for name in spelled if name.startswith("--")]
    return [*own, *(name for below in getattr(command, "commands", {}).values() for name in options(below))]


def part(text: str, heading: str) -> str:
    """The text under a heading, up to the next of its rank or above; a `#` inside a fenced block is no heading."""
    rank = len(heading) - len(heading.lstrip("#"))
    assert f"\n{heading}\n" in text, f"no heading {heading!r}"
    kept = []
    fenced = False
    for line in text.split(f"\n{heading}\n", 1)[1].splitlines():
        fenced ^= line.startswith("```")
        if not fenced and re.match(rf"#{{1,{rank}}} ", line):
            break
        kept.append(line)
    return "\n".join(kept)


def without_code(text: str) -> str:
    """The text without fenced blocks, where `](` and `#` mean other things."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Anchors of headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def links(text: str) -> Iterator[tuple[str, str]]:
    """Path and anchor of each link that is not on the web."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield path, anchor


def test_every_command_is_in_the_overview() -> None:
    told = re.findall(r"^    hotlap ([a-z]+)", part(REFERENCE, "## Commands").split("### ")[0], re.MULTILINE)
    assert sorted(told) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_in_the_reference(name: str) -> None:
    told = part(REFERENCE, f"### hotlap {name}")
    for option in options(COMMANDS[name]):
        assert f"`{option}" in told, f"{option} of hotlap {name} is not in docs/reference.md"


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_told_that_does_not_exist(name: str) -> None:
    rows = re.findall(r"^\| (`--.*?) \|", part(REFERENCE, f"### hotlap {name}"), re.MULTILINE)
    told = {option for row in rows for option in re.findall(r"--[a-z0-9-]+", row)}
    assert told - {"--help"} <= set(options(COMMANDS[name]))


def test_every_exit_code_is_listed() -> None:
    rows = re.findall(r"^\| (\d+) \|", part(REFERENCE, "## Exit codes"), re.MULTILINE)
    assert sorted(map(int, rows)) == sorted(EXIT_CODES)
    told = part((ROOT / "README.md").read_text(encoding="utf-8"), "## Exit codes")
    for code in EXIT_CODES:
        assert re.search(rf"\b{code}\b", told), f"README.md does not say what {code} means"


def test_levers_page_is_up_to_date() -> None:
    page = runpy.run_path(str(DOCS / "generate.py"))["page"]()
    assert (DOCS / "levers.md").read_text(encoding="utf-8") == page, "run: python docs/generate.py > docs/levers.md"


def test_schemas_are_up_to_date() -> None:
    made = runpy.run_path(str(DOCS / "generate.py"))["schema_files"]()
    there = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "schema").iterdir()}
    assert there == made, "run: python docs/generate.py schema"


def test_every_schema_is_in_the_reference() -> None:
    told = part(REFERENCE, "## Files")
    assert not [path.name for path in (DOCS / "schema").iterdir() if f"(schema/{path.name})" not in told]


def test_columns_of_tables_are_in_the_page_on_traces() -> None:
    told = (tables.__doc__ or "").split("\n\n", 1)[1].replace(" \\\n", " ").strip()
    assert told in (DOCS / "trace.md").read_text(encoding="utf-8")


def test_placeholders_were_filled() -> None:
    """Places for output that is pasted by hand, or made by a benchmark: `<!-- SCREEN -->`."""
    left = {page.name: found for page in PAGES if (found := PLACE.findall(page.read_text(encoding="utf-8")))}
    assert not left


def test_every_field_of_a_lever_is_in_contributing() -> None:
    told = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    fields = [name for name in Lever.__annotations__ if not re.search(rf"`{name}`", told)]
    assert not fields, f"CONTRIBUTING.md does not say what {fields} of a lever mean"


def test_changelog_names_every_lever() -> None:
    told = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert not [name for name in all_levers() if name not in told]


@each_page
def test_links_resolve(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path, anchor in links(text):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {path}, which does not exist"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{page.name}: no heading {path}#{anchor}"


@each_page
def test_commands_in_examples_exist(page: Path) -> None:
    """Lines that a reader would copy: indented, in a fence, or in backticks."""
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"(?:^ {4}|^\$ |`)((?:\S*/)?hotlap [^\n`]+)", text, re.MULTILINE):
        words = re.sub(r'"[^"]*"', '""', line).split()[1:]
        if words[0].startswith(("-", "[")):
            continue
        assert words[0] in COMMANDS, f"{page.name}: {line}"
        known, own = set(options(COMMANDS[words[0]])), []
        for word in words[1:]:
            if word.startswith(("python", "torchrun", "accelerate", "COMMAND", ".venv/")) or word == "--":
                break
            own.append(word)
        strange = [word for word in own if word.startswith("--") and word not in known]
        assert not strange, f"{page.name}: {line}: no option {strange}"


@each_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    told = re.findall(r"(?:^ {4}|`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(told) <= targets


@each_page
def test_quoted_code_is_the_file_s_own(page: Path) -> None:
    """A fence that follows `<!-- path -->` stands in that file, word for word."""
    text = page.read_text(encoding="utf-8")
    for path, code in re.findall(r"<!-- (\S+\.py) -->\n```python\n(.*?)```", text, re.DOTALL):
        assert code in (ROOT / path).read_text(encoding="utf-8"), f"{page.name} quotes {path} as it no longer is"


def test_supported_versions_are_those_of_the_project_file() -> None:
    readme, project = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "pyproject.toml"))
    least = re.search(r'requires-python = ">=([\d.]+)"', project)
    assert least is not None and f"Python {least[1]}" in readme
