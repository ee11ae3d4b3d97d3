"""Small projects to patch, without running them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from patching import SETTINGS, Patcher, Result

from hotlap.patch.patch import write
from hotlap.records.run import Facts, Lever
from hotlap.source.project import read_project


@pytest.fixture
def patched(tmp_path: Path) -> Patcher:
    """Write `train.py` (and other files), and patch it with levers."""

    def make(
        text: str | bytes,
        *levers: str,
        facts: Facts | None = None,
        cuda: bool = True,
        files: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> Result:
        for name, content in {"train.py": text, **(files or {})}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        before = read_project(("python", "train.py"), tmp_path)
        recipe = [Lever(name=name, settings={**SETTINGS.get(name, {}), **settings}) for name in levers]
        return Result(before, *write(before, recipe, facts, cuda))

    return make
