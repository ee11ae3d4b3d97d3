"""What tests of the command line share."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hotlap.cli import app as cli


@pytest.fixture
def hotlap(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process; its exit code, and what it printed."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("HOTLAP_CACHE", str(tmp_path / "cache"))

    def call(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hotlap", *map(str, words)])
        code = cli._main()
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def printed(hotlap: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """Run the command line, which must succeed; what it printed."""

    def call(*words: str | Path) -> str:
        code, out, _ = hotlap(*words)
        assert code == 0
        return out

    return call
