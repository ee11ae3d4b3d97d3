"""Measures what a device can do, by the Python that the job uses."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from hotlap.records.errors import CommandFailed, NothingMeasured
from hotlap.records.peaks import Peaks

from .command import find_program

SCRIPT: Final = Path(__file__).with_name("measure_peaks.py")
LONGEST_S: Final = 300


def measured_peaks(python: Sequence[str]) -> Peaks:
    """Run the measurement. Raises CommandNotFound, CommandFailed (no torch, no memory), NothingMeasured."""
    find_program(python, Path.cwd())
    try:
        done = subprocess.run(
            [*python, str(SCRIPT)], capture_output=True, timeout=LONGEST_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise NothingMeasured(f"the measurement did not end within {LONGEST_S} s") from error
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        said = "".join(last) or f"exit code {done.returncode}"
        raise CommandFailed(f"`{' '.join(python)}` could not measure ({said}); give the Python of the job")
    try:
        return msgspec.json.decode(done.stdout, type=Peaks)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NothingMeasured(f"`{' '.join(python)}` printed no measurement: {error}") from error
