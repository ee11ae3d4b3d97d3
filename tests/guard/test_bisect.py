"""Bisection on commits of a real repository; what is slow says so in its source, so that nothing has to be measured."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_checks import SLOWER, attempt, judged

from hotlap.guard import bisect as bisecting
from hotlap.guard.check import Found, Request
from hotlap.guard.versions import Repository
from hotlap.records.check import Bisected, Version
from hotlap.records.errors import CommandFailed

SLOW = "import time"


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@t")
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


class Said:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def result(self, text: str) -> None:
        self.lines.append(text)


def text_of(version: Version) -> str:
    return (Path(version.cwd) / "t.py").read_text()


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Bisect a history: each text is a commit's `t.py`; `broken` does not run, SLOW is slow."""

    @contextlib.contextmanager
    def bench_for(*_: object) -> Iterator[None]:
        yield None

    def nearer(_: object, versions: tuple[Version, Version, Version], starts: int) -> bool | None:
        assert starts == 1
        here = text_of(versions[2])
        return None if "broken" in here else (SLOW in here) == (SLOW in text_of(versions[1]))

    def compare(_: object, pair: Request, again: bool) -> Found:
        if "crash" in text_of(pair.head):
            raise CommandFailed("no")
        slower = SLOW in text_of(pair.head) and SLOW not in text_of(pair.base)
        return Found(attempts=[attempt(SLOWER) if slower else attempt()])

    for name, fake in (("bench_for", bench_for), ("nearer", nearer), ("compare", compare)):
        monkeypatch.setattr(bisecting, name, fake)

    def run(*texts: str, failed: Any = None) -> Bisected:
        root = tmp_path / "project"
        root.mkdir()
        git(root, "init", "-q")
        for number, text in enumerate(texts):
            (root / "t.py").write_text(f"{text}\n# {number}\n")
            git(root, "add", "-A")
            git(root, "commit", "-qm", f"number {number}")
        repository = Repository.of(root)
        base = repository.commit(f"HEAD~{len(texts) - 1}")
        head = repository.commit("HEAD")
        request = Request(
            Version(name="a", command=("x",), cwd="/", commit=base),
            Version(name="b", command=("x",), cwd=str(root), commit=head),
        )
        made = bisecting.bisect(repository, request, ["x"], failed or attempt(SLOWER), tmp_path, Said())  # type: ignore[arg-type]
        assert len(git(root, "worktree", "list").splitlines()) == 1
        return made

    return run


def test_the_commit_is_found(found: Any) -> None:
    made = found("a", "b", "broken", "c", SLOW, SLOW, SLOW)
    assert made.subject == "number 4" and made.commit is not None and made.of == 6


def test_a_commit_before_it_that_does_not_run_leaves_it_open(found: Any) -> None:
    made = found("a", "b", "broken", SLOW, SLOW)
    assert made.commit is None and "do not run" in made.why and len(made.skipped) == 1


def test_it_has_to_be_confirmed(found: Any) -> None:
    made = found("a", "b", f"{SLOW}  # crash")
    assert made.commit is None and "was not shown to be slower than its parent" in made.why
    assert made.subject == "number 2"


def test_a_commit_that_made_it_faster_is_found(found: Any) -> None:
    made = found(SLOW, f"{SLOW} x", "a", "b", "c", failed=attempt(judged(change=-0.2)))
    assert made.subject == "number 2" and made.faster


def test_a_step_time_that_has_not_changed_has_no_commit(found: Any) -> None:
    made = found("a", SLOW, failed=attempt(judged(change=-0.02)))
    assert made.commit is None and made.why == "the step time was not shown to have changed"
