"""A search on `machine.Machine`, as a fixture."""

import functools
import itertools
from pathlib import Path
from typing import Any

import pytest
from machine import Tune, search


@pytest.fixture
def tune(tmp_path: Path) -> Tune:
    """`machine.search` in a folder of its own."""
    numbers = itertools.count()

    @functools.wraps(search)
    def made(*given: Any, **more: Any) -> Any:
        return search(tmp_path / f"m{next(numbers)}", *given, **more)

    return made
