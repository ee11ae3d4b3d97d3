"""What a command prints goes through hotlap's pipes unchanged, and its lines are kept with their times."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from hotlap.launch import printed
from hotlap.launch.printed import Printed
from hotlap.records.errors import RecordError
from hotlap.records.files import read_lines
from hotlap.records.mlperf import PrintedLine


def passed(path: Path, code: str) -> int:
    kept = Printed(path)
    out, err = kept.streams
    process = subprocess.Popen([sys.executable, "-u", "-c", code], stdout=out, stderr=err)
    kept.begun()
    ended = process.wait()
    kept.finish()
    return ended


def texts(path: Path) -> list[str]:
    return [line.text for line in read_lines(path, PrintedLine)]


def test_output_is_passed_on_byte_by_byte_and_its_lines_are_kept(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    code = r"import os; os.write(1, b'a\xff 1\n\n'); os.write(1, b'10%\r20%\rlast'); os.write(2, b'oh\n')"
    before = time.time()
    assert passed(tmp_path / "p", code) == 0
    out, err = capfdbinary.readouterr()
    assert (out, err) == (b"a\xff 1\n\n10%\r20%\rlast", b"oh\n")
    assert sorted(texts(tmp_path / "p")) == ["10%", "20%", "a\ufffd 1", "last", "oh"]
    assert all(before <= line.time <= time.time() for line in read_lines(tmp_path / "p", PrintedLine))


def test_much_output_is_passed_on_whole_and_kept_up_to_a_bound(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printed, "MOST_BYTES", 100_000)
    assert passed(tmp_path / "p", "print('x' * 10**6)\nfor n in range(10**5): print('line', n)") == 0
    out, _ = capfdbinary.readouterr()
    assert out == b"x" * 10**6 + b"\n" + b"".join(b"line %d\n" % n for n in range(10**5))
    assert (tmp_path / "p").stat().st_size <= 100_000
    assert texts(tmp_path / "p")[:2] == ["x" * printed.LONGEST, "line 0"]


def test_a_command_hears_that_nobody_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(to: int, data: bytes) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(printed, "_write", broken)
    assert passed(tmp_path / "p", "while True: print('again')") != 0


def test_what_the_command_has_started_does_not_keep_hotlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printed, "REST_S", 0.1)
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3)'])"
    assert passed(tmp_path / "p", code) == 0


def test_a_file_that_can_t_be_written_is_told_before_the_command_starts(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot write"):
        Printed(tmp_path / "no" / "p")
