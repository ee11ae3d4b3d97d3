"""Whose code a file is: the user's, or what is installed. Standard library only: the agent imports it."""

import os
from typing import Final

INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

GENERATED: Final = f"{os.sep}torchinductor_"
"""In the path of what torch.compile has written."""


def users(name: str, libraries: tuple[str, ...], standard: tuple[str, ...], main: str) -> bool:
    """Whether a code object's file is the user's. libraries: folders that are not, wherever they lie; standard: those
    of Python's own library; main: that of the main module, which with its package is the user's where the command is
    installed (`python -m timm.train`). Folders end with a separator."""
    if GENERATED in name:
        return False
    path = os.path.abspath(name)  # noqa: PTH100 - pathlib costs the user's process an import
    if name.startswith("<") or path.startswith(libraries):
        return False
    inside = path.startswith(standard) or any(folder in path for folder in INSTALLED)
    return not inside or (any(folder in main for folder in INSTALLED) and path.startswith(main))
