"""What users read is in plain words: no phrase that was found too hard to read comes back."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HARD = (
    "one pace",
    "some stretches of",
    "there when they were asked for",
    "takes a trace to tell",
    "page by page",
    "that nobody measured",
    "Of it, as the script's own",
    "takes a profile to tell",
    "all of these together",
    "looks at the host's stack",
    "taking one over",
    "search on where",
    "the dear order",
)


def texts(path: Path) -> Iterator[str]:
    """The strings of a module, or a page as it is; white space as one blank, as lines are broken anywhere."""
    written = path.read_text(encoding="utf-8")
    parts = (
        (node.value for node in ast.walk(ast.parse(written)) if isinstance(node, ast.Constant))
        if path.suffix == ".py"
        else (written,)
    )
    yield from (" ".join(part.split()) for part in parts if isinstance(part, str))


@pytest.mark.parametrize("folder", ["src/hotlap", "docs"])
def test_no_hard_phrase_is_told(folder: str) -> None:
    paths = [path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".md", ".j2"}]
    assert len(paths) > 10
    told = [(path.name, phrase) for path in paths for text in texts(path) for phrase in HARD if phrase in text]
    assert not told


def test_public_things_have_a_docstring() -> None:
    modules = {path: ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "src/hotlap").rglob("*.py")}
    kinds = (ast.FunctionDef, ast.ClassDef)
    public = [(path, one) for path, tree in modules.items() for one in tree.body if isinstance(one, kinds)]
    assert len(public) > 1000
    assert not [(path.name, one.name) for path, one in public if one.name[0] != "_" and not ast.get_docstring(one)]


BANNED = frozenset({"apart", "thin", "asked", "ran", "reach", "wake", "aside", "held", "showed"})
DOCUMENTED = frozenset({("run.py", "asked"), ("input.py", "asked"), ("side.py", "asked")})
"""A field of facts.json, which keeps its name."""


def names(path: Path) -> Iterator[str]:
    """What a module calls things, and is called."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        found = [getattr(node, field, None) for field in ("id", "attr", "arg", "name")]
        yield from (one.strip("_").lower() for one in found if isinstance(one, str))


def test_nothing_is_called_what_no_engineer_would_guess() -> None:
    paths = [*(ROOT / "src/hotlap").rglob("*.py")]
    assert {(path.name, one) for path in paths for one in BANNED.intersection(names(path))} <= DOCUMENTED
