"""`hotlap calibrate` through the real process boundary."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from forking import hotlap_forked

from hotlap.trace.peaks import known_peaks, peaks_of


def hotlap(*arguments: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "COLUMNS": "300",
        "TERM": "dumb",
        "HOTLAP_CACHE": str(cwd / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    done = hotlap_forked(["calibrate", *arguments], cwd, environment)
    assert done.returncode == code, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    return done


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_what_was_measured_is_printed_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(hotlap("--json", sys.executable, cwd=tmp_path).stdout)
    assert found["name"] == "cpu" and found["fp32"] > 0 and found["memory_gbs"] > 0
    assert found["tf32"] is None and "measured with torch" in found["source"]
    monkeypatch.setenv("HOTLAP_CACHE", str(tmp_path / "cache"))
    known = known_peaks("cpu")
    assert known is not None and known.fp32 == found["fp32"]
    assert known_peaks("NVIDIA H100 80GB HBM3") == peaks_of("NVIDIA H100 80GB HBM3")


GOOD = '{"name": "../../x y", "fp32": 1.5, "memory_gbs": 10.0, "source": "x"}'


def test_a_device_s_name_names_no_other_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "1.5" in hotlap(program(tmp_path / "python", f"echo '{GOOD}'"), cwd=tmp_path).stdout
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert [path.relative_to(tmp_path) for path in kept] == [Path("cache/peaks/x-y.json")]
    monkeypatch.setenv("HOTLAP_CACHE", str(tmp_path / "cache"))
    kept[0].write_text("junk")
    assert known_peaks("../../x y") is None


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("echo no module >&2; exit 1", 123, "no module"),
        ("exit 3", 123, "exit code 3"),
        ("echo junk", 122, "printed no measurement"),
        ('echo \'{"name": "x", "fp32": -1, "memory_gbs": 1}\'', 122, "fp32"),
        ('echo \'{"name": "x", "fp32": 1e300, "memory_gbs": 1}\'', 122, "fp32"),
    ],
)
def test_what_can_not_be_measured_says_why_and_keeps_nothing(tmp_path: Path, text: str, code: int, says: str) -> None:
    done = hotlap(program(tmp_path / "python", text), cwd=tmp_path, code=code)
    assert says in done.stderr and done.stdout == ""
    assert not (tmp_path / "cache").exists()


def test_a_program_that_is_missing(tmp_path: Path) -> None:
    assert "not found" in hotlap("no-such-python", cwd=tmp_path, code=127).stderr
