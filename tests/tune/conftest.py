"""A search on `machine.Machine`, as a fixture."""

import functools
from pathlib import Path

import pytest
from machine import Tune, search


@pytest.fixture
def tune(tmp_path: Path) -> Tune:
    """`machine.search` in a folder of its own."""
    return functools.partial(search, tmp_path / "m")
