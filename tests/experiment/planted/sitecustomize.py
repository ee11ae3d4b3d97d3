"""On the PYTHONPATH of a command under test: `hotlap.levers.planted` is `lever.py` there, as if hotlap had it."""

import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
from typing import Any


class Planted(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != "hotlap.levers.planted":
            return None
        return importlib.util.spec_from_file_location(name, pathlib.Path(__file__).with_name("lever.py"))


sys.meta_path.append(Planted())
